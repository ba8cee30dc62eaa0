//! Runs that repeat: their time is simulated, and all their random numbers follow from a seed and a turn.
//!
//! The seed gives ids, and the order of hash maps, which the system's random numbers decide. Tokio's own choices (which
//! of several tasks wakes first) follow from those and from how many runtimes the process has begun before: the turn.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{LazyLock, Once};
use std::thread;

use parking_lot::Mutex;
use tokio::runtime::Builder;

/// Is set in a process that has `random.c`.
const IS_SEEDED: &str = "FENCEPOST_SEEDED";
/// How many runs have begun.
static TURN: Mutex<u64> = Mutex::new(0);

/// A number that the environment gives.
pub fn given(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

/// Runs this to its end in a thread of its own, on paused time.
///
/// The test binary begins anew at the first call, with `random.c`. If the environment has a `TURN`, that is the first.
///
/// # Errors
/// What its panic says, with the seed and the turn.
pub fn run<T: Send, F: Future<Output = T>>(seed: u64, run: impl FnOnce() -> F + Send) -> Result<T, String> {
    begin_anew();
    let own = Mutex::new(0);
    let done = thread::scope(|scope| {
        let named = thread::Builder::new().name(seed.to_string());
        let runs = || {
            let runtime = {
                let mut turn = TURN.lock();
                *turn += 1;
                *own.lock() = *turn;
                let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
                let runtime = runtime.expect("a runtime");
                // The first entry of a thread counts as a runtime does.
                runtime.block_on(async {});
                runtime
            };
            runtime.block_on(run())
        };
        named.spawn_scoped(scope, runs).expect("a thread").join()
    });
    done.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("SEED={seed} TURN={}: {}", own.lock(), text.unwrap_or("a panic"))
    })
}

/// Begins the test binary anew with `random.c`, if it has none. What ran before runs twice, so a test that sorts before all
/// others calls it.
pub fn begin_anew() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        if env::var_os(IS_SEEDED).is_none() {
            let failed = Command::new(env::current_exe().expect("it runs"))
                .args(env::args_os().skip(1))
                .env("LD_PRELOAD", &*LIBRARY)
                .env(IS_SEEDED, "1")
                .exec();
            panic!("the test does not begin anew: {failed}");
        }
        for _ in 1..given("TURN").unwrap_or(1) {
            *TURN.lock() += 1;
            drop([Builder::new_current_thread(), Builder::new_current_thread()]);
        }
    });
}

/// `random.c`, compiled.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = crate::kept("random");
    // Another test may compile it, too.
    let (own, library) = (
        folder.join(format!("{}.so", std::process::id())),
        folder.join("random.so"),
    );
    let built = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(&own)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/random.c"))
        .output()
        .expect("cc runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    std::fs::rename(own, &library).expect("the library");
    library
});
