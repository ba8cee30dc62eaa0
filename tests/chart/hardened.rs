//! What must never slip in any rendering.

use serde_json::{Value, json};

use crate::helm::{at, objects, of_kind, render, shipped, shipped_objects, tool};

/// The specs of all pods that the objects make.
fn pods(objects: &[Value]) -> Vec<&Value> {
    let workloads = ["Deployment", "StatefulSet"]
        .into_iter()
        .flat_map(|kind| of_kind(objects, kind));
    let templates = workloads.map(|workload| at(workload, "/spec/template/spec"));
    let single = of_kind(objects, "Pod").map(|pod| &pod["spec"]);
    templates.chain(single).collect()
}

#[test]
fn no_pod_has_more_rights_than_it_needs() {
    let Some(program) = tool("helm") else { return };
    for values in shipped() {
        let objects = shipped_objects(&program, &values);
        let pods = pods(&objects);
        assert_eq!(pods.len(), 2, "{values:?}: the server and the test");
        for pod in pods {
            assert_eq!(pod["automountServiceAccountToken"], false, "{values:?}");
            assert_eq!(at(pod, "/securityContext/runAsNonRoot"), true, "{values:?}");
            assert_eq!(
                at(pod, "/securityContext/seccompProfile/type"),
                "RuntimeDefault",
                "{values:?}"
            );
            for namespace in ["hostNetwork", "hostPID", "hostIPC"] {
                assert_eq!(pod[namespace], Value::Null, "{values:?}");
            }
            for container in pod["containers"].as_array().expect("containers") {
                let context = &container["securityContext"];
                assert_eq!(context["runAsNonRoot"], true, "{values:?}");
                assert_eq!(context["readOnlyRootFilesystem"], true, "{values:?}");
                assert_eq!(context["allowPrivilegeEscalation"], false, "{values:?}");
                assert_eq!(context["privileged"], false, "{values:?}");
                assert_eq!(context["capabilities"], json!({ "drop": ["ALL"] }), "{values:?}");
                assert_eq!(at(context, "/seccompProfile/type"), "RuntimeDefault", "{values:?}");
                assert!(at(container, "/resources/limits/memory").is_string(), "{values:?}");
            }
            for volume in pod["volumes"].as_array().into_iter().flatten() {
                assert_eq!(volume["hostPath"], Value::Null, "{values:?}");
            }
        }
        for account in of_kind(&objects, "ServiceAccount") {
            assert_eq!(account["automountServiceAccountToken"], false, "{values:?}");
        }
    }
}

#[test]
fn the_time_to_end_covers_the_announcement_and_the_drain() {
    let Some(program) = tool("helm") else { return };
    let set = "drainSeconds=90,preStopSeconds=15,config.namespaces.a.backend=etcd";
    let objects = objects(&render(&program, &["--set", set]).expect("rendered"));
    let pod = pods(&objects)[0];
    let grace = pod["terminationGracePeriodSeconds"].as_u64().expect("a number");
    // After the drain, calls are cut (1 s) and undone (5 s).
    assert!(grace >= 15 + 90 + 6, "{grace}");
    assert_eq!(at(pod, "/containers/0/lifecycle/preStop/sleep/seconds"), 15);
    let config = of_kind(&objects, "ConfigMap").next().expect("the configuration");
    let config = config["data"]["fencepost.toml"].as_str().expect("a text");
    assert!(config.contains("drain_timeout = \"90s\"\n"), "{config}");
}

#[test]
fn no_config_map_and_no_argument_holds_a_secret() {
    let Some(program) = tool("helm") else { return };
    for values in shipped() {
        let objects = shipped_objects(&program, &values);
        assert_eq!(
            of_kind(&objects, "Secret").count(),
            0,
            "{values:?}: secrets are references"
        );
        for map in of_kind(&objects, "ConfigMap") {
            let data = map["data"].as_object().expect("data");
            for (name, text) in data {
                let text = text.as_str().expect("text");
                for hint in [
                    "BEGIN PRIVATE",
                    "BEGIN RSA",
                    "BEGIN EC",
                    "password =",
                    "token =",
                    "secret =",
                ] {
                    assert!(!text.contains(hint), "{values:?}: {name} has {hint:?}");
                }
            }
        }
        for pod in pods(&objects) {
            for variable in at(pod, "/containers/0/env").as_array().into_iter().flatten() {
                let named = variable["name"].as_str().expect("a name").to_lowercase();
                let is_secret = ["password", "token", "key"].iter().any(|word| named.contains(word));
                assert!(
                    !is_secret || variable["valueFrom"].is_object(),
                    "{values:?}: {variable}"
                );
            }
        }
    }
}

#[test]
fn with_tls_kubelets_ask_over_http_and_the_test_pod_gets_no_key() {
    let Some(program) = tool("helm") else { return };
    let set = "tls.enabled=true,tls.secretName=certificate,config.namespaces.a.backend=etcd";
    let objects = objects(&render(&program, &["--set", set]).expect("rendered"));
    let [server, test] = pods(&objects)[..] else {
        panic!("two pods")
    };
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert_eq!(server["containers"][0][probe]["grpc"], Value::Null, "{probe}");
        assert_eq!(server["containers"][0][probe]["httpGet"]["port"], "http", "{probe}");
    }
    assert_eq!(
        at(test, "/volumes/0/secret/items"),
        &json!([{ "key": "ca.crt", "path": "ca.crt" }])
    );
}

#[test]
fn no_probe_needs_to_be_anybody() {
    let Some(program) = tool("helm") else { return };
    for set in [
        "config.namespaces.a.backend=etcd",
        "config.auth.health=closed,config.insecure=true,config.namespaces.a.backend=etcd",
    ] {
        let objects = objects(&render(&program, &["--set", set]).expect("rendered"));
        let server = pods(&objects)[0];
        for (probe, path) in [
            ("startupProbe", "/healthz"),
            ("livenessProbe", "/healthz"),
            ("readinessProbe", "/readyz"),
        ] {
            let asks = &server["containers"][0][probe]["httpGet"];
            assert_eq!((&asks["port"], &asks["path"]), (&json!("http"), &json!(path)), "{set}");
        }
    }
}

#[test]
fn clients_are_not_trusted_by_the_issuer_of_the_servers_certificate() {
    let Some(program) = tool("helm") else { return };
    for values in shipped() {
        let objects = shipped_objects(&program, &values);
        let config = of_kind(&objects, "ConfigMap").find_map(|map| map["data"]["fencepost.toml"].as_str());
        let config = config.expect("the configuration");
        let Some((_, rest)) = config.split_once("client_ca = ") else {
            continue;
        };
        assert!(
            rest.starts_with("\"/etc/fencepost/client-ca/ca.crt\""),
            "{values:?}: {config}"
        );
        let server = pods(&objects)[0];
        let volumes = server["volumes"].as_array().expect("volumes");
        let volume = |name: &str| volumes.iter().find(|volume| volume["name"] == name).expect(name);
        let (own, clients) = (volume("tls"), volume("client-ca"));
        assert_ne!(
            own["secret"]["secretName"], clients["secret"]["secretName"],
            "{values:?}"
        );
        let authority = json!([{ "key": "ca.crt", "path": "ca.crt" }]);
        assert_eq!(clients["secret"]["items"], authority, "{values:?}: not its key");
    }
}

/// The annotation that replaces pods when it changes.
fn read_at_start(program: &std::path::Path, more: &str) -> Value {
    let set = ["--set", "config.namespaces.a.backend=etcd", "--set", more];
    let objects = objects(&render(program, &set).expect(more));
    let servers = of_kind(&objects, "Deployment").next().expect("the servers");
    let found = at(servers, "/spec/template/metadata/annotations/checksum~1read-at-start");
    assert!(found.is_string(), "{more}");
    found.clone()
}

#[test]
fn what_a_server_would_refuse_to_take_up_replaces_it_and_nothing_else_does() {
    let Some(program) = tool("helm") else { return };
    let before = read_at_start(&program, "config.insecure=true");
    for live in [
        "config.log.level=debug",
        "config.ready_namespaces={a}",
        "config.namespaces.a.queue_limit=7",
    ] {
        let set = format!("config.insecure=true,{live}");
        assert_eq!(read_at_start(&program, &set), before, "{live}");
    }
    for start in [
        "drainSeconds=30",
        "config.server.call_limit=7",
        "config.log.format=json",
        "config.namespaces.a.etcd.root=/b",
        "config.auth.health=open",
    ] {
        let set = format!("config.insecure=true,{start}");
        assert_ne!(read_at_start(&program, &set), before, "{start}");
    }
}
