//! Servers that are broken, or hostile: what they cost, and what is said of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencepost::backend::Health;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{settings, settings_of, unready};
use crate::record_steps::healthy;
use crate::servers::{MariaDb, NAME, available};
use crate::tables::is_refused;

/// The most bytes of an answer that a client without a row to read takes, with what the system keeps in between.
const BOUND: usize = 16 << 20;
/// What a server that accepts everything says.
const OK: [u8; 7] = [0, 0, 0, 2, 0, 0, 0];

fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short one").to_le_bytes();
    [&length[..3], &[sequence], payload].concat()
}

/// The greeting of a MySQL 8.
fn greeting(plugin: &str) -> Vec<u8> {
    let capabilities: u32 = 0x10f_a20d;
    let [low, high] = [capabilities as u16, (capabilities >> 16) as u16].map(u16::to_le_bytes);
    let parts: [&[u8]; 12] = [
        &[10],
        b"8.0.99\0",
        &[7, 0, 0, 0],
        &[1; 8],
        &[0],
        &low,
        &[45, 2, 0],
        &high,
        &[21],
        &[0; 10],
        &[1; 12],
        &[0],
    ];
    packet(0, &[&parts.concat(), plugin.as_bytes(), &[0]].concat())
}

async fn read(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).await?;
    let mut payload = vec![0; usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16];
    stream.read_exact(&mut payload).await?;
    Ok(payload)
}

/// A server that accepts each login, and answers each command with this, and then with this again and again. Returns its
/// address, and the most bytes that a client took of an answer.
async fn answering(first: Vec<u8>, again: Vec<u8>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, most) = (
        listener.local_addr().expect("an address"),
        Arc::new(AtomicUsize::new(0)),
    );
    let taken = Arc::clone(&most);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (first, again, most) = (first.clone(), again.clone(), Arc::clone(&most));
            tokio::spawn(async move {
                stream.write_all(&greeting("mysql_native_password")).await?;
                read(&mut stream).await?;
                stream.write_all(&packet(2, &OK)).await?;
                read(&mut stream).await?;
                stream.write_all(&first).await?;
                let mut bytes = first.len();
                // The sequence of the packets goes round in 256 of them.
                while stream.write_all(&again).await.is_ok() && !again.is_empty() {
                    bytes += again.len();
                    most.fetch_max(bytes, Ordering::AcqRel);
                }
                std::io::Result::Ok(())
            });
        }
    });
    (address.to_string(), taken)
}

async fn says(address: String, words: &str) {
    let records = unready(settings_of(vec![address]));
    let says = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains(words));
    healthy(&*records, says).await;
}

/// One column, and the end of the columns.
fn columns() -> Vec<u8> {
    [packet(1, &[1]), packet(2, b"column"), packet(3, &[0xfe, 0, 0, 2, 0])].concat()
}

// G177
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_names_very_many_columns_is_refused() {
    for exponent in [24, 32, 40, 62] {
        let count = [&[0xfe][..], &(1_u64 << exponent).to_le_bytes()].concat();
        let (address, _) = answering(packet(1, &count), Vec::new()).await;
        says(address, "another number of columns").await;
    }
    let (address, _) = answering(packet(1, b"\xfb/etc/hostname"), Vec::new()).await;
    says(address, "another number of columns").await;
}

// G177
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_without_end_are_cut() {
    let rows = |payload: &[u8]| {
        (0..=255_u8)
            .map(|at| packet(at.wrapping_add(4), payload))
            .collect::<Vec<_>>()
            .concat()
    };
    let row = [&[0xfc, 0x60, 0x09][..], &[b'x'; 0x960]].concat();
    let parts = (0..=255_u8).map(|at| [&[0xff, 0xff, 0xff, at.wrapping_add(4)][..], &vec![0; 0x00ff_ffff]].concat());
    let one = parts.take(1).collect::<Vec<_>>().concat();
    for again in [rows(&row), rows(&[0xfb]), one] {
        let (address, most) = answering(columns(), again).await;
        says(address, "its answer is too long").await;
        let most = most.load(Ordering::Acquire);
        assert!(most <= BOUND, "{most} bytes were taken");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_speaks_something_else_is_refused() {
    for (first, words) in [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(4), "out of order"),
        (packet(1, &[]), "too short"),
        (packet(1, &OK), "each statement once"),
        (
            [packet(1, &[1]), packet(2, b"a"), packet(3, b"b")].concat(),
            "more columns than it says",
        ),
        ([columns(), packet(4, &[9, b'x'])].concat(), "too short"),
    ] {
        let (address, _) = answering(first, Vec::new()).await;
        says(address, words).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_a_plugin_that_is_not_known_is_told_so() {
    common::skip_unless!(available());
    let server = MariaDb::started(&[]);
    server.sql("INSTALL SONAME 'auth_ed25519'");
    server.sql(&format!(
        "ALTER USER {NAME}@'127.0.0.1' IDENTIFIED VIA ed25519 USING PASSWORD('secret')"
    ));
    is_refused(settings(&server), "logs in by the plugin \"client_ed25519\"").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_tls_no_password_is_sent_to_a_server_whose_key_cannot_be_used() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
                .expect("a key")
                .public_key_pem();
            stream.write_all(&greeting("caching_sha2_password")).await?;
            read(&mut stream).await?;
            stream.write_all(&packet(2, &[1, 4])).await?;
            assert_eq!(read(&mut stream).await?, [2]);
            stream.write_all(&packet(4, &[&[1], key.as_bytes()].concat())).await?;
        }
        std::io::Result::Ok(())
    });
    // A key that is not one of RSA: the password stays here.
    says(address, "its public key cannot be used").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_away_or_hangs_up_is_named_by_one_reason() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let hanging_up = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    for (address, words) in [
        ("127.0.0.1:1".to_owned(), "Connection refused"),
        (hanging_up, "unexpected end of file"),
    ] {
        let records = unready(settings_of(vec![address.clone()]));
        let says = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains(words));
        let Health::Unavailable { reason } = healthy(&*records, says).await else {
            panic!("it is away");
        };
        let of_one = format!("MySQL at {address}: {words}");
        assert_eq!(reason.strip_suffix(" (os error 111)").unwrap_or(&reason), of_one);
    }
}
