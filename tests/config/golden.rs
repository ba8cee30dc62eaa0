//! What `fencepost config show` prints and what a refusal says, byte for byte, as files in `tests/config/golden`.
//! With `FENCEPOST_GOLDEN=write` in the environment the files are written anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use tempfile::TempDir;

use crate::config::{fencepost, home, run};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/config/golden")
        .join(name)
}

/// Compares a text with a golden file, or writes the file anew.
#[track_caller]
fn compare(name: &str, text: &str) {
    if std::env::var("FENCEPOST_GOLDEN").is_ok_and(|mode| mode == "write") {
        return fs::write(golden(name), text).expect("a golden file");
    }
    let expected = fs::read_to_string(golden(name)).expect("a golden file");
    let mut lines = expected.lines().zip(text.lines()).enumerate();
    if let Some((number, (old, new))) = lines.find(|(_, (old, new))| old != new) {
        panic!("{name}:{}: {old:?} is now {new:?}", number + 1);
    }
    assert!(expected == text, "{name}: one is longer than the other");
}

#[test]
fn show_prints_the_defaults_as_before() {
    let shown = run(&mut fencepost(
        home().path(),
        &["config", "show", "--data-dir", "/data"],
    ));
    assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""));
    compare("show_defaults.toml", &shown.out);
}

#[test]
fn show_prints_every_key_of_every_store_as_before() {
    let file = golden("every_key.toml");
    let file = file.to_str().expect("a path");
    let shown = run(&mut fencepost(home().path(), &["config", "show", "--config", file]));
    assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""));
    compare("show_every_key.toml", &shown.out);
}

/// A configuration that is refused (a few are taken), by `config check` or by `serve`, and with which words.
struct Case {
    command: String,
    config: String,
}

/// The cases of a golden file: `=== command`, the configuration, `---`, what is said about it.
fn cases(text: &str) -> Vec<Case> {
    let all = text.split("=== ").skip(1).map(|case| {
        let (command, rest) = case.split_once('\n').expect("a command");
        let (config, _) = rest.split_once("\n---\n").expect("a configuration");
        Case {
            command: command.to_owned(),
            config: config.to_owned(),
        }
    });
    all.collect()
}

/// A home with files of every kind that a configuration may name.
fn home_with_files() -> TempDir {
    let home = home();
    let at = |name: &str| home.path().join(name);
    for name in ["one", "two"] {
        let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        fs::write(at(&format!("{name}.pem")), signed.cert.pem()).expect("a file");
        fs::write(at(&format!("{name}.key")), signed.signing_key.serialize_pem()).expect("a file");
    }
    fs::write(at("text"), "text\n").expect("a file");
    fs::write(at("file"), "no store\n").expect("a file");
    fs::write(at("empty"), "\n").expect("a file");
    fs::write(at("binary"), [0xff, 0xfe]).expect("a file");
    fs::create_dir(at("folder")).expect("a directory");
    home
}

impl Case {
    fn told(&self) -> String {
        let home = home_with_files();
        fs::write(home.path().join("f.toml"), &self.config).expect("a file");
        let arguments: &[&str] = match self.command.as_str() {
            "check" => &["config", "check", "--config", "f.toml"],
            "serve" => &["serve", "--config", "f.toml", "--listen", "127.0.0.1:0"],
            other => panic!("{other:?} is no command of these cases"),
        };
        let ran = run(&mut fencepost(home.path(), arguments));
        let home = home.path().to_str().expect("a path");
        let told = format!("{}{}", ran.out, ran.err).replace(home, "/home");
        let code = ran.code.expect("an exit");
        format!("=== {}\n{}\n---\n{code}: {told}", self.command, self.config)
    }
}

// G8
#[test]
fn every_refusal_is_worded_as_before() {
    let cases = cases(&fs::read_to_string(golden("refused.txt")).expect("a golden file"));
    let told: Vec<String> = thread::scope(|scope| {
        let parts = cases.chunks(cases.len().div_ceil(4));
        let parts: Vec<_> = parts
            .map(|part| scope.spawn(|| part.iter().map(Case::told).collect::<String>()))
            .collect();
        parts.into_iter().map(|part| part.join().expect("a part")).collect()
    });
    compare("refused.txt", &told.concat());
}
