//! The completion scripts, loaded by their shells.

use std::process::Command;

use crate::program::{PROGRAM, text};

/// Runs lines in a shell; nothing where it is missing at home.
fn complete(shell: &str, lines: &str) -> Option<String> {
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
        .env("HOME", folder.path());
    let Ok(output) = command.output() else {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{shell} is missing");
        println!("passed without a run: {shell} is missing");
        return None;
    };
    assert_eq!(text(&output.stderr), "", "{shell}");
    assert!(output.status.success(), "{shell}");
    Some(text(&output.stdout))
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
