//! `fencepost watch --prefix`.

use std::time::Duration;

use serde_json::Value;

use crate::cli::program::{Fixture, Running, content, text};
use crate::cli::server::until;

#[test]
fn a_prefix_shows_the_changes_of_its_locks_also_of_those_that_come_later() {
    let fixture = Fixture::start();
    let first = fixture.held("default/reports/a", "me");
    fixture.held("default/other", "me");
    let file = fixture.path("seen");
    let mut watch = fixture.command(["watch", "--prefix", "default/reports/"]);
    watch.stdout(std::fs::File::create(&file).expect("a file"));
    let _watch = Running::new(watch);
    let seen = |words: &str| until(words, || content(&file).contains(words).then_some(()));
    seen("default/reports/a: 1 holds, 0 wait\n");
    fixture.said(&["release", first["leaseId"].as_str().expect("an id")]);
    seen("  released  me with token ");
    let second = fixture.held("default/reports/b", "me");
    seen("default/reports/b: 1 holds, 0 wait\n");
    fixture.said(&["release", second["leaseId"].as_str().expect("an id")]);
    fixture.held("default/reports/a", "you");
    seen("  granted   you with token ");
    let lines = content(&file);
    assert!(
        lines.lines().all(|line| line.starts_with("default/reports/")),
        "{lines}"
    );
}

#[test]
fn a_lock_that_left_the_list_is_no_longer_watched_and_shown_anew_when_it_returns() {
    let fixture = Fixture::start();
    let file = fixture.path("seen");
    let mut watch = fixture.command(["watch", "--prefix", "default"]);
    watch.stdout(std::fs::File::create(&file).expect("a file"));
    let _watch = Running::new(watch);
    let states = || content(&file).matches("default/a: 1 holds, 0 wait\n").count();
    let grants = || content(&file).matches("  granted   me").count();
    // While it is watched, its return is a change and no state.
    for tries in 1..=5 {
        let held = fixture.held("default/a", "me");
        until("it is shown", || (states() + grants() == tries).then_some(()));
        fixture.said(&["release", held["leaseId"].as_str().expect("an id")]);
        if states() == 2 {
            return;
        }
        std::thread::sleep(Duration::from_secs(6));
    }
    panic!("it is watched all the time: {}", content(&file));
}

#[test]
fn each_line_of_json_names_its_lock() {
    let fixture = Fixture::start();
    fixture.held("default/a", "me");
    let held = fixture.held("default/b", "me");
    let file = fixture.path("seen");
    let mut watch = fixture.command(["watch", "--prefix", "default", "-o", "json"]);
    watch.stdout(std::fs::File::create(&file).expect("a file"));
    let _watch = Running::new(watch);
    until("two states", || (content(&file).lines().count() == 2).then_some(()));
    fixture.said(&["release", held["leaseId"].as_str().expect("an id")]);
    until("a change", || {
        content(&file).contains("CHANGE_KIND_RELEASED").then_some(())
    });
    let lines = content(&file);
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let last = lines.last().expect("a change");
    assert_eq!((&last["namespace"], &last["name"]), (&"default".into(), &"b".into()));
    assert_eq!(last["change"]["kind"], "CHANGE_KIND_RELEASED");
}

#[test]
fn a_lock_or_a_prefix_is_named() {
    let fixture = Fixture::start();
    for arguments in [&["watch"][..], &["watch", "default/a", "--prefix", "default"]] {
        let output = fixture.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    }
    let output = fixture.run(&["watch", "--prefix", "nowhere"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}
