//! What is shipped renders to what Kubernetes takes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::helm::{KUBERNETES, at, chart, helm, of_kind, render, shipped, shipped_objects, tool};
use crate::schemas;
use crate::seams::SEAMS;

/// More than is shipped: everything that can be switched on.
const EVERYTHING: &str = r#"
config:
  namespaces:
    default: {backend: redis}
replicaCount: 3
imagePullSecrets: [registry]
commonLabels: {team: platform}
tls: {enabled: true, clientAuth: required, clientCaSecret: clients, metrics: true}
certificate: {enabled: true, issuerRef: {name: issuer}, extraDnsNames: [locks.example.com]}
secretFiles: [{secretName: files, mountPath: /etc/fencepost/files}]
env: [{name: A, value: b}]
envFrom: [{secretRef: {name: all}}]
service: {type: LoadBalancer, annotations: {a: b}}
serviceAccount: {annotations: {a: b}}
podSecurity: {runAsUser: null, runAsGroup: null, fsGroup: null}
podDisruptionBudget: {maxUnavailable: 50%}
autoscaling: {enabled: true}
networkPolicy:
  enabled: true
  clients: [{podSelector: {}}]
  scrapers: [{namespaceSelector: {}}]
  egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 6379}]}]
nodeSelector: {disk: ssd}
tolerations: [{key: locks, operator: Exists}]
affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}
priorityClassName: high
podAnnotations: {a: b}
podLabels: {a: b}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
prometheusRule: {enabled: true, alertLabels: {team: platform}}
dashboard: {enabled: true, annotations: {folder: Locks}}
test: {secretFiles: [{secretName: own, mountPath: /etc/own}], args: [--timeout, 10s], env: [{name: A, value: b}]}
"#;

/// Whether kubeconform takes a text, and what it says.
fn conforms(program: &Path, schemas: &Path, rendered: &str) -> (bool, String) {
    let mut location = schemas.as_os_str().to_owned();
    location.push("/{{ .ResourceKind }}{{ .KindSuffix }}.json");
    let mut ran = Command::new(program)
        .args([
            "-strict",
            "-summary",
            "-verbose",
            "-kubernetes-version",
            KUBERNETES,
            "-schema-location",
        ])
        .arg(location)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubeconform runs");
    let mut input = ran.stdin.take().expect("a pipe");
    input.write_all(rendered.as_bytes()).expect("the text");
    drop(input);
    let ran = ran.wait_with_output().expect("its end");
    let said = [ran.stdout, ran.stderr].concat();
    (ran.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn all_shipped_values_pass_the_strict_lint() {
    let Some(program) = tool("helm") else { return };
    let chart = chart();
    for values in shipped() {
        let values = values.to_str().expect("a path");
        let arguments = ["lint", "--strict", "--kube-version", KUBERNETES, "--values", values];
        let ran = helm(&program, &[&arguments[..], &[chart.to_str().expect("a path")]].concat());
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && !said.contains("[WARNING]"), "{values}: {said}");
    }
}

#[test]
fn all_shipped_values_render_to_what_kubernetes_takes() {
    let (Some(program), Some(kubeconform)) = (tool("helm"), tool("kubeconform")) else {
        return;
    };
    let Some(schemas) = schemas::folder() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let everything = folder.path().join("everything.yaml");
    std::fs::write(&everything, EVERYTHING).expect("values");
    let grpc = folder.path().join("grpc.yaml");
    std::fs::write(&grpc, "probes: {kind: grpc}\nservice: {listenAddress: \"::\"}\n").expect("values");
    let seams = folder.path().join("seams.yaml");
    std::fs::write(&seams, SEAMS).expect("values");
    let etcd = folder.path().join("etcd.yaml");
    std::fs::write(
        &etcd,
        "etcd: {create: true}\nnetworkPolicy: {enabled: true, egress: [{}]}\n",
    )
    .expect("values");
    for values in shipped().into_iter().chain([everything, grpc, seams, etcd]) {
        let rendered = render(&program, &["--values", values.to_str().expect("a path")]);
        let rendered = rendered.unwrap_or_else(|said| panic!("{values:?}: {said}"));
        let (valid, said) = conforms(&kubeconform, &schemas, &rendered);
        assert!(valid && said.contains("Skipped: 0"), "{values:?}: {said}");
        let objects = rendered.matches("\napiVersion: ").count();
        assert!(said.contains(&format!("{objects} resources found")), "{said}");
    }
}

#[test]
fn a_field_that_kubernetes_does_not_know_would_be_noticed() {
    let (Some(program), Some(kubeconform)) = (tool("helm"), tool("kubeconform")) else {
        return;
    };
    let Some(schemas) = schemas::folder() else { return };
    let rendered = render(&program, &[]).expect("the default values");
    let (valid, said) = conforms(
        &kubeconform,
        &schemas,
        &rendered.replace("runAsNonRoot", "runAsNonRoof"),
    );
    assert!(!valid && said.contains("runAsNonRoof"), "{said}");
}

#[test]
fn a_shared_store_is_a_deployment_and_an_embedded_one_a_stateful_set_with_a_volume() {
    let Some(program) = tool("helm") else { return };
    for values in shipped() {
        let objects = shipped_objects(&program, &values);
        let (deployments, sets) = (of_kind(&objects, "Deployment"), of_kind(&objects, "StatefulSet"));
        let (deployments, sets): (Vec<_>, Vec<_>) = (deployments.collect(), sets.collect());
        let embedded = ["values.yaml", "embedded.yaml"]
            .iter()
            .any(|name| values.ends_with(name));
        assert_eq!(
            (deployments.len(), sets.len()),
            if embedded { (0, 1) } else { (1, 0) },
            "{values:?}"
        );
        for set in sets {
            assert_eq!(set["spec"]["replicas"], 1);
            assert_eq!(at(set, "/spec/volumeClaimTemplates/0/metadata/name"), "data");
            assert_eq!(
                at(set, "/spec/template/spec/containers/0/volumeMounts/1/mountPath"),
                "/var/lib/fencepost"
            );
        }
        let budgets = of_kind(&objects, "PodDisruptionBudget").count();
        assert_eq!(budgets, usize::from(!embedded), "{values:?}");
        assert_eq!(of_kind(&objects, "Service").count(), 2, "{values:?}");
    }
}

#[test]
fn every_value_has_a_comment_and_a_place_in_the_schema() {
    let text = std::fs::read_to_string(chart().join("values.yaml")).expect("the values");
    // Values that are documented as a whole.
    let wholes = ["resources:", "topologySpreadConstraints:"];
    let (mut above, mut table) = ("", "");
    for (number, line) in text.lines().enumerate() {
        if !line.starts_with([' ', '#']) && line.contains(':') {
            table = line;
        }
        let is_key = line
            .trim_start()
            .split_once(':')
            .is_some_and(|(key, _)| key.chars().all(char::is_alphanumeric));
        let explained = above.trim_start().starts_with('#') || line.ends_with(':') || wholes.contains(&table);
        let is_label = table == "dashboard:" && line.starts_with("    ");
        assert!(!is_key || explained || is_label, "values.yaml:{}: {line}", number + 1);
        above = line;
    }
    let values: Value = serde_saphyr::from_str(&text).expect("YAML");
    let schema = std::fs::read_to_string(chart().join("values.schema.json")).expect("the schema");
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    has_place(&values, &schema, "");
}

/// Panics unless each value has a place in the schema, which refuses others and knows none that is not there.
fn has_place(value: &Value, schema: &Value, path: &str) {
    let says = ["type", "enum", "anyOf"].iter().any(|key| !schema[*key].is_null());
    assert!(says, "{path}: the schema says nothing of it");
    let Some(values) = value.as_object() else { return };
    // What Kubernetes or the server checks itself.
    let is_open = ["/config", "/affinity", "/resources"].contains(&path);
    let is_map = schema["additionalProperties"].is_object();
    if is_open || is_map {
        return;
    }
    assert_eq!(schema["additionalProperties"], false, "{path}");
    let known = schema["properties"].as_object().expect(path);
    for (key, value) in values {
        let below = format!("{path}/{key}");
        let place = known
            .get(key)
            .unwrap_or_else(|| panic!("{below} has no place in the schema"));
        has_place(value, place, &below);
    }
    // Helm's own.
    let more = known.keys().find(|key| !values.contains_key(*key) && *key != "global");
    assert_eq!(more, None, "{path}: not in values.yaml");
}

#[test]
#[should_panic(expected = "/a/b has no place in the schema")]
fn a_value_without_a_place_in_the_schema_would_be_noticed() {
    let b = json!({ "type": "object", "additionalProperties": false, "properties": {} });
    let schema = json!({ "type": "object", "additionalProperties": false, "properties": { "a": b } });
    has_place(&json!({ "a": { "b": 1 } }), &schema, "");
}
