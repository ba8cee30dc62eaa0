//! `values-ha.yaml` has what production needs, and renders without it only where that is waived by name.

use std::path::Path;

use serde_json::Value;

use crate::helm::{at, chart, objects, of_kind, render, tool};

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// What `values-ha.yaml` renders to with changes, or why not.
fn production(program: &Path, set: &[&str]) -> Result<Vec<Value>, String> {
    let values = chart().join("values-ha.yaml");
    let set = set.iter().flat_map(|set| ["--set", set]);
    let arguments: Vec<&str> = ["--values", values.to_str().expect("a path")]
        .into_iter()
        .chain(set)
        .collect();
    render(program, &arguments).map(|rendered| objects(&rendered))
}

#[test]
fn production_has_tls_rules_and_a_policy_for_both_directions() {
    let Some(program) = tool("helm") else { return };
    let image = format!("image.digest={DIGEST}");
    let objects = production(&program, &["hardening.waive=null", &image]).expect("nothing is waived");
    let config = of_kind(&objects, "ConfigMap").find_map(|map| map["data"]["fencepost.toml"].as_str());
    let config = config.expect("the configuration");
    for line in [
        "[tls]",
        "client_auth = \"required\"",
        "[auth]",
        "verbs = [\"acquire\", \"read\"]",
    ] {
        assert!(config.contains(line), "{line} in {config}");
    }
    assert!(!config.lines().any(|line| line == "insecure = true"), "{config}");
    let policy = of_kind(&objects, "NetworkPolicy").next().expect("a policy");
    assert_eq!(
        at(policy, "/spec/policyTypes"),
        &serde_json::json!(["Ingress", "Egress"])
    );
    for peers in [
        "/spec/ingress/0/from/0",
        "/spec/ingress/1/from/0",
        "/spec/egress/1/to/0",
    ] {
        assert!(at(policy, peers).is_object(), "{peers}: {policy}");
    }
    let images = ["/spec/template/spec/containers/0/image", "/spec/containers/0/image"];
    let images = objects
        .iter()
        .flat_map(|object| images.map(|path| at(object, path)))
        .filter_map(Value::as_str);
    let images: Vec<&str> = images.collect();
    assert_eq!(
        images,
        vec![format!("fencepost@{DIGEST}"); 2],
        "the servers and the test, by digest"
    );
}

#[test]
fn what_production_needs_is_waived_by_its_name_or_nothing_is_rendered() {
    let Some(program) = tool("helm") else { return };
    for (name, taken_away) in [
        (
            "tls",
            "tls.enabled=false,certificate.enabled=false,config.insecure=true",
        ),
        ("rules", "config.auth.rules=null"),
        ("clients", "networkPolicy.clients=null"),
        ("scrapers", "networkPolicy.scrapers=null"),
        ("egress", "networkPolicy.egress=null"),
        ("digest", "image.tag=latest"),
        ("memory", "resources.limits.memory=1Gi"),
    ] {
        let image = format!("image.digest={DIGEST}");
        let image = if name == "digest" { "image.digest=" } else { &image };
        let said = production(&program, &["hardening.waive=null", image, taken_away]).expect_err(name);
        assert!(said.contains(&format!("hardening.waive={{{name}}}")), "{name}: {said}");
        let waived = format!("hardening.waive={{{name}}}");
        let rendered = production(&program, &[&waived, image, taken_away]);
        rendered.unwrap_or_else(|said| panic!("{name} is waived: {said}"));
    }
    let said = production(&program, &["networkPolicy.enabled=false"]).expect_err("no policy");
    assert!(said.contains("networkPolicy.enabled"), "{said}");
}
