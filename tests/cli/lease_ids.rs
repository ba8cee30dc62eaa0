//! Lease ids, which are secrets, reach `renew` and `release` on ways that other users cannot read.

use std::fs::{self, File};
use std::io::Write;
use std::process::Stdio;

use crate::cli::program::{Fixture, Running, run, text};
use crate::cli::server::until;

fn lease_id(fixture: &Fixture, lock: &str) -> String {
    fixture.held(lock, "me")["leaseId"]
        .as_str()
        .expect("a lease id")
        .to_owned()
}

#[test]
fn a_lease_is_renewed_and_released_by_a_file_the_environment_and_the_argument() {
    let fixture = Fixture::start();
    let file = fixture.path("lease");
    let path = file.to_str().expect("a path");
    for (lock, verb) in [("default/a", "renew"), ("default/b", "release")] {
        let lease = lease_id(&fixture, lock);
        // As `acquire --quiet` writes it.
        fs::write(&file, format!("{lease}\n")).expect("written");
        let by_file = fixture.run(&[verb, "--lease-id-file", path]);
        assert_eq!(by_file.status.code(), Some(0), "{}", text(&by_file.stderr));
    }
    assert_eq!(fixture.count("default/b", "holderCount"), 0);
    let lease = lease_id(&fixture, "default/c");
    let mut by_variable = fixture.command(["renew"]);
    by_variable.env("FENCEPOST_LEASE_ID", &lease);
    assert_eq!(run(by_variable).status.code(), Some(0));
    // A file wins over the lease of the command that this one runs under.
    let mut by_both = fixture.command(["release", "--lease-id-file", path]);
    fs::write(&file, &lease).expect("written");
    by_both.env("FENCEPOST_LEASE_ID", "another");
    assert_eq!(run(by_both).status.code(), Some(0));
    assert_eq!(fixture.count("default/c", "holderCount"), 0);
    let lease = lease_id(&fixture, "default/d");
    fixture.said(&["release", &lease]);
    assert_eq!(fixture.count("default/d", "holderCount"), 0);
}

#[test]
fn what_editors_and_shells_add_to_a_lease_id_is_left_out() {
    let fixture = Fixture::start();
    let dressed = format!("\u{feff} {}\r\n", lease_id(&fixture, "default/a"));
    let file = fixture.path("lease");
    fs::write(&file, &dressed).expect("written");
    let by_file = fixture.command(["renew", "--lease-id-file", file.to_str().expect("a path")]);
    let by_argument = fixture.command(["renew", &dressed]);
    let mut by_variable = fixture.command(["renew"]);
    by_variable.env("FENCEPOST_LEASE_ID", &dressed);
    for (form, command) in [by_file, by_argument, by_variable].into_iter().enumerate() {
        let output = run(command);
        assert_eq!(output.status.code(), Some(0), "{form}: {}", text(&output.stderr));
    }
}

#[test]
fn no_list_of_processes_shows_a_lease_that_comes_by_standard_input() {
    let fixture = Fixture::start();
    let lease = lease_id(&fixture, "default/a");
    let mut release = fixture.command(["release", "--lease-id-file", "-"]);
    release.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut release = Running::new(release);
    let mut input = release.0.stdin.take().expect("a pipe");
    input.write_all(lease.as_bytes()).expect("sent");
    // While it waits for the end of its input, as a list of processes sees it.
    let file = format!("/proc/{}/cmdline", release.0.id());
    let listed = until("it is listed", || {
        let listed = text(&fs::read(&file).expect("its arguments"));
        listed.contains("--lease-id-file").then_some(listed)
    });
    assert!(!listed.contains(&lease), "{listed}");
    drop(input);
    assert_eq!(release.end(), Some(0));
    until("it is free", || {
        (fixture.count("default/a", "holderCount") == 0).then_some(())
    });
}

#[test]
fn what_holds_no_lease_id_is_a_wrong_argument_and_is_named() {
    let fixture = Fixture::start();
    let (empty, long) = (fixture.path("empty"), fixture.path("long"));
    fs::write(&empty, " \n").expect("written");
    fs::write(&long, "x".repeat(20_000)).expect("written");
    let [empty, long] = [&empty, &long].map(|path| path.to_str().expect("a path"));
    let cases: [(&[&str], &str); 6] = [
        (&["renew"], "FENCEPOST_LEASE_ID"),
        (&["release", "--lease-id-file", empty], "holds no lease id"),
        (&["release", "--lease-id-file", long], "holds no lease id"),
        (&["release", "--lease-id-file", "/nowhere/lease"], "/nowhere/lease"),
        (&["release", "--lease-id-file", "-"], "standard input holds no lease id"),
        (&["release", "x", "--lease-id-file", empty], "cannot be used with"),
    ];
    for (arguments, problem) in cases {
        let output = fixture.run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(problem), "{arguments:?}: {said}");
    }
}

#[test]
fn a_lease_that_nobody_was_told_is_released() {
    let fixture = Fixture::start();
    let is_released = || {
        until("it is released", || {
            (fixture.count("default/a", "holderCount") == 0).then_some(())
        });
    };
    for form in [&["--quiet"][..], &[], &["--output", "json"]] {
        let ask = || {
            let mut ask = fixture.command([&["acquire", "default/a"], form].concat());
            ask.stderr(Stdio::null());
            ask
        };
        let full = File::options().write(true).open("/dev/full").expect("a device");
        let refused = ask().stdout(full).status().expect("it runs");
        assert!(!refused.success(), "{form:?}");
        is_released();
        // The reader has ended before there is anything to read.
        let mut unread = ask().stdout(Stdio::piped()).spawn().expect("it runs");
        drop(unread.stdout.take());
        unread.wait().expect("it ends");
        is_released();
    }
}
