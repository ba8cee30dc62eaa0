//! `fencepost status`.

use serde_json::Value;

use crate::cli::program::{Fixture, asking, run, text};
use crate::cli::server::Server;

#[test]
fn each_address_has_a_row_and_a_dead_one_has_its_error() {
    let fixture = Fixture::start();
    let living = fixture.server.address.as_str();
    let all = format!("127.0.0.1:1,{living},no-such-host.invalid:1");
    let output = run(asking(&all, ["status"]));
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(123), "{said}");
    let rows: Vec<&str> = said.lines().skip(1).collect();
    let [refused, serving, unknown] = rows.as_slice() else {
        panic!("three rows: {said}")
    };
    assert!(refused.starts_with("127.0.0.1:1 "), "{said}");
    assert!(
        refused.contains("no answer: no server answers at 127.0.0.1:1"),
        "{said}"
    );
    assert!(
        serving.starts_with(living) && serving.ends_with("1 of 1      serving"),
        "{said}"
    );
    assert!(unknown.contains("no answer"), "{said}");
    let alone = run(asking(living, ["status"]));
    assert_eq!(alone.status.code(), Some(0), "{}", text(&alone.stderr));
}

#[test]
fn a_store_that_does_not_serve_is_told_in_the_row_of_each_server() {
    let home = tempfile::tempdir().expect("a directory");
    // Nobody listens there.
    let config = "first_contact_timeout = \"0s\"\n[namespaces.default]\n[namespaces.away]\nbackend = \"redis\"\n[namespaces.away.redis]\nurls = [\"redis://127.0.0.1:1\"]\n";
    let file = home.path().join("fencepost.toml");
    std::fs::write(&file, config).expect("written");
    let file = file.to_str().expect("a path");
    let server = Server::start_with(&home, &["--config", file, "--listen", "127.0.0.1:0"]);
    let output = run(asking(&server.address, ["status"]));
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(123), "{said}");
    assert!(
        said.contains("1 of 2") && said.contains("serving; away unavailable"),
        "{said}"
    );
    let both = format!("{0},{0}", server.address);
    let output = run(asking(&both, ["status", "-o", "json"]));
    let lines: Vec<Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    assert_eq!(lines.len(), 2);
    for line in lines {
        assert_eq!(
            (line["address"].as_str(), line["state"].as_str()),
            (Some(server.address.as_str()), Some("serving"))
        );
        assert_eq!(
            line["namespaces"][0]["health"], "NAMESPACE_HEALTH_UNAVAILABLE",
            "{line}"
        );
        assert!(line["tookMs"].as_f64().expect("a time") > 0.0);
    }
}
