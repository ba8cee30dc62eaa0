//! Environment variables that are empty, or that are not of this program.

use std::process::Command;

use serde_json::Value;

use crate::cli::program::{Fixture, asking, run, text};

#[test]
fn an_empty_variable_is_not_set() {
    let fixture = Fixture::start();
    let address = fixture.server.address.as_str();
    let mut get = asking("", ["get", "default/a", "--addr", address]);
    for name in ["CA_FILE", "CERT_FILE", "KEY_FILE", "BEARER_FILE"] {
        get.env(format!("FENCEPOST_{name}"), "");
    }
    let output = run(get);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let mut show = asking("", ["config", "show"]);
    let plain = run(asking("", ["config", "show"]));
    for name in [
        "CONFIG",
        "LISTEN",
        "INSECURE",
        "METRICS_LISTEN",
        "CONSOLE_LISTEN",
        "DATA_DIR",
        "DRAIN_TIMEOUT",
        "LOG_LEVEL",
        "LOG_FORMAT",
    ] {
        show.env(format!("FENCEPOST_{name}"), "");
    }
    let output = run(show);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), text(&plain.stdout));
    // Without the address, the default is asked.
    let output = run(asking("", ["list", "default"]));
    let said = text(&output.stderr);
    assert_ne!(output.status.code(), Some(2), "{said}");
    let mut renew = fixture.command(["renew"]);
    renew.env("FENCEPOST_LEASE_ID", "");
    let said = text(&run(renew).stderr);
    assert!(said.contains("give the lease id"), "{said}");
}

#[test]
fn a_misspelt_variable_is_told_and_is_no_error() {
    let fixture = Fixture::start();
    let mut command = fixture.command(["get", "default/reports"]);
    command.env("FENCEPOST_BEARER_FIEL", "x").env("FENCEPOST_ADRR", "x");
    let output = run(command);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for known in ["FENCEPOST_BEARER_FILE", "FENCEPOST_ADDR"] {
        assert!(said.contains(&format!("did you mean {known}?")), "{said}");
    }
    let mut command = fixture.command(["get", "default/reports"]);
    command.env("FENCEPOST_SERVICE_HOST", "10.0.0.1");
    assert_eq!(text(&run(command).stderr), "", "Kubernetes sets this one");
}

#[test]
fn without_a_user_in_the_environment_the_owner_is_named_as_the_system_names_it() {
    let fixture = Fixture::start();
    let named = Command::new("id").arg("-un").output().expect("id runs");
    let named = text(&named.stdout);
    for empty in [false, true] {
        let mut acquire = fixture.command(["acquire", "default/a", "--output", "json"]);
        acquire.env_remove("USER");
        if empty {
            acquire.env("USER", "");
        }
        let lease: Value = serde_json::from_slice(&acquire.output().expect("it runs").stdout).expect("a lease");
        let owner = lease["owner"].as_str().expect("an owner");
        assert!(owner.starts_with(&format!("{}@", named.trim())), "{owner}");
        fixture.said(&["release", lease["leaseId"].as_str().expect("an id")]);
    }
}
