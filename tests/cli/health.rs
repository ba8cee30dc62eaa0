//! `fencepost health`.

use crate::cli::program::{Fixture, asking, run, text};
use crate::cli::server::Server;

#[test]
fn health_is_the_exit_code() {
    let home = tempfile::tempdir().expect("a directory");
    // Nobody listens there.
    let config = "first_contact_timeout = \"0s\"\n[namespaces.default]\n[namespaces.away]\nbackend = \"redis\"\n[namespaces.away.redis]\nurls = [\"redis://127.0.0.1:1\"]\n";
    let file = home.path().join("fencepost.toml");
    std::fs::write(&file, config).expect("written");
    let file = file.to_str().expect("a path");
    let server = Server::start_with(&home, &["--config", file, "--listen", "127.0.0.1:0"]);
    let cases: [(&[&str], i32, &str); 4] = [
        (&[], 0, "serving"),
        (&["--namespace", "default"], 0, "serving"),
        (&["--namespace", "away"], 123, "NOT_SERVING"),
        (&["--namespace", "nowhere"], 1, "there is no namespace"),
    ];
    for (arguments, code, words) in cases {
        let output = run(asking(&server.address, [&["health"], arguments].concat()));
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    let address = server.address.clone();
    drop(server);
    assert_eq!(run(asking(&address, ["health"])).status.code(), Some(123));
}

#[test]
fn times_in_errors_are_as_they_were_written() {
    let fixture = Fixture::start();
    for (flag, time) in [
        ("--wait", "1week"),
        ("--wait", "86401s"),
        ("--ttl", "86401s"),
        ("--ttl", "25h"),
    ] {
        for command in [
            &["acquire", "default/a", flag, time][..],
            &["lock", "default/a", flag, time, "--", "true"],
        ] {
            let output = fixture.run(command);
            let said = text(&output.stderr);
            assert!(!output.status.success(), "{said}");
            assert!(
                said.contains("1day, not ") && said.contains(&format!("not {time}")),
                "{command:?}: {said}"
            );
        }
    }
}
