//! `fencepost top`, and what the width of a terminal does to tables.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::cli::program::{Fixture, PROGRAM, Running, shape, text};
use crate::cli::pty::{Pty, uncoloured};
use crate::cli::server::until;

/// Waiters of a lock; they leave in the end.
fn waiters(fixture: &Fixture, lock: &str, count: u64) -> Vec<Running> {
    let begun = (0..count).map(|number| {
        let owner = format!("waiter-{number}");
        let mut command = fixture.command(["acquire", lock, "--owner", &owner, "--wait", "60s"]);
        command.stdout(std::process::Stdio::null());
        Running::new(command)
    });
    let begun: Vec<Running> = begun.collect();
    until("all wait", || {
        (fixture.count(lock, "waiterCount") == count).then_some(())
    });
    begun
}

/// Three locks with no, one and two waiters.
fn busy(fixture: &Fixture) -> Vec<Running> {
    for lock in ["default/a", "default/b", "default/c"] {
        fixture.held(lock, "me");
    }
    let mut all = waiters(fixture, "default/b", 1);
    all.extend(waiters(fixture, "default/c", 2));
    all
}

#[test]
fn one_look_shows_the_namespaces_the_longest_queues_and_the_longest_holds() {
    let fixture = Fixture::start();
    let _waiters = busy(&fixture);
    let said = fixture.said(&["top", "--once"]);
    assert_eq!(
        fixture.said(&["top"]).lines().count(),
        said.lines().count(),
        "a pipe gets one look"
    );
    let tables: Vec<&str> = said.split("\n\n").collect();
    let [namespaces, queues, holds] = tables.as_slice() else {
        panic!("three tables: {said}")
    };
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        cells(namespaces.lines().next().expect("a header")).join(" "),
        "NAMESPACE STORE LOCKS HOLD WAIT LONGEST QUEUE LONGEST HOLD HEALTH"
    );
    let row = cells(namespaces.lines().nth(1).expect("a row"));
    assert_eq!(row[..6], ["default", "embedded", "3", "3", "3", "2"], "{said}");
    assert_eq!(row.last().map(String::as_str), Some("serving"), "{said}");
    let names = |table: &str| {
        let rows = table.lines().skip(1).map(|row| cells(row)[0].clone());
        rows.collect::<Vec<_>>()
    };
    assert_eq!(names(queues), ["default/c", "default/b"], "{said}");
    assert_eq!(names(holds), ["default/a", "default/b", "default/c"], "{said}");
    let only = fixture.said(&["top", "--once", "default/c"]);
    assert!(only.contains("default/c ") && !only.contains("default/b "), "{only}");
}

#[test]
fn json_is_an_object_in_each_line() {
    let fixture = Fixture::start();
    let _waiters = busy(&fixture);
    let said = fixture.said(&["top", "-o", "json"]);
    let lines: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["type"].as_str()).collect();
    assert_eq!(kinds, ["namespace", "lock", "lock", "lock"], "{said}");
    assert_eq!(
        (
            &lines[0]["lockCount"],
            &lines[0]["waiterCount"],
            &lines[0]["longestQueue"]
        ),
        (&3.into(), &3.into(), &2.into())
    );
    let names: BTreeSet<&str> = lines.iter().filter_map(|line| line["name"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(["a", "b", "c"]), "each once");
    let longest = lines[1]["heldFor"].as_str().expect("a time");
    assert!(shape(longest).ends_with(".000s"), "{said}");
}

#[test]
fn a_terminal_is_shown_the_figures_again_and_again() {
    let fixture = Fixture::start();
    fixture.held("default/one", "me");
    let mut top = Pty::run_sized(&fixture.command(["top", "--interval", "100ms"]), 60, 12);
    top.until_shown("default/one");
    fixture.held(
        "default/two",
        "somebody-with-a-name-that-is-longer-than-the-terminal-is-wide",
    );
    top.until_shown("default/two");
    top.press("\x03");
    assert_eq!(top.running.end(), None, "the key's signal ends it");
    let shown = top.shown();
    for screen in shown.split("\x1b[H").skip(1) {
        let plain = uncoloured(&screen.replace("\x1b[K", "").replace("\x1b[J", ""));
        let lines: Vec<&str> = plain.trim_end_matches(['^', 'C', '\0']).lines().collect();
        assert!(lines.len() <= 12, "{lines:#?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 60), "{lines:#?}");
    }
    assert!(shown.contains('…'), "{shown:?}");
}

/// What the last screen shows.
fn last_screen(top: &Pty) -> String {
    let shown = top.shown();
    shown.rsplit("\x1b[H").next().unwrap_or_default().replace("\x1b[K", "")
}

#[test]
fn a_lock_is_found_opened_and_released_by_force() {
    let fixture = Fixture::start();
    let held = fixture.held("default/one", "first-owner");
    fixture.held("default/two", "second-owner");
    let _waiters = waiters(&fixture, "default/one", 1);
    let mut top = Pty::run_sized(&fixture.command(["top", "--interval", "1h"]), 120, 24);
    top.until_shown("> default/one");
    top.press("/two\n");
    until("only the other lock is shown", || {
        let screen = last_screen(&top);
        (screen.contains("> default/two") && !screen.contains("default/one")).then_some(())
    });
    top.press("\x1b");
    until("all are shown again", || {
        last_screen(&top).contains("> default/one").then_some(())
    });
    top.press("\x1b[B\x1b[B");
    until("another is chosen", || {
        last_screen(&top).contains("> default/two").then_some(())
    });
    top.press("\x1b[A\x1b[A\n");
    until("its holder and its queue are shown", || {
        let screen = last_screen(&top);
        (screen.contains("first-owner") && screen.contains("waiter-0") && !screen.contains("default/two")).then_some(())
    });
    top.press("f");
    let question = format!(
        "held by first-owner with token {}? y",
        held["fencingToken"].as_str().expect("a token")
    );
    until("it asks", || last_screen(&top).contains(&question).then_some(()));
    top.press("n");
    until("it asks no more", || (!last_screen(&top).contains("? y")).then_some(()));
    assert_eq!(
        fixture.json(&["get", "default/one"])["holders"][0]["owner"],
        "first-owner"
    );
    top.press("fy");
    until("the waiter holds", || {
        (fixture.json(&["get", "default/one"])["holders"][0]["owner"] == "waiter-0").then_some(())
    });
    top.press("q");
    assert_eq!(top.running.end(), Some(0));
}

#[test]
fn the_terminal_shows_what_is_typed_again_after_the_end() {
    let fixture = Fixture::start();
    fixture.held("default/one", "me");
    for key in ["q", "\x03"] {
        // The key's signal is for the shell too, which goes on.
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", "trap : INT; $0 top --interval 1h; stty -a", PROGRAM]);
        shell.env("FENCEPOST_ADDR", &fixture.server.address);
        shell.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let mut top = Pty::run(&shell);
        top.until_shown("> default/one");
        top.press(key);
        let (_, shown) = top.end();
        assert!(
            shown.contains(" icanon") && shown.contains(" echo "),
            "{key:?}: {shown:?}"
        );
    }
}

#[test]
fn the_figures_stay_while_no_server_answers() {
    let fixture = Fixture::start();
    fixture.held("default/first", "me");
    let top = Pty::run_sized(&fixture.command(["top", "--interval", "100ms"]), 100, 12);
    top.until_shown("default/first");
    let before = top.shown().len();
    let Fixture { server, .. } = fixture;
    drop(server);
    top.until_shown("these figures are old");
    until("the figures are shown below it", || {
        let shown = top.shown();
        let below = shown.rsplit("these figures are old").next()?;
        (shown.len() > before && below.contains("default/first")).then_some(())
    });
}

#[test]
fn a_namespace_that_is_not_there_is_an_error() {
    let fixture = Fixture::start();
    let failed = fixture.run(&["top", "nowhere"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).contains("nowhere"), "{}", text(&failed.stderr));
}

#[test]
fn tables_fit_the_width_of_the_terminal() {
    let fixture = Fixture::start();
    let name = format!("default/reports/{}/europe", "2026-11-".repeat(20));
    let metadata = format!("note={}", "a long note ".repeat(20));
    fixture.said(&[
        "acquire",
        &name,
        "--owner",
        "me",
        "--ttl",
        "1h",
        "--metadata",
        &metadata,
    ]);
    for (arguments, kept) in [
        (vec!["list", "default"], "/europe"),
        (vec!["list"], "default/"),
        (vec!["namespaces"], "embedded"),
        (vec!["get", &name], "exclusive"),
    ] {
        let (code, shown) = Pty::run_sized(&fixture.command(&arguments), 100, 24).end();
        assert_eq!(code, Some(0), "{shown}");
        let shown = uncoloured(&shown);
        let table = shown.rsplit("\n\n").next().expect("a table");
        for line in table.lines() {
            assert!(line.chars().count() <= 100, "{arguments:?}: {line:?}");
        }
        assert!(table.contains(kept), "{arguments:?}: {table}");
        let piped = fixture.said(&arguments);
        assert!(!piped.contains('…'), "a pipe gets all: {piped}");
    }
}

#[test]
fn a_long_list_that_goes_to_a_file_shows_its_progress_at_the_terminal() {
    let fixture = Fixture::start();
    fixture.held("default/first", "me");
    let file = fixture.path("listed");
    fixture.server.signal("STOP");
    let script = format!("$0 list default > {}", file.display());
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script, PROGRAM]);
    shell.env("FENCEPOST_ADDR", &fixture.server.address);
    shell.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let mut listing = Pty::run(&shell);
    listing.until_shown("locks so far: 0, 0 s");
    fixture.server.signal("CONT");
    let (code, shown) = listing.end();
    assert_eq!(code, Some(0), "{shown:?}");
    assert!(shown.ends_with("\r\x1b[K"), "the line is erased: {shown:?}");
    assert!(fs::read_to_string(&file).expect("the list").contains("first"));
}
