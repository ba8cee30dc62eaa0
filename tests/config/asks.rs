//! `fencepost config check` without the files, from standard input, and with the stores.

use std::io::Write;
use std::process::Stdio;

use crate::config::{Ran, fencepost, home, home_with, run};

/// Checks this text from standard input.
fn check_input(text: &str, arguments: &[&str]) -> Ran {
    let home = home();
    let mut command = fencepost(
        home.path(),
        &[&["config", "check", "--config", "-"], arguments].concat(),
    );
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let process = process.as_mut().expect("the program runs");
    let mut input = process.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("it reads");
    drop(input);
    let mut said = [String::new(), String::new()];
    std::io::Read::read_to_string(process.stdout.as_mut().expect("a pipe"), &mut said[0]).expect("text");
    std::io::Read::read_to_string(process.stderr.as_mut().expect("a pipe"), &mut said[1]).expect("text");
    let [out, err] = said;
    let code = process.wait().expect("it ends").code();
    Ran { code, out, err }
}

#[test]
fn a_configuration_is_read_from_standard_input() {
    assert_eq!(check_input("[log]\nlevel = 'debug'\n", &[]).out, "ok\n");
    let wrong = check_input("[log]\nlevl = 'debug'\n", &[]);
    assert_eq!(wrong.code, Some(1));
    assert!(
        wrong.err.starts_with("error: -:2:1: log.levl: unknown field"),
        "{}",
        wrong.err
    );
}

#[test]
fn the_syntax_is_checked_without_the_files_that_are_named() {
    let text = "[tls]\ncertificate = '/none/tls.crt'\nkey = '/none/tls.key'\n[auth]\nbearer_file = '/none/bearers'\n\
                [namespaces.a]\nbackend = 'postgres'\npostgres.password_file = '/none/password'\n";
    let (all, syntax) = (check_input(text, &[]), check_input(text, &["--syntax"]));
    assert_eq!((all.code, syntax.code), (Some(1), Some(0)), "{}{}", all.err, syntax.err);
    let wrong = check_input(&text.replace("password_file", "passwort_file"), &["--syntax"]);
    assert!(
        wrong.code == Some(1) && wrong.err.contains("passwort_file"),
        "{}",
        wrong.err
    );
}

#[test]
fn the_stores_are_asked_and_one_that_does_not_answer_is_named() {
    let text = "[namespaces.file]\n[namespaces.a]\nbackend = 'redis'\nredis.urls = ['redis://127.0.0.1:1']\n";
    let home = home_with(text);
    let plain = run(&mut fencepost(home.path(), &["config", "check", "--config", "f.toml"]));
    assert_eq!((plain.code, plain.out.as_str()), (Some(0), "ok\n"));
    let connect = run(&mut fencepost(
        home.path(),
        &["config", "check", "--config", "f.toml", "--connect"],
    ));
    assert_eq!((connect.code, connect.out.as_str()), (Some(1), ""));
    assert!(connect.err.starts_with("error: namespace a: "), "{}", connect.err);
    assert!(
        !home.path().join(".local/share/fencepost/fencepost.redb").exists(),
        "a file is not opened"
    );
}

#[test]
fn stores_that_answer_are_listed() {
    common::skip_unless!(common::redis::available() && common::postgres::available());
    let redis = common::redis::RedisServer::start(&[]);
    let postgres = common::postgres::Postgres::started(&[]);
    let table = |database: &str| {
        format!(
            "[namespaces.p]\nbackend = 'postgres'\npostgres = {{servers = ['{}'], database = '{database}'}}\n\
             [namespaces.r]\nbackend = 'redis'\nredis.urls = ['{}']\n",
            postgres.address(),
            redis.url()
        )
    };
    let check = |database: &str| {
        let home = home_with(&table(database));
        run(&mut fencepost(
            home.path(),
            &["config", "check", "--config", "f.toml", "--connect"],
        ))
    };
    let good = check("fencepost");
    assert_eq!(good.code, Some(0), "{}", good.err);
    assert!(
        good.out.starts_with("p: serving\nr: in quarantine for another "),
        "{}",
        good.out
    );
    assert!(good.out.ends_with("\nok\n"), "{}", good.out);
    let typo = check("fencpost");
    assert!(
        typo.code == Some(1) && typo.err.contains("namespace p: "),
        "{}",
        typo.err
    );
    assert!(typo.err.contains("fencpost"), "{}", typo.err);
}
