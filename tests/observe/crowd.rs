//! The HTTP port when many ask, and most of them nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::observe::fixture::{Fixture, eventually};

/// More than the port keeps open.
const CROWD: usize = 100;
/// What a kubelet waits by default.
const SOON: Duration = Duration::from_secs(1);

/// Keeps a connection open and comes again when it is closed. It says nothing, or asks now and then.
fn stay(address: &str, asks: bool, over: &AtomicBool, made: &AtomicU64) {
    while !over.load(Ordering::Relaxed) {
        let Ok(mut socket) = TcpStream::connect(address) else {
            continue;
        };
        made.fetch_add(1, Ordering::Relaxed);
        let _ = socket.set_read_timeout(Some(Duration::from_millis(200)));
        while !over.load(Ordering::Relaxed) {
            if asks && socket.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").is_err() {
                break;
            }
            match socket.read(&mut [0; 4096]) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => break,
            }
            thread::sleep(Duration::from_millis(200));
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// Whether a probe has its answer soon.
fn is_answered(address: &str) -> bool {
    let began = Instant::now();
    let asked = || {
        let mut socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(10 * SOON))?;
        socket.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).map(|_| answer)
    };
    let answer: Result<String, std::io::Error> = asked();
    answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 ")) && began.elapsed() < SOON
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_stay_open_keep_no_probe_waiting() {
    let fixture = Fixture::start("[namespaces.a]\nembedded.path = ':memory:'\n").await;
    let address = fixture.server.metrics.clone().expect("an HTTP port");
    for asks in [false, true] {
        let (over, made) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let crowd = (0..CROWD).map(|_| {
            let (address, over, made) = (address.clone(), over.clone(), made.clone());
            thread::spawn(move || stay(&address, asks, &over, &made))
        });
        let crowd: Vec<_> = crowd.collect();
        eventually("all are there", || made.load(Ordering::Relaxed) >= CROWD as u64).await;
        // A slow machine may be late now and then: a kubelet asks three times.
        let answered = (0..9).filter(|_| is_answered(&address)).count();
        over.store(true, Ordering::Relaxed);
        for one in crowd {
            one.join().expect("it ended");
        }
        assert!(
            answered >= 5,
            "asks: {asks}: {answered} of 9 probes were answered within {SOON:?}"
        );
    }
}
