//! Many shells at once.

use std::time::Duration;

use crate::cli::program::{Fixture, Running, content};

/// How many add to the counter.
const SHELLS: usize = 200;

// G166
#[test]
fn two_hundred_shells_add_to_a_counter_and_none_is_lost() {
    let fixture = Fixture::start();
    let file = fixture.path("counter");
    std::fs::write(&file, "0\n").expect("a file");
    let add = format!("n=$(cat {0}); echo $((n + 1)) > {0}", file.display());
    let mut shells: Vec<Running> = (0..SHELLS)
        .map(|_| fixture.begin(&["lock", "default/counter", "--wait", "10m", "--", "sh", "-c", &add]))
        .collect();
    // Each has to be waited for, for as long as a slow machine takes with all of them.
    let deadline = std::time::Instant::now() + Duration::from_secs(300);
    for shell in &mut shells {
        let code = loop {
            if let Some(status) = shell.0.try_wait().expect("a child") {
                break status.code();
            }
            assert!(std::time::Instant::now() < deadline, "a shell does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(code, Some(0));
    }
    assert_eq!(content(&file), format!("{SHELLS}\n"));
}
