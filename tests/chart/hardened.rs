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
    // After the drain, calls are cut (1 s), undone and stores closed (7 s), namespaces that a change took away end
    // (5 s), the last spans are sent (2 s), and whatever still hangs is left alone (1 s).
    assert!(grace >= 15 + 90 + 16, "{grace}");
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

/// How the kubelet asks in each of the three probes: "grpc", or the path over HTTP.
fn probes(program: &std::path::Path, set: &str) -> [String; 3] {
    let set = format!("config.namespaces.a.backend=etcd,{set}");
    let objects = objects(&render(program, &["--set", &set]).expect(&set));
    let server = pods(&objects)[0];
    ["startupProbe", "livenessProbe", "readinessProbe"].map(|probe| {
        let probe = &server["containers"][0][probe];
        if probe["grpc"].is_object() {
            assert_eq!(
                (&probe["grpc"], &probe["httpGet"]),
                (&json!({ "port": 50051 }), &Value::Null)
            );
            return "grpc".to_owned();
        }
        assert_eq!(probe["httpGet"]["port"], "http");
        probe["httpGet"]["path"].as_str().expect("a path").to_owned()
    })
}

#[test]
fn kubelets_ask_at_a_port_that_no_call_uses_up() {
    let Some(program) = tool("helm") else { return };
    let http = ["/healthz", "/healthz", "/readyz"];
    for set in [
        "replicaCount=2",
        "probes.kind=http",
        "config.auth.health=closed,config.insecure=true",
        "config.ready_namespaces={a}",
        "tls.enabled=true,tls.secretName=x",
    ] {
        assert_eq!(probes(&program, set), http, "{set}");
    }
    // Whoever asks for it; a full server is then not ready, but is not restarted.
    assert_eq!(probes(&program, "probes.kind=grpc"), ["/healthz", "/healthz", "grpc"]);
}

#[test]
fn names_are_found_wherever_the_clusters_dns_listens() {
    let Some(program) = tool("helm") else { return };
    let egress = "networkPolicy.enabled=true,networkPolicy.egress[0].ports[0].port=6379";
    let objects = objects(&render(&program, &["--set", egress]).expect("rendered"));
    let policy = of_kind(&objects, "NetworkPolicy").next().expect("the policy");
    let port = |port: u16, protocol: &str| json!({ "port": port, "protocol": protocol });
    let both = [port(53, "UDP"), port(53, "TCP"), port(5353, "UDP"), port(5353, "TCP")];
    assert_eq!(at(policy, "/spec/egress/0"), &json!({ "ports": both }));
}

#[test]
fn the_labels_of_everything_are_on_every_pod() {
    let Some(program) = tool("helm") else { return };
    for values in shipped() {
        let values = [
            "--values",
            values.to_str().expect("a path"),
            "--set",
            "commonLabels.team=x",
        ];
        let objects = objects(&render(&program, &values).expect("rendered"));
        for object in &objects {
            assert_eq!(at(object, "/metadata/labels/team"), "x", "{values:?}: {object}");
            let template = at(object, "/spec/template");
            assert!(
                template.is_null() || at(template, "/metadata/labels/team") == "x",
                "{object}"
            );
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

/// What replaces pods when it changes.
fn pod(program: &std::path::Path, set: &[&str]) -> Value {
    let set = [
        "config.insecure=true",
        "config.namespaces.a.backend=etcd",
        "config.ready_namespaces={a}",
    ]
    .iter()
    .chain(set)
    .flat_map(|set| ["--set", set]);
    let set: Vec<&str> = set.collect();
    let objects = objects(&render(program, &set).unwrap_or_else(|said| panic!("{set:?}: {said}")));
    let servers = of_kind(&objects, "Deployment").next().expect("the servers");
    at(servers, "/spec/template").clone()
}

#[test]
fn what_a_server_may_refuse_to_take_up_replaces_it_and_nothing_else_does() {
    let Some(program) = tool("helm") else { return };
    let before = pod(&program, &[]);
    for live in [
        "config.log.level=debug",
        // Which, for whether there are any says how kubelets ask.
        "config.ready_namespaces={b}",
        "config.namespaces.a.queue_limit=7",
        "config.namespaces.a.guarantee=cp",
        // No store but a Redis is opened with it.
        "config.namespaces.a.ttl_max=2h",
    ] {
        assert_eq!(pod(&program, &[live]), before, "{live}");
    }
    for start in [
        "drainSeconds=30",
        "config.server.call_limit=7",
        "config.log.format=json",
        "config.namespaces.a.etcd.root=/b",
        "config.auth.health=open",
        // A server takes it up, but it looks like one whose store moved.
        "config.namespaces.b.backend=etcd",
    ] {
        assert_ne!(pod(&program, &[start]), before, "{start}");
    }
    let tls = "tls.enabled=true,tls.secretName=x,tls.clientCaSecret=y";
    let auth = "config.auth.health=open";
    let asked = |word: &str, more: &[&str]| {
        let word = format!("tls.clientAuth={word}");
        pod(&program, &[&[tls, &word], more].concat())
    };
    assert_ne!(
        asked("required", &[]),
        asked("optional", &[]),
        "nothing else keeps strangers out"
    );
    assert_eq!(asked("none", &[]), asked("optional", &[]));
    assert_eq!(asked("required", &[auth]), asked("optional", &[auth]));
    for backend in ["redis", "redlock"] {
        let redis = format!("config.namespaces.b.backend={backend}");
        let short = pod(&program, &[&redis, "config.namespaces.b.ttl_max=1h"]);
        let long = pod(&program, &[&redis, "config.namespaces.b.ttl_max=2h"]);
        assert_ne!(short, long, "{backend}: a server refuses a longer one");
    }
}

#[test]
fn the_same_of_a_configuration_given_as_text_replaces_servers() {
    let Some(program) = tool("helm") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("fencepost.toml");
    let sum = |text: &str| {
        let listen = "listen = ['0.0.0.0:50051']\nmetrics_listen = '0.0.0.0:9464'\nmetrics_insecure = true\n";
        std::fs::write(&file, format!("{listen}{text}")).expect("a file");
        let config = format!("config={}", file.display());
        let tls = "tls.enabled=true,tls.secretName=x";
        let objects = objects(&render(&program, &["--set-file", &config, "--set", tls]).expect(text));
        let servers = of_kind(&objects, "StatefulSet").next().expect("the server");
        at(servers, "/spec/template").clone()
    };
    let before = sum("[tls]\ncertificate = '/c'\nkey = '/k'\n");
    for live in [
        "# A remark.\n[tls]\ncertificate = '/c'\nkey = '/k'\n",
        "[tls]\ncertificate = '/d'\nkey = '/l'\n[log]\nlevel = 'debug'\n[namespaces.default]\nttl_max = '2h'\n",
    ] {
        assert_eq!(sum(live), before, "{live}");
    }
    for start in ["listeners = 'all'\n", "[server]\ncall_limit = 7\n"] {
        let text = format!("[tls]\ncertificate = '/c'\nkey = '/k'\n{start}");
        assert_ne!(sum(&text), before, "{start}");
    }
}
