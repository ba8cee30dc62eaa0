//! The manual pages, made from the command line's own description.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cli::program::{Fixture, PROGRAM, run, text};

/// The names below a heading of a help text: each begins a line that is indented by two.
fn listed(help: &str, heading: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != heading).skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn help(arguments: &[&str]) -> String {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).arg("--help").env_clear();
    text(&run(command).stdout)
}

/// The long flags that begin a line of a help text, alone or behind their short form.
fn flags(help: &str) -> BTreeSet<&str> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = lines.filter_map(|line| line.split_whitespace().take(2).find(|word| word.starts_with("--")));
    // A flag whose value may be left out is followed by `[=<VALUE>]`.
    words.filter_map(|word| word.split('[').next()).collect()
}

fn written(directory: &Path) -> BTreeSet<String> {
    let files = fs::read_dir(directory).expect("a directory");
    let names = files.map(|file| file.expect("a file").file_name().into_string().expect("a name"));
    names.collect()
}

#[test]
fn each_command_has_a_page_with_all_its_flags() {
    let folder = tempfile::tempdir().expect("a directory");
    let pages = folder.path().join("man1");
    let mut man = Command::new(PROGRAM);
    man.arg("man").arg(&pages).env_clear();
    let made = run(man);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let mut expected = BTreeSet::from(["fencepost.1".to_owned()]);
    let mut check = |words: &[&str]| {
        let name = [&["fencepost"][..], words].concat().join("-") + ".1";
        let page = fs::read_to_string(pages.join(&name)).expect("a page");
        assert!(
            page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"),
            "{name}: {page}"
        );
        let help = help(words);
        for flag in flags(&help) {
            assert!(page.contains(&flag.replace('-', "\\-")), "{name}: no {flag}");
        }
        expected.insert(name);
        help
    };
    let commands = listed(&check(&[]), "Commands:");
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands.iter().map(String::as_str).filter(|command| *command != "help") {
        let help = check(&[command]);
        for inner in listed(&help, "Commands:").iter().filter(|inner| *inner != "help") {
            check(&[command, inner.as_str()]);
        }
    }
    assert_eq!(written(&pages), expected);
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let fixture = Fixture::start();
    let file = fixture.path("file");
    fs::write(&file, "").expect("a file");
    let failed = run(fixture.command(["man".as_ref(), file.as_os_str()]));
    let said = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&file.display().to_string()) && said.contains("exists"),
        "{said}"
    );
}
