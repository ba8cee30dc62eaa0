//! What only a terminal has: a sign of waiting, keys that send signals, jobs that stop and go on.

use crate::cli::program::{Fixture, Running, content, shape, text, until_written};
use crate::cli::pty::Pty;
use crate::cli::server::until;

#[test]
fn who_waits_at_a_terminal_sees_the_place_and_the_seconds() {
    let fixture = Fixture::start();
    let held = fixture.held("default/reports", "me");
    let ask = ["acquire", "default/reports", "--wait", "60s"];
    let mut waiting = Pty::run(&fixture.command(ask));
    waiting.until_shown("waiting for default/reports: place 1 of 1, held by me for 3");
    waiting.until_shown(" s unless renewed, 1 s");
    let piped = fixture.begin(&[&ask[..], &["-o", "json"]].concat());
    until("two wait", || {
        (fixture.count("default/reports", "waiterCount") == 2).then_some(())
    });
    waiting.until_shown("place 1 of 2");
    drop(piped);
    fixture.said(&["release", held["leaseId"].as_str().expect("an id")]);
    let (code, shown) = waiting.end();
    assert_eq!(code, Some(0), "{shown:?}");
    // The line is emptied before the answer comes.
    let answer = shown.rsplit_once("\r\x1b[K").expect("an emptied line").1;
    assert!(
        answer.contains("default/reports") && !answer.contains("waiting"),
        "{answer:?}"
    );
}

#[test]
fn who_waits_in_a_pipe_sees_nothing_of_it() {
    let fixture = Fixture::start();
    fixture.held("default/reports", "me");
    let output = fixture.run(&["acquire", "default/reports", "--wait", "1500ms"]);
    assert_eq!(output.status.code(), Some(121));
    let said = text(&output.stderr);
    assert_eq!(
        said,
        "error: the lock was not granted within the wait\n  \
         wait longer, or see who holds it: fencepost get default/reports\n"
    );
}

#[test]
fn who_asks_for_it_in_a_pipe_sees_a_line_for_each_change() {
    let fixture = Fixture::start();
    let held = fixture.held("default/reports", "me");
    let file = fixture.path("said");
    let mut asks = fixture.command([
        "lock",
        "default/reports",
        "--owner",
        "second",
        "--wait",
        "60s",
        "--progress",
        "--",
        "true",
    ]);
    asks.stderr(std::fs::File::create(&file).expect("a file"));
    let mut first = Running::new(asks);
    until_written(&file);
    let ask = ["acquire", "default/reports", "--owner", "third", "--wait", "60s"];
    let _third = fixture.begin(&ask);
    until("a line for the change", || {
        content(&file).contains("place 1 of 2").then_some(())
    });
    // Meanwhile seconds pass in which nothing changes.
    let asked = fixture.run(&["acquire", "default/reports", "--owner", "fourth", "--wait", "2500ms"]);
    assert_eq!(asked.status.code(), Some(121));
    fixture.said(&["release", held["leaseId"].as_str().expect("an id")]);
    assert_eq!(first.end(), Some(0));
    let said = content(&file);
    let lines: Vec<String> = said.lines().map(shape).collect();
    let line = |all| {
        shape(&format!(
            "waiting for default/reports: place 1 of {all}, held by me for 3600.0 s unless renewed"
        ))
    };
    let places: Vec<&str> = said.lines().filter_map(|line| line.split(", ").next()).collect();
    assert!(lines.iter().all(|found| *found == line(1)), "{said}");
    assert!(places.windows(2).all(|two| two[0] != two[1]), "only changes: {said}");
}

#[test]
fn the_line_is_never_longer_than_the_terminal_is_wide() {
    let fixture = Fixture::start();
    fixture.held("default/reports", &"somebody".repeat(20));
    let mut waiting = Pty::run_sized(&fixture.command(["acquire", "default/reports", "--wait", "2s"]), 40, 9);
    let (code, shown) = waiting.end();
    assert_eq!(code, Some(121));
    let lines: Vec<&str> = shown.split("\r\x1b[K").filter(|line| line.contains('…')).collect();
    assert!(!lines.is_empty(), "{shown:?}");
    assert!(lines.iter().all(|line| line.chars().count() == 40), "{lines:?}");
}

#[test]
fn the_command_has_the_terminal_and_the_next_one_too() {
    let fixture = Fixture::start();
    let script = "$0 lock default/a -- sh -c 'read a; echo one $a'; read b; echo two $b";
    let mut shell = fixture.command(["-c", script, crate::cli::program::PROGRAM]);
    shell = renamed(&shell, "sh");
    let mut terminal = Pty::run(&shell);
    terminal.press("x\n");
    terminal.until_shown("one x");
    terminal.press("y\n");
    let (code, shown) = terminal.end();
    assert!(shown.contains("two y"), "{shown:?}");
    assert_eq!(code, Some(0));
}

#[test]
fn the_interrupt_key_reaches_the_command() {
    let fixture = Fixture::start();
    let mut terminal = Pty::run(&fixture.command([
        "lock",
        "default/a",
        "--",
        "sh",
        "-c",
        "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.1; done",
    ]));
    terminal.until_shown("ready");
    terminal.press("\x03");
    let (code, shown) = terminal.end();
    assert!(shown.contains("caught"), "{shown:?}");
    assert_eq!(code, Some(5));
    assert_eq!(fixture.count("default/a", "holderCount"), 0);
}

#[test]
fn a_job_that_the_terminal_stops_goes_on_with_its_lock() {
    let fixture = Fixture::start();
    let file = fixture.path("read");
    let script = format!(
        "set -m; $0 lock default/a --ttl 1h -- sh -c 'read a; echo $a > {0}; read b; echo got $b'; echo stopped; fg; echo done",
        file.display()
    );
    let shell = renamed(&fixture.command(["-c", &script, crate::cli::program::PROGRAM]), "bash");
    let mut terminal = Pty::run(&shell);
    // What it has read shows that the terminal is lent.
    terminal.press("y\n");
    until_written(&file);
    terminal.press("\x1a");
    terminal.until_shown("stopped");
    terminal.press("z\n");
    terminal.until_shown("got z");
    let (_, shown) = terminal.end();
    assert!(shown.contains("done"), "{shown:?}");
}

/// The same arguments and environment for another program.
fn renamed(command: &std::process::Command, program: &str) -> std::process::Command {
    let mut other = std::process::Command::new(program);
    other.args(command.get_args()).env_clear();
    other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    other
}
