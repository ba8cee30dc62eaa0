//! Values that must not be installed, each refused by name.

use std::path::Path;

use crate::helm::{chart, render, tool};

/// What a configuration given as text must have beside its namespaces.
const TEXT: &str = "listen = ['0.0.0.0:50051']\nmetrics_listen = '0.0.0.0:9464'\n";

/// What the chart renders to with a configuration given as text.
fn with_text(program: &Path, text: &str, more: &[&str]) -> Result<String, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("fencepost.toml");
    std::fs::write(&file, text).expect("the text");
    let config = format!("config={}", file.display());
    render(program, &[&["--set-file", config.as_str()], more].concat())
}

#[test]
fn a_wrong_value_is_refused_with_a_message_that_names_it() {
    let Some(program) = tool("helm") else { return };
    for (set, named) in [
        ("replicas=2", "'replicas'"),
        ("replicaCount=three", "/replicaCount"),
        ("replicaCount=0", "/replicaCount"),
        ("image.pullpolicy=Always", "'pullpolicy'"),
        ("store=redis", "/store"),
        ("tls.clientAuth=always", "/tls/clientAuth"),
        ("podSecurity.runAsUser=0", "/podSecurity/runAsUser"),
        ("service.grpcPort=80", "/service/grpcPort"),
        ("persistence.accessModes={ReadWriteMany}", "/persistence/accessModes/0"),
        ("drainSeconds=601", "/drainSeconds"),
        ("secretFiles[0].secretName=x", "mountPath"),
        ("config.namespaces.Bad.backend=etcd", "Bad"),
        ("service.httpPort=50051", "service.httpPort"),
        ("certificate.enabled=true", "certificate.issuerRef.name"),
        ("tls.enabled=true", "tls.secretName"),
        ("config.listen=x", "config.listen"),
        ("config.metrics_insecure=true", "tls.metrics"),
        (
            "tls.enabled=true,tls.secretName=x,tls.clientAuth=required",
            "tls.clientCaSecret",
        ),
        ("tls.metrics=yes", "/tls/metrics"),
        ("store=shared", "store"),
        ("test.lock=other/x", "test.lock"),
        ("test.lock=default", "/test/lock"),
        ("probes.kind=auto", "/probes/kind"),
        ("hardening.waive={everything}", "/hardening/waive/0"),
        ("image.digest=sha256:12", "/image/digest"),
        ("resources.limits.memory=much", "resources.limits.memory"),
    ] {
        let said = render(&program, &["--set", set]).expect_err(set);
        assert!(said.contains(named), "{set}: {said}");
    }
}

#[test]
fn an_embedded_store_is_never_rendered_with_more_than_one_server() {
    let Some(program) = tool("helm") else { return };
    let example = chart().join("examples/embedded.yaml");
    let example = ["--values", example.to_str().expect("a path")];
    let mixed = [
        "--set",
        "config.namespaces.a.backend=etcd,config.namespaces.b.ttl_max=1m",
    ];
    for values in [&[][..], &example, &mixed] {
        render(&program, values).expect("one server");
        let said = render(&program, &[values, &["--set", "replicaCount=2"]].concat()).expect_err("two");
        assert!(
            said.contains("replicaCount must be 1 with the embedded store, not 2"),
            "{said}"
        );
        let said = render(&program, &[values, &["--set", "autoscaling.enabled=true"]].concat()).expect_err("more");
        assert!(
            said.contains("autoscaling.enabled must be false with the embedded store"),
            "{said}"
        );
    }
}

#[test]
fn a_password_in_the_configuration_is_refused() {
    let Some(program) = tool("helm") else { return };
    let url = "config.namespaces.a.redis.urls={redis://fencepost:hunter2@redis:6379}";
    let said = render(&program, &["--set", "config.namespaces.a.backend=redis", "--set", url]).expect_err("a password");
    assert!(
        said.contains("config has a password in a URL") && !said.contains("hunter2"),
        "{said}"
    );
}

#[test]
fn probes_over_grpc_are_refused_with_tls() {
    let Some(program) = tool("helm") else { return };
    let said = render(
        &program,
        &["--set", "tls.enabled=true,tls.secretName=x,probes.kind=grpc"],
    )
    .expect_err("no TLS");
    assert!(said.contains("probes.kind"), "{said}");
}

#[test]
fn probes_over_grpc_are_refused_where_health_is_closed() {
    let Some(program) = tool("helm") else { return };
    let map = "config.auth.health=closed,config.insecure=true,probes.kind=grpc";
    let map = render(&program, &["--set", map]);
    let text = "[auth]\nhealth = 'closed'\n[namespaces.a]\nbackend = 'etcd'\n";
    let text = with_text(&program, text, &["--set", "probes.kind=grpc"]);
    for rendered in [map, text] {
        let said = rendered.expect_err("nobody is let in");
        assert!(said.contains("probes.kind must be http"), "{said}");
    }
}

#[test]
fn proof_of_who_calls_crosses_no_network_in_the_clear_unasked() {
    let Some(program) = tool("helm") else { return };
    let auth = "config.auth.bearer_file=/etc/bearers";
    let said = render(&program, &["--set", auth]).expect_err("in plain text");
    assert!(
        said.contains("tls.enabled must be true where config.auth is set"),
        "{said}"
    );
    for more in ["config.insecure=true", "tls.enabled=true,tls.secretName=x"] {
        render(&program, &["--set", auth, "--set", more]).expect(more);
    }
}

#[test]
fn a_configuration_given_as_text_is_looked_into_as_a_map_is() {
    let Some(program) = tool("helm") else { return };
    let etcd = format!("{TEXT}insecure = true\n[namespaces.a]\nbackend = 'etcd'\n");
    for replicas in ["replicaCount=3", "replicaCount=3,store=shared"] {
        with_text(&program, &etcd, &["--set", replicas]).expect(replicas);
    }
    let mixed = format!("{etcd}[namespaces.b]\n");
    let proofs = format!("{TEXT}[auth]\nbearer_file = '/b'\n[namespaces.a]\nbackend = 'etcd'\n");
    let encrypted = format!("{etcd}[tls]\ncertificate = '/c'\nkey = '/k'\n");
    let tls = "tls.enabled=true,tls.secretName=x";
    for (text, set, named) in [
        (
            mixed.as_str(),
            "replicaCount=3",
            "replicaCount must be 1 with the embedded store",
        ),
        (&mixed, "store=shared", "store is \"shared\""),
        (&mixed, "autoscaling.enabled=true", "autoscaling.enabled must be false"),
        (TEXT, "replicaCount=3", "replicaCount must be 1 with the embedded store"),
        (&etcd, "store=embedded", "store is \"embedded\""),
        (
            &proofs,
            "replicaCount=3",
            "tls.enabled must be true where config.auth is set",
        ),
        (
            &etcd,
            "service.grpcPort=50052",
            "listen of a config given as text must be at port 50052",
        ),
        (
            &etcd,
            "service.httpPort=9465",
            "metrics_listen of a config given as text must be at port 9465",
        ),
        (
            &etcd,
            "drainSeconds=30",
            "drain_timeout of a config given as text must be \"30s\"",
        ),
        (
            &etcd,
            tls,
            "tls.enabled must be true where a config given as text has a table tls",
        ),
        (
            &encrypted,
            "replicaCount=1",
            "tls.enabled must be true where a config given as text has a table tls",
        ),
        (&encrypted, tls, "tls.metrics must be false where"),
        ("[namespaces", "replicaCount=1", "config is no TOML file"),
        (
            "namespaces = 3",
            "replicaCount=1",
            "namespaces in config must be a table",
        ),
        ("namespaces = {a = 3}", "replicaCount=1", "a in config must be a table"),
    ] {
        let said = with_text(&program, text, &["--set", set]).expect_err(named);
        assert!(said.contains(named), "{text} with {set}: {said}");
    }
    let open = format!("metrics_insecure = true\n{encrypted}");
    with_text(&program, &open, &["--set", tls]).expect("both say so");
}

#[test]
fn the_drain_that_a_text_leaves_out_is_the_servers_own() {
    let Some(program) = tool("helm") else { return };
    let text = format!("{TEXT}insecure = true\n");
    with_text(&program, &text, &[]).expect("the chart's default is the server's");
    let shown = std::process::Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .args(["config", "show"])
        .env_clear()
        .env("HOME", "/")
        .output()
        .expect("the program runs");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("\ndrain_timeout = \"20s\"\n"), "{shown}");
}
