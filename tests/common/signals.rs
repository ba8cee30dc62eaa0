//! Signals to processes.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Sends a signal to processes, of which some may have ended.
///
/// After `STOP` all their threads stand still when this returns. The kernel wakes one thread of a process for it, which
/// stops the others when it runs: on a busy machine they go on for milliseconds.
pub fn send(signal: &str, processes: &[u32]) {
    let ids = processes.iter().map(u32::to_string);
    let sent = Command::new("kill")
        .args(["-s", signal])
        .args(ids)
        .stderr(Stdio::null())
        .status();
    sent.expect("kill runs");
    if signal == "STOP" {
        let end = Instant::now() + Duration::from_secs(30);
        while !processes.iter().all(|process| stands_still(*process)) {
            assert!(Instant::now() < end, "{processes:?} do not stand still");
            sleep(Duration::from_millis(1));
        }
    }
}

/// Whether no thread of a process runs.
fn stands_still(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return true;
    };
    let stats = threads
        .flatten()
        .map(|thread| std::fs::read_to_string(thread.path().join("stat")));
    stats.flatten().all(|stat| {
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_some_and(|state| "TtZX".contains(state))
    })
}
