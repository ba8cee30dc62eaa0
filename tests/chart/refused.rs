//! Values that must not be installed, each refused by name.

use crate::helm::{chart, render, tool};

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
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("values.yaml");
    let text = "store: shared\nprobes: {kind: grpc}\nconfig: |\n  [auth]\n  health = 'closed'\n";
    std::fs::write(&file, text).expect("values");
    let file = ["--values", file.to_str().expect("a path")];
    let map = [
        "--set",
        "config.auth.health=closed,config.insecure=true,probes.kind=grpc",
    ];
    for values in [map, file] {
        let said = render(&program, &values).expect_err("nobody is let in");
        assert!(said.contains("probes.kind must be http or auto"), "{said}");
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
