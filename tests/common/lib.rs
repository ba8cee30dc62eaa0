//! What the tests and benches share: the program as a process, real stores, networks and clocks that fail, and clients.

use std::path::PathBuf;

pub mod asks;
pub mod calls;
pub mod certificates;
pub mod claims;
pub mod clients;
pub mod clock_shim;
pub mod clock_steps;
pub mod crowd;
pub mod dice;
pub mod distance;
#[cfg(feature = "tree")]
pub mod ensemble;
pub mod etcd;
pub mod forwarder;
pub mod killed;
pub mod moved;
pub mod mysql;
pub mod ports;
pub mod postgres;
#[cfg(feature = "record")]
pub mod record_contract;
#[cfg(feature = "record")]
pub mod record_faults;
#[cfg(feature = "record")]
pub mod record_steps;
#[cfg(feature = "record")]
pub mod record_store;
pub mod redis;
pub mod register;
pub mod seeded;
pub mod server;
pub mod session_client;
pub mod short_leases;
pub mod signals;
pub mod small_disk;
pub mod standstill;
pub mod storm;
pub mod wild_clock;
pub mod zookeeper;

/// The folder of the profile that this test was built for, `target/debug`, which has its program and `deps`.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("it runs");
    test.ancestors().nth(2).expect("it is below `deps`").to_owned()
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

/// What tests keep from one run to the next: `CARGO_TARGET_TMPDIR`, which Cargo names to the tests alone.
fn kept(name: &str) -> PathBuf {
    let folder = built().with_file_name("tmp").join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}
