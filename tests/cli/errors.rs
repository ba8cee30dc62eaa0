//! Errors: what they say to do next, and the exit codes that scripts read. And readers that go away.

use std::process::Stdio;

use crate::cli::program::{Fixture, asking, run, text};

/// The exit code and what was said on standard error.
fn failed(fixture: &Fixture, arguments: &[&str]) -> (Option<i32>, String) {
    let output = fixture.run(arguments);
    (output.status.code(), text(&output.stderr))
}

#[test]
fn the_options_of_the_server_stand_before_or_behind_the_command() {
    let fixture = Fixture::start();
    let address = fixture.server.address.as_str();
    for arguments in [
        &["--addr", address, "list", "default"][..],
        &["list", "--addr", address, "default"],
        &["list", "default", "--addr", address],
        &["--addr", address, "lock", "default/a", "--", "true"],
        &["lock", "--addr", address, "default/a", "--", "true"],
        &["lock", "default/a", "--addr", address, "--", "true"],
    ] {
        // Nobody serves at the address of the variable.
        let output = run(asking("127.0.0.1:1", arguments));
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    }
    let help = fixture.said(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.map_while(|line| line.split_whitespace().next());
    for command in commands.filter(|command| *command != "help") {
        let code = run(asking(address, ["--addr", address, command, "--help"]))
            .status
            .code();
        let needs_no_server = ["serve", "dev", "config", "copy-to", "man"].contains(&command);
        assert_eq!(code, Some(if needs_no_server { 2 } else { 0 }), "{command}");
    }
}

#[test]
fn each_error_says_what_to_do_next_and_has_its_exit_code() {
    let fixture = Fixture::start();
    fixture.held("default/reports", "me");
    let cases: [(&[&str], i32, &str, &str); 10] = [
        (
            &["acquire", "default/reports"],
            120,
            "held by \"me\", for 3",
            "--wait 30s",
        ),
        (
            &["acquire", "default/reports", "--wait", "200ms"],
            121,
            "not granted within the wait",
            "fencepost get default/reports",
        ),
        (
            &["acquire", "default/reports", "--permits", "1", "--limit", "2"],
            120,
            "held",
            "fencepost get default/reports",
        ),
        (&["release", "nonsense"], 1, "lease_id", "INVALID_FIELD"),
        (
            &["get", "nowhere/reports"],
            1,
            "there is no namespace",
            "fencepost namespaces",
        ),
        (&["list", "nowhere"], 1, "there is no namespace", "fencepost namespaces"),
        (
            &["force-release", "default/reports", "1"],
            122,
            "the lease is gone",
            "fencepost get default/reports",
        ),
        (
            &["acquire", "default/x", "--ttl", "1ms"],
            1,
            "ttl: must be 500ms to",
            "INVALID_FIELD",
        ),
        (&["admit", "default"], 1, "no quarantine", "UNSUPPORTED"),
        (&["get", "/reports"], 2, "NAMESPACE/NAME", "--help"),
    ];
    for (arguments, code, problem, next) in cases {
        let (found, said) = failed(&fixture, arguments);
        assert_eq!(found, Some(code), "{arguments:?}: {said}");
        assert!(said.contains(problem) && said.contains(next), "{arguments:?}: {said}");
    }
}

#[test]
fn no_server_is_told_at_once_by_every_command() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("its address").to_string();
    drop(free);
    let all: [&[&str]; 14] = [
        &["watch", "--prefix", "a"],
        &["admit", "a"],
        &["acquire", "a/b"],
        &["renew", "x"],
        &["release", "x"],
        &["get", "a/b"],
        &["list", "a"],
        &["watch", "a/b"],
        &["check-token", "a/b", "1"],
        &["force-release", "a/b", "1"],
        &["namespaces"],
        &["sessions"],
        &["lock", "a/b", "--wait", "60s", "--", "true"],
        &["bench", "--time", "1s"],
    ];
    for arguments in all {
        let output = run(asking(&address, arguments));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(123), "{arguments:?}: {said}");
        assert!(said.contains(&format!("no server answers at {address}")), "{said}");
        assert!(said.contains("FENCEPOST_ADDR"), "{said}");
    }
}

#[test]
fn of_several_addresses_the_first_that_answers_is_asked() {
    let fixture = Fixture::start();
    let socket = fixture.server.socket();
    let both = format!("127.0.0.1:1,unix:{}", socket.display());
    let output = run(asking(&both, ["get", "default/reports"]));
    assert_eq!(
        text(&output.stdout),
        "default/reports: free\n",
        "{}",
        text(&output.stderr)
    );
    let flag = ["get", "default/reports", "--addr", &fixture.server.address];
    assert_eq!(run(asking("127.0.0.1:1", flag)).status.code(), Some(0), "a flag wins");
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let fixture = Fixture::start();
    fixture.held("default/reports", "me");
    let all: [&[&str]; 11] = [
        &["status"],
        &["watch", "--prefix", "default"],
        &["get", "default/reports"],
        &["list", "default"],
        &["top"],
        &["namespaces", "-o", "json"],
        &["watch", "default/reports"],
        &["acquire", "default/x"],
        &["completions", "bash"],
        &["config", "show"],
        &["--help"],
    ];
    for arguments in all {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = fixture.command(arguments);
        let output = command.stdout(writer).stderr(Stdio::piped()).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
    }
}

#[test]
fn help_has_examples_and_exit_codes() {
    let fixture = Fixture::start();
    for command in [
        "lock",
        "acquire",
        "renew",
        "release",
        "get",
        "list",
        "top",
        "watch",
        "check-token",
        "force-release",
        "admit",
        "sessions",
        "status",
    ] {
        let help = fixture.said(&[command, "--help"]);
        assert!(help.contains(&format!("fencepost {command} ")), "{command}: {help}");
        assert!(help.contains("FENCEPOST_ADDR"), "{command}: {help}");
        assert!(help.contains("Example"), "{command}: {help}");
    }
    for help in [fixture.said(&["--help"]), fixture.said(&["lock", "--help"])] {
        for code in ["120", "121", "122", "123"] {
            assert!(help.contains(code), "{help}");
        }
        assert!(!help.contains("watchdog"), "{help}");
    }
}

#[test]
fn an_error_is_json_where_responses_are() {
    let fixture = Fixture::start();
    fixture.held("default/reports", "me");
    let cases: [(&[&str], i32, &str, &str); 5] = [
        (&["acquire", "default/reports"], 120, "LOCK_HELD", "held by \"me\""),
        (
            &["get", "nowhere/reports"],
            1,
            "NAMESPACE_NOT_FOUND",
            "there is no namespace",
        ),
        (
            &["force-release", "default/reports", "1"],
            122,
            "LEASE_LOST",
            "the lease is gone",
        ),
        (
            &["watch", "default/reports", "--addr", "127.0.0.1:1"],
            123,
            "UNREACHABLE",
            "127.0.0.1:1",
        ),
        (
            &[
                "list",
                "--cert",
                "no-such-file",
                "--key",
                "no-such-file",
                "--addr",
                "https://127.0.0.1:1",
            ],
            1,
            "BAD_CREDENTIALS",
            "no-such-file",
        ),
    ];
    for (arguments, code, reason, message) in cases {
        let (found, said) = failed(&fixture, &[arguments, &["--output", "json"]].concat());
        assert_eq!(found, Some(code), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let said: serde_json::Value = serde_json::from_str(&said).expect("one line of JSON");
        let error = &said["error"];
        assert_eq!(
            (error["reason"].as_str(), error["exitCode"].as_i64()),
            (Some(reason), Some(code.into())),
            "{error}"
        );
        assert!(
            error["message"].as_str().expect("a message").contains(message),
            "{error}"
        );
    }
}
