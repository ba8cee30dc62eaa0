//! Servers that are none: they ask for the password, or send without end.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencepost::backend::Health;
use fencepost::backend::postgres::Store;
use fencepost::backend::postgres::settings::{Credentials, Login};
use fencepost::backend::record::store::{Commit, FoundRoot};
use fencepost::name::Namespace;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{READY, applied, first, healthy, name, patient, records, settings_of};
use crate::servers::{NAME, Postgres, available};

/// The password that nobody must see.
const PASSWORD: &str = "S3cr3t-pa55word";
/// The most bytes that a connection carries to the service: an answer, and what the buffers of both systems take.
const MOST: usize = 64 * 1024 * 1024 + 32 * 1024 * 1024;

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("a small message").to_be_bytes();
    [&[tag], length.as_slice(), body].concat()
}

/// Reads what a client begins with.
async fn startup(stream: &mut TcpStream) {
    let length = stream.read_u32().await.expect("a length");
    let mut startup = vec![0; length as usize - 4];
    stream.read_exact(&mut startup).await.expect("a login");
}

/// The health of a store at a server, once it says this.
async fn says(address: String, problem: &str) {
    let login = Login {
        user: NAME.into(),
        password: PASSWORD.into(),
    };
    let credentials = Credentials {
        login: Some(login),
        tls: None,
    };
    let store = Store::open(settings_of(vec![address]), credentials).expect("random numbers");
    let records = store.records(&Namespace::new("faults").expect("a good name"));
    let is_so = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains(problem));
    healthy(&*records, is_so).await;
}

/// An address of this machine that others reach, if it has one.
fn reachable() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback()).then_some(address)
}

// G174
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_server_is_given_the_password_in_the_clear_over_a_network() {
    let Some(address) = reachable() else {
        return println!("skipped: this machine has no other address than loopback");
    };
    for login in [3_u32, 5] {
        let listener = TcpListener::bind((address, 0)).await.expect("a port");
        let at = listener.local_addr().expect("an address").to_string();
        let asking = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                startup(&mut stream).await;
                let ask = message(b'R', &[&login.to_be_bytes()[..], b"salt"].concat());
                stream.write_all(&ask).await.expect("it listens");
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).await.ok();
                assert!(answer.is_empty(), "{answer:?}");
            }
        });
        says(at, "asks for the password in the clear or as MD5").await;
        assert!(!asking.is_finished(), "it was given the password");
        asking.abort();
    }
}

// G174
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_sends_without_end_is_left() {
    let login = [message(b'R', &[0; 4]), message(b'Z', b"I")].concat();
    let column = [
        &1_u16.to_be_bytes()[..],
        b"c\0",
        &[0; 6],
        &[0, 0, 0, 20, 0, 8],
        &[0xff; 4],
        &[0, 1],
    ]
    .concat();
    let begins = [message(b'1', b""), message(b'2', b""), message(b'T', &column)].concat();
    let row = message(
        b'D',
        &[&1_u16.to_be_bytes()[..], &60_000_u32.to_be_bytes(), &[0; 60_000]].concat(),
    );
    let setting = message(b'S', b"name\0value\0").repeat(1_000);
    let notice = message(b'N', b"SWARNING\0VWARNING\0C01000\0Mendless\0\0").repeat(1_000);
    let huge = [b'R', 0x7f, 0xff, 0xff, 0xff];
    for (begin, endless) in [
        ([login.as_slice(), &begins].concat(), row),
        (login.clone(), setting),
        (login, notice),
        (huge.to_vec(), vec![0; 65_536]),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address").to_string();
        let (most, left) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let sending = tokio::spawn({
            let (most, left) = (Arc::clone(&most), Arc::clone(&left));
            async move {
                loop {
                    let (mut stream, _) = listener.accept().await.expect("a connection");
                    startup(&mut stream).await;
                    let mut sent = 0;
                    let mut next = stream.write_all(&begin).await;
                    while next.is_ok() && sent <= MOST {
                        next = stream.write_all(&endless).await;
                        sent += endless.len();
                    }
                    most.fetch_max(sent, Ordering::Relaxed);
                    left.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        says(at, "").await;
        let end = std::time::Instant::now() + READY;
        while left.load(Ordering::Relaxed) < 2 {
            assert!(std::time::Instant::now() < end, "it never leaves");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let most = most.load(Ordering::Relaxed);
        assert!(most <= MOST, "{most} bytes");
        sending.abort();
    }
}

// G174
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_that_take_more_than_an_answer_may_have_are_read_and_listed() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    let records = records(patient(&server)).await;
    // Compressed they are small in the database.
    let body = vec![7; 1024 * 1024];
    let all: Vec<_> = (100..180).map(|lock| format!("lock {lock}")).collect();
    for lock in &all {
        let commit = Commit {
            body: body.clone(),
            ..first(lock)
        };
        applied(records.commit(commit).await);
    }
    let listed = records.list("lock", None, 256).await.expect("they are listed");
    let names: Vec<_> = listed.iter().map(|(name, _, _)| name.as_str()).collect();
    assert_eq!(names, all);
    assert_eq!(records.list("lock", None, 70).await.expect("they are listed").len(), 70);
    let (reads, read) = (all.iter().map(|lock| name(lock)).collect::<Vec<_>>(), &records);
    let reads = join_all(reads.iter().map(|lock| async move { read.read(lock, None).await })).await;
    for found in reads {
        let FoundRoot::Root(root) = found.expect("it is read").root else {
            panic!("it is there");
        };
        assert_eq!(root.body.len(), body.len());
    }
}
