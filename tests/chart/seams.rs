//! What a company adds to the chart arrives where it belongs; the etcd that the chart installs works.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};

use common::etcd::{available, eventually};
use common::ports::free_port;
use serde_json::{Value, json};

use crate::helm::{at, objects, of_kind, render, tool};
use crate::service::configuration;

/// All that can be added.
pub const SEAMS: &str = r#"
config:
  namespaces:
    default: {backend: redis}
replicaCount: 3
deploymentAnnotations: {a: b}
configMapFiles: [{name: authorities, mountPath: /etc/fencepost/authorities, items: [{key: ca.crt, path: ca.crt}]}]
extraVolumes: [{name: scratch, emptyDir: {}}]
extraVolumeMounts: [{name: scratch, mountPath: /scratch}]
initContainers: [{name: first, image: busybox, command: ["true"]}]
extraContainers: [{name: beside, image: proxy}]
extraArgs: [--log-level, debug]
extraObjects:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: more}, data: {a: b}}
  - |
    apiVersion: v1
    kind: ConfigMap
    metadata:
      name: {{ include "fencepost.fullname" . }}-more
runtimeClassName: gvisor
hostAliases: [{ip: 10.0.0.1, hostnames: [db]}]
dnsPolicy: None
dnsConfig: {nameservers: [10.0.0.2]}
service:
  type: LoadBalancer
  labels: {a: b}
  clusterIP: 10.0.0.3
  nodePort: 30051
  externalTrafficPolicy: Local
  internalTrafficPolicy: Cluster
  trafficDistribution: PreferClose
  loadBalancerClass: internal
  loadBalancerSourceRanges: [10.0.0.0/8]
  ipFamilyPolicy: PreferDualStack
  ipFamilies: [IPv6, IPv4]
grpcRoute: {enabled: true, parentRefs: [{name: gateway}], hostnames: [locks.example.com], annotations: {a: b}}
ingress:
  enabled: true
  className: nginx
  hosts: [locks.example.com]
  tls: [{hosts: [locks.example.com], secretName: tls}]
  annotations: {a: b}
podDisruptionBudget: {minAvailable: 2}
autoscaling:
  enabled: true
  targetCPUUtilizationPercentage: 0
  metrics: [{type: Pods, pods: {metric: {name: waiters}, target: {type: AverageValue, averageValue: "100"}}}]
serviceMonitor:
  enabled: true
  scrapeTimeout: 10s
  relabelings: [{action: drop, sourceLabels: [a]}]
  metricRelabelings: [{action: drop, sourceLabels: [b]}]
"#;

/// What the chart renders to with these values, or what Helm says against it.
fn rendered(values: &str) -> Option<Result<Vec<Value>, String>> {
    let program = tool("helm")?;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("values.yaml");
    fs::write(&file, values).expect("values");
    let said = render(&program, &["--values", file.to_str().expect("a path")]);
    Some(said.map(|text| objects(&text)))
}

#[test]
fn what_is_added_arrives_where_it_belongs() {
    let Some(objects) = rendered(SEAMS) else { return };
    let objects = objects.expect("objects");
    let (pod, first) = ("/spec/template/spec", "/spec/template/spec/containers/0");
    for (kind, path, value) in [
        ("Deployment", "/metadata/annotations/a", json!("b")),
        ("Deployment", &format!("{pod}/runtimeClassName"), json!("gvisor")),
        ("Deployment", &format!("{pod}/hostAliases/0/ip"), json!("10.0.0.1")),
        ("Deployment", &format!("{pod}/dnsPolicy"), json!("None")),
        (
            "Deployment",
            &format!("{pod}/dnsConfig/nameservers/0"),
            json!("10.0.0.2"),
        ),
        ("Deployment", &format!("{pod}/initContainers/0/name"), json!("first")),
        ("Deployment", &format!("{pod}/containers/1/name"), json!("beside")),
        ("Deployment", &format!("{first}/args/3"), json!("--log-level")),
        (
            "Deployment",
            &format!("{first}/volumeMounts/1/mountPath"),
            json!("/etc/fencepost/authorities"),
        ),
        (
            "Deployment",
            &format!("{first}/volumeMounts/2/mountPath"),
            json!("/scratch"),
        ),
        (
            "Deployment",
            &format!("{pod}/volumes/1/configMap/items/0/key"),
            json!("ca.crt"),
        ),
        ("Deployment", &format!("{pod}/volumes/2/name"), json!("scratch")),
        ("Service", "/metadata/labels/a", json!("b")),
        ("Service", "/spec/clusterIP", json!("10.0.0.3")),
        ("Service", "/spec/ports/0/nodePort", json!(30051)),
        ("Service", "/spec/externalTrafficPolicy", json!("Local")),
        ("Service", "/spec/internalTrafficPolicy", json!("Cluster")),
        ("Service", "/spec/trafficDistribution", json!("PreferClose")),
        ("Service", "/spec/loadBalancerClass", json!("internal")),
        ("Service", "/spec/loadBalancerSourceRanges/0", json!("10.0.0.0/8")),
        ("Service", "/spec/ipFamilyPolicy", json!("PreferDualStack")),
        ("Service", "/spec/ipFamilies", json!(["IPv6", "IPv4"])),
        ("GRPCRoute", "/spec/parentRefs/0/name", json!("gateway")),
        ("GRPCRoute", "/spec/hostnames/0", json!("locks.example.com")),
        (
            "GRPCRoute",
            "/spec/rules/0/backendRefs/0/name",
            json!("release-fencepost"),
        ),
        ("GRPCRoute", "/metadata/annotations/a", json!("b")),
        ("Ingress", "/spec/ingressClassName", json!("nginx")),
        ("Ingress", "/spec/rules/0/host", json!("locks.example.com")),
        ("Ingress", "/spec/tls/0/secretName", json!("tls")),
        ("Ingress", "/metadata/annotations/a", json!("b")),
        ("PodDisruptionBudget", "/spec/minAvailable", json!(2)),
        ("PodDisruptionBudget", "/spec/maxUnavailable", Value::Null),
        ("HorizontalPodAutoscaler", "/spec/metrics/0/type", json!("Pods")),
        ("ServiceMonitor", "/spec/endpoints/0/scrapeTimeout", json!("10s")),
        (
            "ServiceMonitor",
            "/spec/endpoints/0/relabelings/0/sourceLabels/0",
            json!("a"),
        ),
        (
            "ServiceMonitor",
            "/spec/endpoints/0/metricRelabelings/0/sourceLabels/0",
            json!("b"),
        ),
    ] {
        let object = of_kind(&objects, kind).next().expect(kind);
        assert_eq!(at(object, path), &value, "{path} in {object:#}");
    }
    let families = of_kind(&objects, "Service").map(|service| at(service, "/spec/ipFamilies/0"));
    assert_eq!(families.collect::<Vec<_>>(), ["IPv6", "IPv6"]);
    let maps = of_kind(&objects, "ConfigMap").map(|map| at(map, "/metadata/name"));
    let maps: Vec<_> = maps
        .filter(|name| name.as_str().is_some_and(|name| name.ends_with("more")))
        .collect();
    assert_eq!(maps, ["more", "release-fencepost-more"]);
}

#[test]
fn what_lacks_its_other_half_is_refused() {
    for (values, problem) in [
        (
            "grpcRoute: {enabled: true}",
            "grpcRoute.parentRefs must name the Gateway",
        ),
        ("ingress: {enabled: true}", "ingress.hosts must name a host"),
        (
            "config: {namespaces: {a: {backend: redis}}}\nautoscaling: {enabled: true, targetCPUUtilizationPercentage: 0}",
            "autoscaling.metrics must have an entry",
        ),
        (
            "etcd: {create: true}\nconfig: |\n  listen = ['0.0.0.0:50051']\n  metrics_listen = '0.0.0.0:9464'\n  \
             namespaces.a.backend = 'redis'\n",
            "etcd.create must be false with a config given as text",
        ),
    ] {
        let Some(said) = rendered(values) else { return };
        let said = said.expect_err(values);
        assert!(said.contains(problem), "{said}");
    }
}

#[test]
fn namespaces_without_endpoints_use_the_etcd_of_the_chart() {
    let values = "etcd: {create: true}\nreplicaCount: 3\nconfig:\n  namespaces:\n    own: {backend: etcd}\n    \
                  other: {backend: etcd, etcd: {endpoints: [\"http://elsewhere:2379\"]}}\n";
    let Some(objects) = rendered(values) else { return };
    let config = configuration(&objects.expect("objects"));
    let own = "[namespaces.own.etcd]\nendpoints = [\"http://release-fencepost-etcd-0.release-fencepost-etcd.default.svc:2379\", ";
    assert!(config.contains(own), "{config}");
    let other = "[namespaces.other.etcd]\nendpoints = [\"http://elsewhere:2379\"]\n";
    assert!(config.contains(other), "{config}");
}

/// A process that ends with the value.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(
            command
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("it starts"),
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A text in which each name of a member with its port is an address on loopback.
fn on_loopback(text: &str, ports: &mut BTreeMap<String, u16>) -> String {
    let mut out = String::new();
    for part in text.split_inclusive([',', '"', '=']) {
        let bare = part.trim_end_matches([',', '"', '=']);
        match bare.strip_prefix("http://") {
            Some(address) if address.contains("-etcd.") => {
                let port = ports.entry(address.to_owned()).or_insert_with(free_port);
                out += &part.replace(address, &format!("127.0.0.1:{port}"));
            }
            _ => out += part,
        }
    }
    out
}

#[test]
fn the_etcd_of_the_chart_grants_locks() {
    common::skip_unless!(available());
    let Some(objects) = rendered("etcd: {create: true}\nreplicaCount: 3\n") else {
        return;
    };
    let objects = objects.expect("objects");
    let set = of_kind(&objects, "StatefulSet").next().expect("the members");
    let arguments = at(set, "/spec/template/spec/containers/0/args")
        .as_array()
        .expect("arguments");
    let folder = tempfile::tempdir().expect("a folder");
    let (home, mut ports, mut members) = (folder.path().display().to_string(), BTreeMap::new(), Vec::new());
    for number in 0..3 {
        let name = format!("release-fencepost-etcd-{number}");
        let own = |port| format!("{name}.release-fencepost-etcd.default.svc:{port}");
        let mut command = Command::new(common::etcd::program().expect("etcd"));
        for argument in arguments {
            let argument = argument.as_str().expect("text").replace("$(POD_NAME)", &name);
            let argument = argument
                .replace("0.0.0.0:2379", &own(2379))
                .replace("0.0.0.0:2380", &own(2380))
                .replace("0.0.0.0:2381", &own(2381))
                .replace("/var/lib/etcd", &format!("{home}/{name}"));
            command.arg(on_loopback(&argument, &mut ports));
        }
        members.push(Process::start(command.stdout(Stdio::null())));
    }
    let listen = free_port();
    let config = on_loopback(&configuration(&objects), &mut ports)
        .replace("0.0.0.0:50051", &format!("127.0.0.1:{listen}"))
        .replace("0.0.0.0:9464", &format!("127.0.0.1:{}", free_port()))
        .replace("/var/lib/fencepost", &format!("{home}/data"));
    let file = folder.path().join("fencepost.toml");
    fs::write(&file, config).expect("the configuration");
    let program = env!("CARGO_BIN_EXE_fencepost");
    let _server = Process::start(
        Command::new(program)
            .arg("serve")
            .arg("--config")
            .arg(&file)
            .stdout(Stdio::null()),
    );
    let address = format!("127.0.0.1:{listen}");
    eventually("a lock is granted", || {
        let lock = ["lock", "default/first", "--addr", &address, "--", "true"];
        Command::new(program)
            .args(lock)
            .output()
            .is_ok_and(|ran| ran.status.success())
    });
}
