//! `fencepost lock`: what the command gets, what comes out of it, and what it leaves behind.

use std::time::{Duration, Instant};

use crate::cli::program::{Fixture, lives, text, until_written};
use crate::cli::server::until;

/// The arguments that run a shell's line under the lock `default/a`.
fn under<'a>(flags: &[&'a str], line: &'a str) -> Vec<&'a str> {
    [&["lock", "default/a"], flags, &["--", "sh", "-c", line]].concat()
}

#[test]
fn the_command_knows_its_lease() {
    let fixture = Fixture::start();
    let line = "echo $FENCEPOST_NAMESPACE $FENCEPOST_LOCK; \"$0\" check-token default/a $FENCEPOST_TOKEN >/dev/null && \
                \"$0\" renew >/dev/null && echo held";
    let arguments = [under(&[], line), vec![crate::cli::program::PROGRAM]].concat();
    assert_eq!(fixture.said(&arguments), "default a\nheld\n");
    assert_eq!(fixture.count("default/a", "holderCount"), 0);
}

#[test]
fn its_exit_code_and_the_signal_that_ended_it_pass_through() {
    let fixture = Fixture::start();
    for (line, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
    ] {
        assert_eq!(fixture.run(&under(&[], line)).status.code(), Some(code), "{line}");
    }
}

#[test]
fn what_it_prints_and_reads_passes_through() {
    let fixture = Fixture::start();
    let input = fixture.path("input");
    std::fs::write(&input, "in\n").expect("a file");
    let mut command = fixture.command(under(&[], "cat; echo err >&2"));
    let output = command
        .stdin(std::fs::File::open(&input).expect("a file"))
        .output()
        .expect("it runs");
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("in\n".into(), "err\n".into())
    );
}

#[test]
fn what_cannot_be_run_has_its_codes_and_leaves_the_lock_free() {
    let fixture = Fixture::start();
    for (command, code) in [("/nowhere/nothing", 127), ("/etc/passwd", 126)] {
        assert_eq!(
            fixture.run(&["lock", "default/a", "--", command]).status.code(),
            Some(code),
            "{command}"
        );
        assert_eq!(fixture.count("default/a", "holderCount"), 0);
    }
    let nowhere = fixture.run(&["lock", "nowhere/a", "--", "true"]);
    assert_eq!(
        nowhere.status.code(),
        Some(125),
        "its own failures are not taken for the command's"
    );
    fixture.held("default/a", "me");
    assert_eq!(
        fixture.run(&["lock", "default/a", "--", "true"]).status.code(),
        Some(120)
    );
    assert_eq!(
        fixture
            .run(&["lock", "default/a", "--wait", "200ms", "--", "true"])
            .status
            .code(),
        Some(121)
    );
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let fixture = Fixture::start();
    for (signal, code) in [("USR1", 10), ("TERM", 11), ("HUP", 12), ("INT", 13)] {
        let file = fixture.path(signal);
        let line = format!(
            "trap 'exit {code}' {signal}; echo ready > {}; while :; do sleep 0.05; done",
            file.display()
        );
        let mut running = fixture.begin(&under(&[], &line));
        until_written(&file);
        running.signal(signal);
        assert_eq!(running.end(), Some(code), "{signal}");
    }
}

#[test]
fn one_that_is_told_to_end_while_it_waits_leaves_the_queue() {
    let fixture = Fixture::start();
    fixture.held("default/a", "me");
    let mut waiting = fixture.begin(&under(&["--wait", "60s"], "true"));
    until("it waits", || {
        (fixture.count("default/a", "waiterCount") == 1).then_some(())
    });
    waiting.signal("TERM");
    assert_eq!(waiting.end(), Some(143));
    until("it has left", || {
        (fixture.count("default/a", "waiterCount") == 0).then_some(())
    });
}

#[test]
fn what_the_command_leaves_running_is_ended_before_the_lock_is_given_back() {
    let fixture = Fixture::start();
    let began = Instant::now();
    let patient = ["--ttl", "1h", "--grace", "10m"];
    let obeys = fixture.said(&under(&patient, "sleep 1000 >/dev/null 2>&1 & echo $!"));
    assert!(!lives(obeys.trim()), "{obeys}");
    // It does not wait for another process to take the exit status.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    // Its processes ignore TERM from their beginning.
    let adopted =
        "trap '' TERM; (sleep 0.3; read _ _ _ parent _ </proc/self/stat; test $parent = $PPID && echo adopted) &";
    assert_eq!(fixture.said(&under(&[], adopted)).trim(), "adopted");
    let line = "trap '' TERM; (while :; do sleep 0.1; done) >/dev/null 2>&1 & echo $!";
    let stubborn = fixture.said(&under(&["--grace", "200ms"], line));
    assert!(!lives(stubborn.trim()), "{stubborn}");
}

#[test]
fn the_lease_is_renewed_for_as_long_as_the_command_runs() {
    let fixture = Fixture::start();
    let line = "sleep 5; \"$0\" check-token default/a $FENCEPOST_TOKEN";
    let arguments = [under(&["--ttl", "3s"], line), vec![crate::cli::program::PROGRAM]].concat();
    let said = fixture.said(&arguments);
    assert!(said.starts_with("held by me@"), "{said}");
}

#[test]
fn shared_locks_and_semaphores_run_side_by_side() {
    let fixture = Fixture::start();
    for flags in [&["--shared"][..], &["--permits", "1", "--limit", "2"]] {
        let file = fixture.path(&flags.len().to_string());
        let line = format!("echo ready > {}; sleep 1000", file.display());
        let mut first = fixture.begin(&under(flags, &line));
        until_written(&file);
        assert_eq!(fixture.run(&under(flags, "true")).status.code(), Some(0), "{flags:?}");
        first.signal("TERM");
        assert_eq!(first.end(), Some(143));
    }
}

#[test]
fn the_command_runs_under_several_locks_or_under_none() {
    let fixture = Fixture::start();
    let locks = ["lock", "default/b", "default/a", "--wait", "30s"];
    let line = "echo \"$FENCEPOST_LOCK\"; for lock in b a; do \"$0\" get default/$lock -o json; done; echo \"$FENCEPOST_TOKEN\"";
    let said = fixture.said(&[&locks[..], &["--", "sh", "-c", line, crate::cli::program::PROGRAM]].concat());
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["b", "a"], "in the order of the arguments");
    for (state, token) in lines[2..4].iter().zip(&lines[4..]) {
        let state: serde_json::Value = serde_json::from_str(state).expect("one answer in JSON");
        assert_eq!(state["holders"][0]["fencingToken"].as_str(), Some(*token));
    }
    for lock in ["default/a", "default/b"] {
        assert_eq!(fixture.count(lock, "holderCount"), 0);
    }
    fixture.held("default/b", "other");
    let tried = fixture.run(&["lock", "default/a", "default/b", "--", "touch", "never"]);
    assert_eq!(tried.status.code(), Some(120), "{}", text(&tried.stderr));
    assert_eq!(fixture.count("default/a", "holderCount"), 0);
    // Which of them is held only the list shows.
    assert!(
        text(&tried.stderr).contains("fencepost list default"),
        "{}",
        text(&tried.stderr)
    );
    for locks in [["default/a", "other/b"], ["default/a", "default/a"]] {
        let refused = fixture.run(&["lock", locks[0], locks[1], "--", "true"]);
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    }
}

#[test]
fn an_interrupt_ends_it_by_the_signal_itself_as_shells_expect() {
    let fixture = Fixture::start();
    // One that ends the command, and one that comes while it waits for the lock.
    let file = fixture.path("ready");
    let line = format!("echo ready > {}; exec sleep 1000", file.display());
    let mut running = fixture.begin(&under(&[], &line));
    until_written(&file);
    running.signal("INT");
    assert_eq!(running.end_signal(), Some(2));
    until("it is released", || {
        (fixture.count("default/a", "holderCount") == 0).then_some(())
    });
    fixture.held("default/a", "me");
    let mut waiting = fixture.begin(&under(&["--wait", "60s"], "true"));
    until("it waits", || {
        (fixture.count("default/a", "waiterCount") == 1).then_some(())
    });
    waiting.signal("INT");
    assert_eq!(waiting.end_signal(), Some(2));
    until("it has left", || {
        (fixture.count("default/a", "waiterCount") == 0).then_some(())
    });
}

#[test]
fn a_lock_stays_held_at_least_for_the_time_that_was_asked_for() {
    let fixture = Fixture::start();
    let began = Instant::now();
    let line = "echo \"$FENCEPOST_TOKEN\"; exit 3";
    let ended = fixture.run(&under(&["--ttl", "1s", "--at-least", "4s"], line));
    assert_eq!(ended.status.code(), Some(3), "{}", text(&ended.stderr));
    assert_eq!(text(&ended.stderr), "");
    let state = fixture.json(&["get", "default/a"]);
    assert_eq!(state["holders"][0]["fencingToken"], text(&ended.stdout).trim());
    until("it has expired", || {
        (fixture.count("default/a", "holderCount") == 0).then_some(())
    });
    let held = began.elapsed();
    assert!(held >= Duration::from_secs(4), "{held:?}");
    // Nobody renews it: it would be held for its TTL from the end on.
    assert!(held < Duration::from_secs(12), "{held:?}");
}

#[test]
fn a_lock_whose_lease_lasts_longer_is_released_when_that_time_is_over() {
    let fixture = Fixture::start();
    let began = Instant::now();
    fixture.said(&under(&["--ttl", "1h", "--at-least", "1s"], "true"));
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(fixture.count("default/a", "holderCount"), 0);
    // A signal ends the wait, and not the lease.
    let mut waiting = fixture.begin(&under(&["--ttl", "30s", "--at-least", "20s"], "echo done"));
    until("it is held", || {
        (fixture.count("default/a", "holderCount") == 1).then_some(())
    });
    std::thread::sleep(Duration::from_secs(1));
    waiting.signal("TERM");
    assert_eq!(waiting.end(), Some(0));
    assert_eq!(fixture.count("default/a", "holderCount"), 1);
}

#[test]
fn the_loss_of_one_of_several_locks_ends_the_command() {
    let fixture = Fixture::start();
    let started = fixture.path("started");
    let line = format!("echo \"$FENCEPOST_TOKEN\" >{}; exec sleep 600", started.display());
    let mut running = fixture.begin(&["lock", "default/a", "default/b", "--ttl", "6s", "--", "sh", "-c", &line]);
    until("it runs", || {
        let tokens = std::fs::read_to_string(&started).unwrap_or_default();
        (tokens.lines().count() == 2).then_some(())
    });
    let tokens = until_written(&started);
    let second = tokens.lines().nth(1).expect("two tokens");
    fixture.said(&["force-release", "default/b", second]);
    assert_eq!(running.end(), Some(122));
    assert_eq!(fixture.count("default/a", "holderCount"), 0);
}
