//! `fencepost campaign` and `fencepost observe`.

use crate::cli::program::{Fixture, Running, content, until_written};
use crate::cli::server::until;

/// The arguments that run a shell's line while the caller leads `default/e`.
fn leading<'a>(flags: &[&'a str], line: &'a str) -> Vec<&'a str> {
    [&["campaign", "default/e"], flags, &["--", "sh", "-c", line]].concat()
}

#[test]
fn the_command_runs_while_its_candidate_leads_and_shows_its_value() {
    let fixture = Fixture::start();
    let line = "\"$0\" get default/e --output json; echo $FENCEPOST_TOKEN $FENCEPOST_LOCK";
    let arguments = leading(&["--value", "10.0.0.1:80", "--candidate", "me", "--ttl", "1h"], line);
    let said = fixture.said(&[arguments, vec![crate::cli::program::PROGRAM]].concat());
    let (state, last) = said.trim_end().rsplit_once('\n').expect("two lines");
    let state: serde_json::Value = serde_json::from_str(state).expect("one answer in JSON");
    let holder = &state["holders"][0];
    assert_eq!(
        (holder["owner"].as_str(), holder["metadata"]["value"].as_str()),
        (Some("me"), Some("10.0.0.1:80"))
    );
    assert_eq!(last, format!("{} e", holder["fencingToken"].as_str().expect("a token")));
    assert_eq!(fixture.count("default/e", "holderCount"), 0, "it resigned");
}

#[test]
fn a_candidate_that_does_not_wait_exits_as_the_lock_is_held() {
    let fixture = Fixture::start();
    fixture.held("default/e", "other");
    assert_eq!(fixture.run(&leading(&[], "true")).status.code(), Some(120));
    assert_eq!(
        fixture.run(&leading(&["--wait", "1s"], "true")).status.code(),
        Some(121)
    );
}

#[test]
fn observers_are_shown_each_leader() {
    let fixture = Fixture::start();
    let file = fixture.path("seen");
    let mut observe = fixture.command(["observe", "default/e", "--output", "json"]);
    observe.stdout(std::fs::File::create(&file).expect("a file"));
    let _observing = Running::new(observe);
    until_written(&file);
    let seen = |lines: usize| {
        until("the observer is told", || {
            let text = content(&file);
            (text.ends_with('\n') && text.lines().count() >= lines).then_some(())
        });
        let last = content(&file).lines().last().map(ToOwned::to_owned).expect("a line");
        serde_json::from_str::<serde_json::Value>(&last).expect("JSON")["leader"].clone()
    };
    assert!(seen(1).is_null());
    let go = fixture.path("go");
    let line = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    let mut leads = fixture.begin(&leading(&["--value", "first", "--candidate", "a"], &line));
    let leader = seen(2);
    assert_eq!(
        (leader["candidate"].as_str(), leader["value"].as_str()),
        (Some("a"), Some("first"))
    );
    std::fs::write(&go, "").expect("a file");
    assert_eq!(leads.end(), Some(0));
    assert!(seen(3).is_null());
}
