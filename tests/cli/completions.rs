//! The completion scripts, loaded by their shells.

use std::path::Path;
use std::process::Command;

use crate::cli::program::{Fixture, PROGRAM, text};

/// Runs lines in a shell; nothing where it is missing at home.
fn complete(shell: &str, lines: &str) -> Option<String> {
    complete_at("127.0.0.1:1", shell, lines)
}

/// The same with a server at this address.
fn complete_at(address: &str, shell: &str, lines: &str) -> Option<String> {
    let folder = tempfile::tempdir().expect("a directory");
    let script = Command::new(PROGRAM)
        .args(["completions", shell])
        .output()
        .expect("it runs");
    assert!(script.status.success() && !script.stdout.is_empty());
    let shown = text(&script.stdout);
    assert!(
        !shown.contains("watchdog") && !shown.contains("role:"),
        "only commands are completed"
    );
    let file = folder.path().join("_fencepost");
    std::fs::write(&file, script.stdout).expect("a file");
    let mut command = Command::new(shell);
    command
        .args(["-c", lines])
        .env("SCRIPT", &file)
        .env("HOME", folder.path())
        .env("FENCEPOST_ADDR", address)
        .env("PATH", path_with_program());
    let Ok(output) = command.output() else {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{shell} is missing");
        println!("passed without a run: {shell} is missing");
        return None;
    };
    assert_eq!(text(&output.stderr), "", "{shell}");
    assert!(output.status.success(), "{shell}");
    Some(text(&output.stdout))
}

/// The path, with the program first.
fn path_with_program() -> String {
    let folder = Path::new(PROGRAM).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}:{path}", folder.display())
}

/// A server on which locks are held.
fn busy() -> Fixture {
    let fixture = Fixture::start();
    for lock in ["default/reports", "default/repairs", "default/jobs", "default/re ports"] {
        fixture.held(lock, "me");
    }
    fixture
}

#[test]
fn bash_completes_namespaces_and_locks() {
    let fixture = busy();
    let lines = "source $SCRIPT
        try() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _fencepost_names fencepost \"${@: -1}\" \"${@: -2:1}\"; echo ${COMPREPLY[@]}; }
        try fencepost get de; try fencepost lock default/re; try fencepost namespaces de; try fencepost get --ou";
    if let Some(said) = complete_at(&fixture.server.address, "bash", lines) {
        assert_eq!(said, "default/\ndefault/repairs default/reports\n\n--output\n");
    }
}

#[test]
fn zsh_completes_namespaces_and_locks() {
    let fixture = busy();
    let lines = "autoload -U compinit; compinit -u -D; source $SCRIPT; compadd() { shift 3; print -- $@ }
        PREFIX=de; _fencepost_names; PREFIX=default/re; _fencepost_names; grep -c ':_fencepost_names' $SCRIPT";
    if let Some(said) = complete_at(&fixture.server.address, "zsh", lines) {
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[..2], ["default/", "default/repairs default/reports"]);
        assert!(lines[2].parse::<u32>().expect("a number") > 5, "{said}");
    }
}

#[test]
fn fish_completes_namespaces_and_locks() {
    let fixture = busy();
    let lines = "source $SCRIPT; complete -C 'fencepost get de'; complete -C 'fencepost lock default/re'";
    if let Some(said) = complete_at(&fixture.server.address, "fish", lines) {
        let words: Vec<&str> = said.lines().collect();
        assert_eq!(words, ["default/", "default/repairs", "default/reports"]);
    }
}

#[test]
fn without_a_server_no_name_is_completed() {
    let lines = "source $SCRIPT
        COMP_WORDS=(fencepost get de); COMP_CWORD=2; COMPREPLY=(); _fencepost_names fencepost de get; echo ${COMPREPLY[@]}";
    if let Some(said) = complete("bash", lines) {
        assert_eq!(said, "\n");
    }
}

#[test]
fn bash_completes_commands_and_flags() {
    let lines = "source $SCRIPT; complete -p fencepost >/dev/null || exit 9
        try() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _fencepost fencepost \"${@: -1}\" \"${@: -2:1}\"; echo ${COMPREPLY[@]}; }
        try fencepost che; try fencepost lock --per";
    if let Some(said) = complete("bash", lines) {
        assert_eq!(said, "check-token\n--permits\n");
    }
}

#[test]
fn zsh_loads_the_script() {
    let lines =
        "autoload -U compinit; compinit -u -D; source $SCRIPT; whence -w _fencepost; print ${_comps[fencepost]}";
    if let Some(said) = complete("zsh", lines) {
        assert_eq!(said, "_fencepost: function\n_fencepost\n");
    }
}

#[test]
fn fish_completes_commands_and_flags() {
    let lines = "source $SCRIPT; complete -C 'fencepost check-'; complete -C 'fencepost lock --perm'";
    if let Some(said) = complete("fish", lines) {
        let words: Vec<&str> = said.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(words, ["check-token", "--permits"]);
    }
}
