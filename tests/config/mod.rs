//! `fencepost config`: what the program says about a configuration, and its exit codes.

#![cfg(feature = "embedded")]

#[cfg(all(feature = "redis", feature = "postgres"))]
mod asks;
#[cfg(all(feature = "redis", feature = "redlock", feature = "etcd"))]
mod golden;
#[cfg(not(all(feature = "redis", feature = "redlock", feature = "etcd")))]
mod missing;

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

/// Checks a configuration in a home that has all files of a good one, and answers what is said of it.
fn said(change: impl FnOnce(&Path), config: &str) -> (Option<i32>, String) {
    let home = home_with(config);
    let at = |name: &str| home.path().join(name);
    for name in ["server", "other"] {
        let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        fs::write(at(&format!("{name}.pem")), signed.cert.pem()).expect("a file");
        fs::write(at(&format!("{name}.key")), signed.signing_key.serialize_pem()).expect("a file");
    }
    fs::write(at("bearers"), format!("a:{}\n", "1".repeat(64))).expect("a file");
    let x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    let keys = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}]}}"#);
    fs::write(at("jwks.json"), keys).expect("a file");
    fs::write(at("password"), "secret\n").expect("a file");
    change(home.path());
    let mut command = fencepost(home.path(), &["config", "check", "--config", "f.toml"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let begun = std::time::Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if begun.elapsed() > std::time::Duration::from_secs(20) {
            child.kill().expect("a child");
            panic!("it hangs:\n{config}");
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let Output { status, stdout, stderr } = child.wait_with_output().expect("a child");
    let text = String::from_utf8([stdout, stderr].concat()).expect("text");
    (status.code(), text)
}

/// A way in which a file is no good.
type Spoil = fn(&Path);

const SECURE: &str = "data_dir = 'data'\n[tls]\ncertificate = 'server.pem'\nkey = 'server.key'\nclient_ca = 'other.pem'\n\
    client_auth = 'optional'\n[auth]\nbearer_file = 'bearers'\n[auth.jwt]\nissuer = 'i'\naudiences = ['a']\n\
    jwks_file = 'jwks.json'\n[namespaces.r]\nbackend = 'redis'\nredis.password_file = 'password'\n\
    [namespaces.e]\nbackend = 'etcd'\n[namespaces.e.etcd]\nendpoints = ['https://a:1']\nca_file = 'other.pem'\n\
    cert_file = 'server.pem'\nkey_file = 'server.key'\n[namespaces.m.embedded]\npath = 'm.redb'\n";

#[test]
fn check_reads_what_a_server_would_read() {
    assert_eq!(said(|_| {}, SECURE), (Some(0), "ok\n".to_owned()));
    let files = [
        ("server.pem", "3:1: tls.certificate: "),
        ("server.key", "4:1: tls.key: "),
        ("other.pem", "5:1: tls.client_ca: "),
        ("bearers", "8:1: auth.bearer_file: "),
        ("jwks.json", "12:1: auth.jwt.jwks_file: "),
        ("password", "15:7: namespaces.r.redis.password_file: "),
    ];
    let ways: [(&str, Spoil); 4] = [
        ("No such file", |file| fs::remove_file(file).expect("a file")),
        ("is a directory", |file| {
            fs::remove_file(file).expect("a file");
            fs::create_dir(file).expect("a directory");
        }),
        ("not a regular file", |file| {
            fs::remove_file(file).expect("a file");
            let made = Command::new("mkfifo").arg(file).status().expect("mkfifo runs");
            assert!(made.success());
        }),
        ("", |file| fs::write(file, "").expect("a file")),
    ];
    for (name, place) in files {
        for (words, spoil) in &ways {
            // An empty file has no bearer in it, which is one way to have none.
            if name == "bearers" && words.is_empty() {
                continue;
            }
            let (code, text) = said(|home| spoil(&home.join(name)), SECURE);
            assert_eq!(code, Some(1), "{name} {words}: {text}");
            assert!(text.starts_with(&format!("error: f.toml:{place}")), "{name}: {text}");
            assert!(text.contains(words) && text.contains(name), "{name}: {text}");
        }
    }
}

#[test]
fn check_finds_files_that_do_not_fit_together() {
    let bad_line = |home: &Path| fs::write(home.join("bearers"), "# a\nthe-very-secret\n").expect("a file");
    let (code, text) = said(bad_line, SECURE);
    assert_eq!(code, Some(1));
    assert!(
        text.starts_with("error: f.toml:8:1: auth.bearer_file: bearers:2: must be a name"),
        "{text}"
    );
    assert!(!text.contains("the-very-secret"), "{text}");

    let (code, text) = said(|_| {}, &SECURE.replace("\nkey = 'server.key'", "\nkey = 'other.key'"));
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.starts_with("error: f.toml:3:1: tls.certificate: server.pem: "),
        "{text}"
    );

    let (code, text) = said(
        |_| {},
        &SECURE.replace("key_file = 'server.key'", "key_file = 'other.key'"),
    );
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.starts_with("error: f.toml:21:1: namespaces.e.etcd.cert_file: "),
        "{text}"
    );
}

#[test]
fn check_looks_where_a_server_would_store() {
    let file = |name: &'static str| move |home: &Path| fs::write(home.join(name), "text").expect("a file");
    let (code, text) = said(file("data"), SECURE);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.starts_with("error: f.toml:1:1: data_dir: must be a directory"),
        "{text}"
    );

    let taken = |home: &Path| {
        fs::create_dir(home.join("data")).expect("a directory");
        fs::write(home.join("data/m.redb"), "something else").expect("a file");
    };
    let (code, text) = said(taken, SECURE);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.starts_with("error: f.toml:24:1: namespaces.m.embedded.path: must be a file of"),
        "{text}"
    );

    let socket = format!("listen = ['127.0.0.1:0', 'unix:none/f.sock']\n{SECURE}");
    let (code, text) = said(|_| {}, &socket);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.starts_with("error: f.toml:1:26: listen[1]: must be in a directory"),
        "{text}"
    );
}

#[test]
fn a_fifo_holds_up_neither_check_nor_serve() {
    let home = home();
    let made = Command::new("mkfifo")
        .arg(home.path().join("f.toml"))
        .status()
        .expect("mkfifo runs");
    assert!(made.success());
    for arguments in [["config", "check"].as_slice(), &["serve"]] {
        let refused = run(fencepost(home.path(), arguments).env("FENCEPOST_CONFIG", "f.toml"));
        assert_ne!(refused.code, Some(0), "{arguments:?}");
        assert!(
            refused.err.contains("f.toml: cannot be read: it is not a regular file"),
            "{}",
            refused.err
        );
    }
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
