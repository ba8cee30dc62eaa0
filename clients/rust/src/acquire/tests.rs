//! What the log and the spans tell.

use std::io;

use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::timeout;
use tracing::subscriber::{DefaultGuard, set_default};
use tracing_subscriber::fmt::format::FmtSpan;

use super::*;
use crate::clock;
use crate::tests::client;

const PATIENCE: Duration = Duration::from_secs(10);

/// What this thread logs.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn of_this_thread() -> (Self, DefaultGuard) {
        let lines = Self::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_span_events(FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(move || writer.clone());
        (lines, set_default(subscriber.finish()))
    }

    fn with(&self, part: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().clone()).expect("text");
        text.lines()
            .filter(|line| line.contains(part))
            .map(Into::into)
            .collect()
    }
}

#[tokio::test]
async fn an_acquire_is_a_span_and_a_connection_that_is_replaced_a_line() {
    let (lines, _logging) = Lines::of_this_thread();
    let (client, listener, address) = client().await;
    drop(listener);
    let refused = client.acquire("default", "a", "me").lease().await;
    assert!(matches!(refused, Err(Error::Unreachable { .. })), "{refused:?}");
    let several = client.acquire_all("default", &["a", "b"], "me").guards().await;
    assert!(several.is_err());
    let replaced = format!("connection replaced from={address} to={address} why=no server answers at {address}");
    assert!(!lines.with(&replaced).is_empty(), "{:?}", lines.with(""));
    for locks in ["a", "a,b"] {
        let span =
            format!("fencepost.acquire{{namespace=\"default\" locks=\"{locks}\" wait_s=0.0 error=no server answers");
        let closed = lines.with(&span).into_iter().filter(|line| line.contains("close"));
        assert_eq!(closed.count(), 1, "{:?}", lines.with(""));
    }
}

#[tokio::test]
async fn a_loss_is_one_line_also_where_the_guard_ends_at_once_or_notices_it_first() {
    const TTL: Duration = Duration::from_millis(100);
    let (lines, _logging) = Lines::of_this_thread();
    let (client, _listener, _) = client().await;
    let guard = |name: &str| {
        let lease = Lease {
            lease_id: "secret".into(),
            name: name.into(),
            ttl: Some(wire(TTL)),
            ..Lease::default()
        };
        LockGuard::new(Arc::clone(&client.keep_alive), lease, clock::since_boot())
    };
    let told = |name: &str| {
        let line = format!("lease lost namespace=\"\" lock=\"{name}\" token=0 cause=\"unrenewed\"");
        lines.with(&line).len()
    };
    // So many that the tasks of some see the loss and the end at once.
    let (dropped, mut last) = (Vec::from([(); 200].map(|()| guard("dropped"))), guard("last"));
    guard("released").release().await.expect("another guard has its lease");
    while last.renewed().await.is_some() {}
    drop(dropped);
    // No task runs before its end.
    let late = guard("late");
    yield_now().await;
    std::thread::sleep(TTL);
    assert!(late.release().await.is_err());
    assert_eq!(told("late"), 1);
    assert!(last.release().await.is_err());
    let all_told = async {
        while lines.with("lease lost").len() < 202 {
            yield_now().await;
        }
    };
    timeout(PATIENCE, all_told).await.expect("202 lines");
    assert_eq!((told("dropped"), told("last"), told("released")), (200, 1, 0));
    assert!(lines.with("secret").is_empty());
}

#[tokio::test]
async fn a_wait_has_another_connection_than_renewals_and_releases() {
    let (client, listener, _) = client().await;
    // A connection without answers is replaced after 6 s.
    let accepted = async || timeout(PATIENCE / 3, listener.accept()).await.expect("a connection");
    let _first = accepted().await.expect("a socket");
    let wait = tokio::spawn(client.acquire("default", "a", "me").wait(PATIENCE).lease());
    let _second = accepted().await.expect("a socket");
    wait.abort();
}
