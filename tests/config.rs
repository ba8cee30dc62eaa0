//! `fencepost config`: what the program says about a configuration, and its exit codes.

#![cfg(feature = "embedded")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// The program with nothing from this environment but a home of its own.
fn fencepost(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    command.args(arguments).current_dir(home).env_clear().env("HOME", home);
    command
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn run(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    Ran {
        code: status.code(),
        out: String::from_utf8(stdout).expect("text"),
        err: String::from_utf8(stderr).expect("text"),
    }
}

fn home() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn home_with(config: &str) -> TempDir {
    let home = home();
    fs::write(home.path().join("f.toml"), config).expect("a file");
    home
}

#[test]
fn the_defaults_are_a_valid_configuration() {
    let home = home();
    let checked = run(&mut fencepost(home.path(), &["config", "check"]));
    assert_eq!(
        (checked.code, checked.out.as_str(), checked.err.as_str()),
        (Some(0), "ok\n", "")
    );
}

#[test]
fn what_show_prints_is_accepted_by_check_and_shows_as_itself() {
    let home = home();
    let shown = run(fencepost(home.path(), &["config", "show"]).env("XDG_DATA_HOME", "/xdg"));
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    assert!(shown.out.contains("\ndata_dir = \"/xdg/fencepost\"\n"), "{}", shown.out);
    assert!(shown.out.contains("\n[namespaces.default.embedded]\n"), "{}", shown.out);

    fs::write(home.path().join("f.toml"), &shown.out).expect("a file");
    let checked = run(&mut fencepost(home.path(), &["config", "check", "--config", "f.toml"]));
    assert_eq!(
        (checked.code, checked.out.as_str()),
        (Some(0), "ok\n"),
        "{}",
        checked.err
    );
    let again = run(&mut fencepost(home.path(), &["config", "show", "--config", "f.toml"]));
    assert_eq!(again.out, shown.out);
}

#[test]
fn a_fault_is_named_by_file_line_key_and_bound() {
    let home = home_with("[namespaces.default]\nqueue_limit = 0\n");
    let checked = run(&mut fencepost(home.path(), &["config", "check", "--config", "f.toml"]));
    assert_eq!((checked.code, checked.out.as_str()), (Some(1), ""));
    assert_eq!(
        checked.err,
        "error: f.toml:2:15: namespaces.default.queue_limit: invalid value: integer `0`, expected a whole number \
         from 1 to 1000000\n"
    );
}

#[test]
fn a_faulty_configuration_is_neither_shown_nor_served() {
    let home = home_with("guarantee = 1\n");
    for arguments in [["config", "show"].as_slice(), &["serve"]] {
        let refused = run(fencepost(home.path(), arguments).env("FENCEPOST_CONFIG", "f.toml"));
        assert_eq!(refused.code, Some(2), "{arguments:?}");
        assert!(
            refused.err.starts_with("error: f.toml:1:1: guarantee: unknown field"),
            "{}",
            refused.err
        );
    }
}

#[test]
fn a_file_that_is_not_there_is_a_fault() {
    let home = home();
    let checked = run(&mut fencepost(
        home.path(),
        &["config", "check", "--config", "none.toml"],
    ));
    assert_eq!(checked.code, Some(1));
    assert_eq!(checked.err.matches("No such file").count(), 1, "{}", checked.err);
    assert!(
        checked.err.starts_with("error: none.toml: cannot be read: "),
        "{}",
        checked.err
    );
}

#[test]
fn flags_win_over_variables_and_variables_over_the_file() {
    let home = home_with("drain_timeout = '1s'\nlisten = ['127.0.0.1:1']\n[log]\nformat = 'text'\n");
    let shown = run(fencepost(
        home.path(),
        &["config", "show", "--config=f.toml", "--drain-timeout=3s", "--insecure"],
    )
    .env("FENCEPOST_DRAIN_TIMEOUT", "2s")
    .env("FENCEPOST_LISTEN", "0.0.0.0:2,unix:/s")
    .env("FENCEPOST_DATA_DIR", "/d")
    .env("FENCEPOST_LOG_LEVEL", "debug")
    .env("FENCEPOST_LOG_FORMAT", "json"));
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    for line in [
        "drain_timeout = \"3s\"",
        "insecure = true",
        "listen = [\"0.0.0.0:2\", \"unix:/s\"]",
        "data_dir = \"/d\"",
        "level = \"debug\"",
        "format = \"json\"",
    ] {
        assert!(shown.out.contains(&format!("\n{line}\n")), "{line}\n{}", shown.out);
    }
}

#[test]
fn a_bad_flag_or_variable_is_named_with_its_bound() {
    let home = home();
    let refused = run(fencepost(home.path(), &["config", "check"]).env("FENCEPOST_DRAIN_TIMEOUT", "2h"));
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("--drain-timeout"), "{}", refused.err);
    assert!(refused.err.contains("from 0s to 10m"), "{}", refused.err);
    let open = run(&mut fencepost(
        home.path(),
        &["config", "check", "--listen", "0.0.0.0:1"],
    ));
    assert_eq!(open.code, Some(1));
    assert!(
        open.err
            .starts_with("error: --listen or FENCEPOST_LISTEN: listen: 0.0.0.0:1"),
        "{}",
        open.err
    );
}

#[test]
fn wrong_arguments_exit_with_two_and_the_version_with_zero() {
    let home = home();
    assert_eq!(run(&mut fencepost(home.path(), &[])).code, Some(2));
    assert_eq!(run(&mut fencepost(home.path(), &["sing"])).code, Some(2));
    let version = run(&mut fencepost(home.path(), &["--version"]));
    let expected = format!("fencepost {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!((version.code, version.out), (Some(0), expected));
}

#[test]
fn a_reader_that_went_away_is_no_fault() {
    let home = home();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let shown = fencepost(home.path(), &["config", "show"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .expect("the program runs");
    assert_eq!(
        (shown.status.code(), shown.stderr.as_slice()),
        (Some(0), b"".as_slice())
    );
}
