//! A MySQL whose redo log is disabled: a MariaDB, before which a proxy lets the server say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fencepost::backend::Health;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{records, settings_of};
use crate::record_steps::{applied, first, healthy, serves};
use crate::servers::{MariaDb, available};
use crate::tables::is_refused;

/// What a server is asked.
const ASKED: &[u8] = b"SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_enabled'";
/// What the server behind the proxy is asked in its place, padded to the same length.
const SAYS: [&str; 2] = [
    "SELECT 'Innodb_redo_log_enabled', 'ON'",
    "SELECT 'Innodb_redo_log_enabled', 'OFF'",
];
const ON: usize = 0;
const DISABLED: usize = 1;

/// A packet with its header.
async fn packet(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let mut packet = vec![0; 4];
    from.read_exact(&mut packet).await?;
    let length = usize::from(packet[0]) | usize::from(packet[1]) << 8 | usize::from(packet[2]) << 16;
    packet.resize(4 + length, 0);
    from.read_exact(&mut packet[4..]).await?;
    Ok(packet)
}

/// A server that says of its redo log what the number tells. Returns its address.
async fn server(behind: &MariaDb, says: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, behind) = (listener.local_addr().expect("an address"), behind.address());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (behind, says) = (behind.clone(), Arc::clone(&says));
            tokio::spawn(async move {
                let (mut answers, mut server) = TcpStream::connect(behind).await?.into_split();
                let (mut commands, mut caller) = client.into_split();
                tokio::spawn(async move { copy(&mut answers, &mut caller).await });
                while let Ok(mut packet) = packet(&mut commands).await {
                    while let Some(at) = packet.windows(ASKED.len()).position(|part| part == ASKED) {
                        let text = format!("{:width$}", SAYS[says.load(Ordering::Acquire)], width = ASKED.len());
                        packet[at..at + ASKED.len()].copy_from_slice(text.as_bytes());
                    }
                    server.write_all(&packet).await?;
                }
                std::io::Result::Ok(())
            });
        }
    });
    address.to_string()
}

fn is_disabled(health: &Health) -> bool {
    matches!(health, Health::Unavailable { reason } if reason.contains("has its redo log disabled"))
}

// G178
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_commit_is_answered_while_the_redo_log_is_disabled() {
    common::skip_unless!(available());
    let (behind, says) = (MariaDb::started(&[]), Arc::new(AtomicUsize::new(ON)));
    let address = server(&behind, Arc::clone(&says)).await;
    let records = records(settings_of(vec![address])).await;
    for round in 0..5 {
        applied(records.commit(first(&format!("{round}"))).await);
        says.store(DISABLED, Ordering::Release);
        // The next commit comes before the look of each second.
        let refused = records.commit(first(&format!("refused {round}"))).await;
        assert!(refused.is_err(), "unsafe: {refused:?}");
        says.store(ON, Ordering::Release);
        serves(&*records).await;
    }
    says.store(DISABLED, Ordering::Release);
    healthy(&*records, is_disabled).await;
    // New connections replace those that the look has closed.
    let (mut health, end) = (records.health(), Instant::now() + Duration::from_secs(3));
    for attempt in 0.. {
        let refused = records.commit(first(&format!("again {attempt}"))).await;
        assert!(refused.is_err(), "unsafe: {refused:?}");
        let health = health.borrow_and_update().clone();
        assert!(is_disabled(&health), "{health:?}");
        if Instant::now() > end {
            break;
        }
    }
}

// G128
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_redo_log_is_disabled_is_refused_before_it_is_changed() {
    common::skip_unless!(available());
    let behind = MariaDb::started(&[]);
    let address = server(&behind, Arc::new(AtomicUsize::new(DISABLED))).await;
    is_refused(settings_of(vec![address]), "has its redo log disabled").await;
    assert_eq!(behind.sql("SHOW TABLES"), "");
}
