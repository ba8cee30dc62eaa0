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
