//! What `scripts/deny` checks can fail, and what `deny.toml` lets through has a reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::source::{read, root};

/// Where the advisories are, unless a configuration says otherwise.
const DATABASE: &str = "https://github.com/RustSec/advisory-db";
/// A dependency that is here to stay, and its index entry.
const CRATE: (&str, &str) = ("bytes", "by/te/bytes");

/// The tool as `scripts/deny` installs it; nothing, with the reason printed, where it is missing at home.
fn tool() -> Option<PathBuf> {
    let script = read("scripts/deny");
    let version = script
        .lines()
        .find_map(|line| line.strip_prefix("version="))
        .expect("a version");
    let tool = root().join(format!("target/tools/cargo-deny-{version}"));
    assert!(
        tool.is_file() || std::env::var_os("CI").is_none(),
        "{tool:?} is missing"
    );
    if !tool.is_file() {
        eprintln!("{tool:?} is missing: scripts/deny installs it");
    }
    tool.is_file().then_some(tool)
}

/// The version of the dependency in the lock file.
fn locked() -> String {
    let lock = read("Cargo.lock");
    let entry = lock
        .split(&format!("name = \"{}\"\nversion = \"", CRATE.0))
        .nth(1)
        .expect("it is locked");
    entry.split('"').next().expect("a version").to_owned()
}

/// The tool with a configuration and an advisory database in a folder, which is a repository that stands in for the
/// one that would be fetched.
fn deny(tool: &Path, folder: &Path, config: &str, check: &str) -> Command {
    let file = folder.join("deny.toml");
    let databases = format!("[advisories]\ndb-path = \"{}\"\n", folder.join("databases").display());
    fs::write(&file, config.replace("[advisories]\n", &databases)).expect("a file");
    let mut command = Command::new(tool);
    command
        .current_dir(root())
        .args(["--locked", "--all-features", "--log-level", "error", "--config"])
        .arg(&file)
        .args(["check", check, "--deny", "unnecessary-skip", "--deny", "unmatched-skip"])
        .env("GIT_CONFIG_COUNT", "1")
        .env(
            "GIT_CONFIG_KEY_0",
            format!("url.file://{}.insteadOf", folder.join("none").display()),
        )
        .env("GIT_CONFIG_VALUE_0", DATABASE);
    command
}

/// Whether the check passes, and what it says.
fn said(mut command: Command) -> (bool, String) {
    let ran = command.output().expect("the tool runs");
    let said = [ran.stdout, ran.stderr].concat();
    (ran.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// A repository of advisories with one, about this crate.
fn database(folder: &Path, about: &str) {
    let entry = folder.join("none/crates").join(about);
    fs::create_dir_all(&entry).expect("a folder");
    let advisory = format!(
        "```toml\n[advisory]\nid = \"RUSTSEC-2000-0001\"\npackage = \"{about}\"\ndate = \"2000-01-01\"\n\n\
         [versions]\npatched = []\n```\n\n# Made up\n"
    );
    fs::write(entry.join("RUSTSEC-2000-0001.md"), advisory).expect("a file");
    let author = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
    for arguments in [
        &["init", "--quiet", "--initial-branch=main"][..],
        &["add", "crates"],
        &["commit", "--quiet", "-m", "x"],
    ] {
        let ran = Command::new("git")
            .arg("-C")
            .arg(folder.join("none"))
            .args(author)
            .args(arguments)
            .status();
        assert!(ran.expect("git runs").success(), "{arguments:?}");
    }
}

#[test]
fn each_check_fails_on_what_it_forbids() {
    let Some(tool) = tool() else { return };
    let config = read("deny.toml");
    let without = |line: &str| {
        let kept = config
            .lines()
            .filter(|text| !text.trim_start().starts_with(line))
            .map(|text| format!("{text}\n"));
        let kept: String = kept.collect();
        assert_ne!(kept, config, "{line} is not in deny.toml");
        kept
    };
    let with = |table: &str, line: &str| config.replace(&format!("[{table}]\n"), &format!("[{table}]\n{line}\n"));
    let folder = tempfile::tempdir().expect("a folder");
    database(folder.path(), "no-such-dependency");
    for (check, config, code) in [
        ("licenses", without("\"BSD-3-Clause\""), "rejected"),
        (
            "licenses",
            config.replace("\"ISC\"", "\"ISC\", \"EUPL-1.2\""),
            "license-not-encountered",
        ),
        ("bans", without("{ crate = \"syn@1"), "duplicate"),
        (
            "bans",
            config.replace("skip = [", "skip = [{ crate = \"serde\", reason = \"none\" },"),
            "unnecessary-skip",
        ),
        ("bans", config.replace("\"openssl-sys\"", "\"tokio\""), "banned"),
        ("sources", with("sources", "allow-registry = []"), "source-not-allowed"),
    ] {
        let (passes, said) = said(deny(&tool, folder.path(), &config, check));
        assert!(!passes && said.contains(code), "{check}, {code}: {said}");
    }
}

#[test]
fn a_known_vulnerability_fails_the_check_of_advisories() {
    let Some(tool) = tool() else { return };
    for (about, passes) in [("no-such-dependency", true), (CRATE.0, false)] {
        let folder = tempfile::tempdir().expect("a folder");
        database(folder.path(), about);
        let (passed, said) = said(deny(&tool, folder.path(), &read("deny.toml"), "advisories"));
        assert_eq!(passed, passes, "{about}: {said}");
        assert_eq!(said.contains("RUSTSEC-2000-0001"), !passes, "{said}");
    }
}

/// A copy of cargo's home whose index says that the version of the lock file was yanked.
fn home_with_a_yanked_version(folder: &Path) -> PathBuf {
    let own = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let own = own.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("a home")).join(".cargo"));
    let home = folder.join("cargo");
    fs::create_dir_all(home.join("registry")).expect("a folder");
    for part in ["cache", "src"] {
        std::os::unix::fs::symlink(own.join("registry").join(part), home.join("registry").join(part)).expect("a link");
    }
    let copied = Command::new("cp")
        .arg("-r")
        .arg(own.join("registry/index"))
        .arg(home.join("registry"))
        .status();
    assert!(copied.expect("cp runs").success());
    let mut yanked = 0;
    for index in fs::read_dir(home.join("registry/index")).expect("the index") {
        let file = index.expect("an index").path().join(".cache").join(CRATE.1);
        let Ok(entries) = fs::read(&file) else { continue };
        // With blanks or without, as the registry writes it.
        let compact = |entry: &[u8]| String::from_utf8_lossy(entry).replace("\": ", "\":");
        let version = format!("\"vers\":\"{}\"", locked());
        let parts = entries.split(|byte| *byte == 0).map(|entry| {
            let text = compact(entry);
            if !text.contains(&version) {
                return entry.to_vec();
            }
            yanked += 1;
            text.replace("\"yanked\":false", "\"yanked\":true").into_bytes()
        });
        fs::write(&file, parts.collect::<Vec<_>>().join(&0)).expect("a file");
    }
    assert!(yanked > 0, "the index has no {} {}", CRATE.0, locked());
    home
}

#[test]
fn a_yanked_version_fails_the_check_without_any_advisory() {
    let Some(tool) = tool() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    database(folder.path(), "no-such-dependency");
    let mut command = deny(&tool, folder.path(), &read("deny.toml"), "advisories");
    command.env("CARGO_HOME", home_with_a_yanked_version(folder.path()));
    let (passes, said) = said(command);
    assert!(!passes && said.contains("yanked") && said.contains(CRATE.0), "{said}");
}

#[test]
fn each_exception_has_its_reason() {
    let config = read("deny.toml");
    let mut entries = 0;
    for line in config
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with(['"', '{']))
    {
        let is_target = line.matches('-').count() > 1 && line.contains("-linux-") || line.contains("-apple-");
        if is_target {
            continue;
        }
        entries += 1;
        let has_reason = if line.starts_with('{') {
            line.split_once("reason = \"")
                .is_some_and(|(_, reason)| reason.len() > 20)
        } else {
            line.split_once('#')
                .is_some_and(|(_, reason)| !reason.trim().is_empty())
        };
        assert!(has_reason, "deny.toml: {line}");
    }
    assert!(entries > 10, "only {entries} entries were found");
    assert!(!config.contains("skip-tree"), "a tree of duplicates hides new ones");
}

#[test]
fn what_was_not_looked_for_is_said() {
    let script = read("scripts/deny");
    assert!(
        script.contains("SKIPPED: known vulnerabilities were NOT looked for"),
        "{script}"
    );
    assert!(
        read(".ci/run").contains("step scripts/deny"),
        "it runs for every change"
    );
}
