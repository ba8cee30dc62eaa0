//! What each command prints, word for word, but for the digits.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::cli::forwarder::Forwarder;
use crate::cli::program::{Fixture, run, shape, text};
use crate::cli::pty::{Pty, uncoloured};

/// A lock with a holder and a waiter; the waiter leaves in the end.
fn busy(fixture: &Fixture) -> (Value, crate::cli::program::Running) {
    let lease = fixture.json(&[
        "acquire",
        "default/reports",
        "--owner",
        "me",
        "--ttl",
        "1h",
        "--metadata",
        "job=nightly",
    ]);
    let waiter = fixture.begin(&[
        "acquire",
        "default/reports",
        "--owner",
        "you",
        "--shared",
        "--wait",
        "60s",
    ]);
    crate::cli::server::until("one waits", || {
        (fixture.count("default/reports", "waiterCount") == 1).then_some(())
    });
    (lease, waiter)
}

#[test]
fn get_shows_who_holds_since_when_how_long_still_and_who_waits_at_which_place() {
    let fixture = Fixture::start();
    assert_eq!(fixture.said(&["get", "default/free"]), "default/free: free\n");
    let _both = busy(&fixture);
    assert_eq!(
        shape(&fixture.said(&["get", "default/reports"])),
        "\
default/reports: 0 holds, 0 waits

HOLDER  TOKEN             MODE       SINCE                 LEFT      HOLDS  METADATA
me      0000000000000000  exclusive  0000-00-00T00:00:00Z  0000.0 s  0      job=nightly

PLACE  WAITER  MODE    SINCE                 METADATA
0      you     shared  0000-00-00T00:00:00Z
"
    );
}

#[test]
fn list_shows_the_locks_in_use_by_prefix() {
    let fixture = Fixture::start();
    assert_eq!(fixture.said(&["list", "default"]), "no lock is in use\n");
    let _both = busy(&fixture);
    fixture.held("default/deploy", "ci");
    let table = "\
LOCK     HOLD  WAIT  FIRST HOLDER  SINCE                 LEFT
deploy   0     0     ci            0000-00-00T00:00:00Z  0000.0 s
reports  0     0     me            0000-00-00T00:00:00Z  0000.0 s
";
    assert_eq!(shape(&fixture.said(&["list", "default"])), table);
    let only = shape(&fixture.said(&["list", "default/rep"]));
    assert!(only.contains("reports") && !only.contains("deploy"), "{only}");
}

#[test]
fn a_list_of_many_pages_is_shown_whole() {
    let fixture = Fixture::start();
    let names: Vec<String> = (0..130).map(|number| format!("default/many-{number:03}")).collect();
    for name in &names {
        fixture.said(&["acquire", name, "--quiet"]);
    }
    let shown = fixture.said(&["list", "default"]);
    assert_eq!(shown.matches("many-").count(), names.len());
    assert_eq!(shown.lines().count(), 1 + names.len(), "one header: {shown}");
    let objects = fixture.said(&["list", "default", "-o", "json"]);
    let shown: Vec<String> = objects
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("an object in each line"))
        .map(|lock| format!("{}/{}", text_of(&lock, "namespace"), text_of(&lock, "name")))
        .collect();
    assert_eq!(shown, names);
}

fn text_of<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().expect("a text")
}

#[test]
fn acquire_and_renew_show_the_lease_and_quiet_only_its_id() {
    let fixture = Fixture::start();
    let table = |said: &str| {
        let (lease, id) = said.split_once("lease id   ").expect("the id");
        assert!(id.starts_with("1:default:reports:"), "{id}");
        shape(lease)
    };
    let expected = "\
lock       default/reports
owner      me
token      0000000000000000
ttl        0000.0 s
waited     0.0 s
guarantee  CP
holds      0
";
    let said = fixture.said(&["acquire", "default/reports", "--owner", "me", "--ttl", "1h"]);
    assert_eq!(table(&said), expected);
    let id = said
        .lines()
        .last()
        .expect("the id")
        .split_whitespace()
        .last()
        .expect("it");
    assert_eq!(table(&fixture.said(&["renew", id])), expected);
    assert_eq!(fixture.said(&["release", id]), "released\n");
    let id = fixture.said(&["acquire", "default/reports", "--quiet"]);
    assert_eq!(fixture.said(&["release", id.trim_end()]), "released\n");
}

// G210
#[test]
fn a_release_keeps_the_lock() {
    let fixture = Fixture::start();
    let id = fixture.said(&["acquire", "default/reports", "--quiet"]);
    let release = ["release", id.trim_end(), "--keep-for", "1m"];
    assert_eq!(fixture.said(&release), "released; the lock stays taken for 60.0 s\n");
    let again = &fixture.json(&["release", id.trim_end()])["keptFor"];
    assert!(again.as_str().is_some_and(|left| left.starts_with("5")), "{again}");
    assert!(!fixture.run(&["acquire", "default/reports"]).status.success());
}

#[test]
fn a_lease_id_comes_from_the_environment_too() {
    let fixture = Fixture::start();
    let id = fixture.said(&["acquire", "default/reports", "--quiet"]);
    let mut release = fixture.command(["release"]);
    release.env("FENCEPOST_LEASE_ID", id.trim_end());
    assert_eq!(text(&run(release).stdout), "released\n");
}

#[test]
fn tokens_are_checked_and_forced() {
    let fixture = Fixture::start();
    let token = fixture.held("default/reports", "me")["fencingToken"]
        .as_str()
        .expect("a token")
        .to_owned();
    let check = ["check-token", "default/reports", &token];
    assert_eq!(
        shape(&fixture.said(&check)),
        "held by me for 0000.0 s unless it is renewed\n"
    );
    assert_eq!(
        fixture.said(&["force-release", "default/reports", &token]),
        "released by force\n"
    );
    let gone = fixture.run(&check);
    assert_eq!(
        (gone.status.code(), text(&gone.stdout)),
        (Some(122), "not held\n".to_owned())
    );
    assert_eq!(
        fixture.run(&["force-release", "default/reports", &token]).status.code(),
        Some(122)
    );
}

#[test]
fn namespaces_show_store_guarantee_limits_and_health() {
    let fixture = Fixture::start();
    assert_eq!(
        fixture.said(&["namespaces"]),
        "\
NAMESPACE  STORE     GUARANTEE  TTL                  WAIT     QUEUE     MODES                                HEALTH
default    embedded  CP         30s (500ms to 1day)  to 1day  to 20000  exclusive shared semaphore re-entry  serving
"
    );
}

#[test]
fn sessions_show_who_keeps_how_many_leases() {
    let fixture = Fixture::start();
    assert_eq!(fixture.said(&["sessions"]), "no session is open\n");
    assert_eq!(fixture.said(&["sessions", "-o", "json"]), "");
    let _lock = fixture.begin(&["lock", "default/reports", "--", "sleep", "60"]);
    let shown = || fixture.json(&["sessions"]);
    crate::cli::server::until("a lease is kept", || {
        let all = fixture.said(&["sessions", "-o", "json"]);
        (!all.is_empty() && shown()["attachedLeases"] == 1).then_some(())
    });
    assert_fields(
        &shown(),
        "number kind identity peer since attachedLeases commandsInFlight waits unsentBytes locks locks[].namespace locks[].name clientName \
         clientVersion",
    );
    assert_eq!(shown()["kind"], "SESSION_KIND_KEEP_ALIVE");
    assert_eq!(shown()["locks"], json!([{ "namespace": "default", "name": "reports" }]));
    let table = shape(&fixture.said(&["sessions"]));
    let (head, row) = table.split_once('\n').expect("two lines");
    let head: Vec<&str> = head.split_whitespace().collect();
    assert_eq!(
        head,
        [
            "NUMBER", "KIND", "CLIENT", "IDENTITY", "PEER", "SINCE", "LEASES", "COMMANDS", "WAITS", "UNSENT"
        ]
    );
    let row: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(row[..2], ["0", "KeepAlive"], "{table}");
    assert!(row[2].starts_with("000.0.0.0:"), "{table}");
    assert_eq!(row[3..], ["0000-00-00T00:00:00Z", "0", "0", "0", "0"], "{table}");
}

#[test]
fn watch_shows_the_state_and_each_change() {
    let fixture = Fixture::start();
    let file = fixture.path("watched");
    let mut watch = fixture.command(["watch", "default/reports"]);
    watch.stdout(std::fs::File::create(&file).expect("a file"));
    let _watching = crate::cli::program::Running::new(watch);
    crate::cli::program::until_written(&file);
    let id = fixture.said(&[
        "acquire",
        "default/reports",
        "--owner",
        "me",
        "--metadata",
        "job=nightly",
        "--quiet",
    ]);
    fixture.said(&["release", id.trim_end()]);
    let expected = "\
default/reports: free
0000-00-00T00:00:00Z  granted   me with token 0000000000000000: 0 holds, 0 wait  job=nightly
0000-00-00T00:00:00Z  released  me with token 0000000000000000: 0 hold, 0 wait  job=nightly
";
    let shown = || shape(&crate::cli::program::content(&file));
    crate::cli::server::until("three messages", || (shown().lines().count() >= 3).then_some(()));
    assert_eq!(shown(), expected);
}

/// All fields of an answer, as `a.b[].c`.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(all) => {
            for (name, value) in all {
                let path = format!("{path}.{name}");
                found.insert(path.clone());
                fields(value, &path, found);
            }
        }
        Value::Array(all) => all.iter().for_each(|value| fields(value, &format!("{path}[]"), found)),
        _ => {}
    }
}

fn assert_fields(answer: &Value, expected: &str) {
    let mut found = BTreeSet::new();
    fields(answer, "", &mut found);
    let expected: BTreeSet<String> = expected.split_whitespace().map(|field| format!(".{field}")).collect();
    assert_eq!(found, expected, "{answer}");
}

#[test]
fn json_has_the_fields_of_the_api() {
    let fixture = Fixture::start();
    let (lease, _waiter) = busy(&fixture);
    assert_fields(
        &lease,
        "leaseId fencingToken ttl waited namespace name owner guarantee holds",
    );
    assert_eq!(
        (&lease["ttl"], &lease["guarantee"]),
        (&"3600s".into(), &"GUARANTEE_CP".into())
    );
    let id = lease["leaseId"].as_str().expect("an id");
    assert_eq!(fixture.json(&["renew", id])["fencingToken"], lease["fencingToken"]);
    let holder = "owner fencingToken remainingTtl mode mode.exclusive holds metadata since identity";
    let under = |path: &str, names: &str| {
        let all: Vec<String> = names.split(' ').map(|name| format!("{path}.{name}")).collect();
        all.join(" ")
    };
    assert_fields(
        &fixture.json(&["get", "default/reports"]),
        &format!(
            "namespace name holderCount waiterCount holders {} holders[].metadata.job waiters {}",
            under("holders[]", holder),
            under("waiters[]", "owner mode mode.shared metadata since identity")
        ),
    );
    assert_fields(
        &fixture.json(&["list", "default"]),
        &format!(
            "namespace name holderCount waiterCount isElection firstHolder {}",
            under("firstHolder", holder)
        ),
    );
    let token = lease["fencingToken"].as_str().expect("a token");
    assert_fields(
        &fixture.json(&["check-token", "default/reports", token]),
        "held owner remainingTtl",
    );
    let namespace = "name backend guarantee limits health reason modes reentry remembersRequests updatesMetadata nodes";
    let limits = under(
        "limits",
        "ttlMin ttlDefault ttlMax waitMax queueLimit nameLimit finishedLimit holdLimit",
    );
    assert_fields(&fixture.json(&["namespaces"]), &format!("{namespace} {limits}"));
    assert_fields(&fixture.json(&["force-release", "default/reports", token]), "");
    let other = fixture.held("default/other", "me");
    assert_fields(
        &fixture.json(&["release", other["leaseId"].as_str().expect("an id")]),
        "",
    );
}

#[test]
fn a_terminal_shows_the_same_as_a_pipe_with_colours_unless_they_are_unwanted() {
    let fixture = Fixture::start();
    let (lease, _waiter) = busy(&fixture);
    let word = |name: &str| lease[name].as_str().expect("a text").to_owned();
    let (id, token) = (word("leaseId"), word("fencingToken"));
    let other = fixture.held("default/other", "me");
    let other = other["leaseId"].as_str().expect("an id");
    let all: [&[&str]; 8] = [
        &["get", "default/reports"],
        &["list", "default"],
        &["namespaces"],
        &["check-token", "default/reports", &token],
        &["renew", &id],
        &[
            "acquire",
            "default/new",
            "--owner",
            "me",
            "--ttl",
            "1h",
            "--request-id",
            "same",
        ],
        &["release", other],
        &["lock", "default/run", "--", "echo", "under a lock"],
    ];
    for arguments in all {
        let piped = fixture.said(arguments);
        let (code, shown) = Pty::run(&fixture.command(arguments)).end();
        assert_eq!(code, Some(0), "{arguments:?}: {shown}");
        assert_eq!(shape(&uncoloured(&shown)), shape(&piped), "{arguments:?}");
        assert!(!piped.contains('\x1b'), "{arguments:?}: {piped:?}");
        let mut plain = fixture.command(arguments);
        plain.env("NO_COLOR", "1");
        let (_, shown) = Pty::run(&plain).end();
        assert!(!shown.contains('\x1b'), "{arguments:?}: {shown:?}");
    }
    let (_, shown) = Pty::run(&fixture.command(["get", "default/reports"])).end();
    assert!(shown.contains("\x1b[1mHOLDER"), "{shown:?}");
    let (code, shown) = Pty::run(&fixture.command(["force-release", "default/reports", &token])).end();
    assert_eq!((code, shown.as_str()), (Some(0), "released by force\n"));
    let mut watch = Pty::run(&fixture.command(["watch", "default/new"]));
    watch.until_shown("default/new: 1 holds, 0 wait");
    watch.press("\x03");
    assert_eq!(watch.running.end(), None, "the key's signal ends it");
}

#[test]
fn list_without_a_namespace_shows_those_of_all() {
    let fixture = Fixture::start();
    assert_eq!(fixture.said(&["list"]), "no lock is in use\n");
    fixture.held("default/reports", "me");
    let shown = fixture.said(&["list"]);
    assert!(
        shown.lines().nth(1).expect("a row").starts_with("default/reports "),
        "{shown}"
    );
    let lock = fixture.json(&["list"]);
    assert_eq!(
        (text_of(&lock, "namespace"), text_of(&lock, "name")),
        ("default", "reports")
    );
}

// G48
#[test]
fn watch_and_observe_go_on_when_their_only_server_restarts() {
    let home = tempfile::tempdir().expect("a directory");
    let mut server = crate::cli::server::Server::start(&home);
    let address = server.address.clone();
    let mut begun = [("watch", "watched"), ("observe", "observed")].map(|(command, file)| {
        let file = home.path().join(file);
        let mut command = crate::cli::program::asking(&address, [command, "default/reports"]);
        command.stdout(std::fs::File::create(&file).expect("a file"));
        let running = crate::cli::program::Running::new(command);
        crate::cli::program::until_written(&file);
        (running, file)
    });
    for owner in ["first", "second"] {
        let arguments = [
            "acquire",
            "default/reports",
            "--owner",
            owner,
            "--ttl",
            "2s",
            "--wait",
            "30s",
        ];
        let acquired = crate::cli::program::run(crate::cli::program::asking(&address, arguments));
        assert_eq!(acquired.status.code(), Some(0));
        for (running, file) in &mut begun {
            crate::cli::server::until("it shows what happens now", || {
                crate::cli::program::content(file).contains(owner).then_some(())
            });
            assert!(running.0.try_wait().expect("a child").is_none(), "it goes on");
        }
        if owner == "first" {
            server.stop();
            server.end();
            server = crate::cli::server::Server::start_with(&home, &["--listen", &address]);
        }
    }
}

#[test]
fn watch_and_observe_go_on_at_another_server() {
    let fixture = Fixture::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let forwarder = runtime.block_on(Forwarder::before(fixture.server.port()));
    let both = format!("{},unix:{}", forwarder.address(), fixture.server.socket().display());
    let begun = [("watch", "watched"), ("observe", "observed")].map(|(command, file)| {
        let file = fixture.path(file);
        let mut command = crate::cli::program::asking(&both, [command, "default/reports"]);
        command.stdout(std::fs::File::create(&file).expect("a file"));
        let running = crate::cli::program::Running::new(command);
        crate::cli::program::until_written(&file);
        (running, file)
    });
    // Nobody listens there any more.
    drop(runtime);
    drop(forwarder);
    fixture.held("default/reports", "me");
    for ((_running, file), shown) in begun.iter().zip(["1 holds", "me leads"]) {
        crate::cli::server::until("it shows what happens now", || {
            crate::cli::program::content(file).contains(shown).then_some(())
        });
    }
}
