//! What the tests and benches share: the program as a process, real stores, networks and clocks that fail, and clients.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use core_common::{built, kept};
pub use core_common::{
    claims, clients, dice, ensemble, record_contract, record_steps, record_store, seeded, short_leases, storm,
};

pub mod asks;
pub mod calls;
pub mod certificates;
pub mod clock_shim;
pub mod clock_steps;
pub mod crowd;
pub mod distance;
pub mod etcd;
pub mod faults;
pub mod forwarder;
pub mod killed;
pub mod moved;
pub mod mysql;
pub mod ports;
pub mod postgres;
pub mod record_faults;
pub mod redis;
pub mod register;
pub mod server;
pub mod session_client;
pub mod signals;
pub mod small_disk;
pub mod standstill;
pub mod wild_clock;
pub mod zookeeper;

/// Passes a test over where what it needs is missing, which says so itself at home and fails in CI.
#[macro_export]
macro_rules! skip_unless {
    ($is_there:expr) => {
        if !$is_there {
            return;
        }
    };
}

/// Servers that all tests of this process share. They end with the process: the kernel kills them
/// when the thread that started them dies.
pub fn shared<T: Send + Sync>(place: &'static OnceLock<T>, start: impl FnOnce() -> T + Send + 'static) -> &'static T {
    static STARTING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if place.get().is_none() {
        let (done, started) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            done.send(start()).ok();
            loop {
                std::thread::park();
            }
        });
        place.get_or_init(|| started.recv().expect("the servers start"));
    }
    place.get().expect("they have started")
}

/// Waits for a condition.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    const READY: Duration = Duration::from_secs(60);
    let end = Instant::now() + READY;
    while !is_so() {
        assert!(Instant::now() < end, "not within {READY:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a program is there. Without it a test is skipped at home and fails in CI.
pub fn is_there(is_there: bool, program: &str) -> bool {
    assert!(is_there || std::env::var_os("CI").is_none(), "there is no {program}");
    if !is_there {
        println!("skipped: there is no {program}");
    }
    is_there
}

/// Prints the end of a server's log while its test fails, so that the failure says why.
fn tell_log(server: &str, log: impl FnOnce() -> String) {
    const LINES: usize = 200;
    if std::thread::panicking() {
        let log = log();
        let omitted = log.lines().count().saturating_sub(LINES);
        println!("the log of {server}, without its first {omitted} lines:");
        log.lines().skip(omitted).for_each(|line| println!("{line}"));
    }
}

/// The file `log` of a server's folder.
fn log_in(folder: &tempfile::TempDir) -> String {
    let log = std::fs::read(folder.path().join("log")).unwrap_or_default();
    String::from_utf8_lossy(&log).into_owned()
}
