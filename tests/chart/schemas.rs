//! The schemas of Kubernetes and of the operators, as kubeconform reads them.
//!
//! Kubernetes publishes its API as one OpenAPI file, in the Go module of its source; the operators
//! theirs as CustomResourceDefinitions in theirs. Go fetches both, checked against its sums.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use crate::helm::{KUBERNETES, root, tool};

/// The operators' modules, and where in them the definitions are.
const OPERATORS: [(&str, &[&str]); 3] = [
    (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        &[
            "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
            "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
        ],
    ),
    (
        "github.com/cert-manager/cert-manager@v1.19.1",
        &["deploy/crds/cert-manager.io_certificates.yaml"],
    ),
    (
        "sigs.k8s.io/gateway-api@v1.4.0",
        &["config/crd/standard/gateway.networking.k8s.io_grpcroutes.yaml"],
    ),
];

/// A folder with a schema for each kind; nothing, with the reason printed, where they cannot be had at
/// home.
pub fn folder() -> Option<PathBuf> {
    // One test makes them, and the others of this process wait for that.
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    MADE.get_or_init(made).clone()
}

fn made() -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (KUBERNETES, OPERATORS).hash(&mut hasher);
    let folder = root().join(format!("target/schemas/{:016x}", hasher.finish()));
    if folder.join("complete").is_file() {
        return Some(folder);
    }
    let made = make(&folder);
    if let Err(missing) = &made {
        assert!(std::env::var_os("CI").is_none(), "no schemas: {missing}");
        eprintln!("no schemas: {missing}");
    }
    made.ok().map(|()| folder)
}

fn make(folder: &Path) -> Result<(), String> {
    let unready = folder.with_extension(format!("new-{}", std::process::id()));
    fs::create_dir_all(&unready).map_err(|error| error.to_string())?;
    let kubernetes = module(&format!("k8s.io/kubernetes@v{KUBERNETES}"))?;
    let text =
        fs::read_to_string(kubernetes.join("api/openapi-spec/swagger.json")).map_err(|error| error.to_string())?;
    let api: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    for (name, schema) in of_api(&api) {
        fs::write(unready.join(name), schema.to_string()).map_err(|error| error.to_string())?;
    }
    for (name, files) in OPERATORS {
        let folder = module(name)?;
        for file in files {
            let text = fs::read_to_string(folder.join(file)).map_err(|error| error.to_string())?;
            let definition: Value = serde_saphyr::from_str(&text).map_err(|error| error.to_string())?;
            for (name, schema) in of_definition(&definition) {
                fs::write(unready.join(name), schema.to_string()).map_err(|error| error.to_string())?;
            }
        }
    }
    fs::write(unready.join("complete"), "").map_err(|error| error.to_string())?;
    // Another process may have been faster.
    let _ = fs::rename(&unready, folder);
    let _ = fs::remove_dir_all(&unready);
    Ok(())
}

/// The folder of a Go module.
fn module(name: &str) -> Result<PathBuf, String> {
    let go = tool("go").ok_or("no Go")?;
    let asked = Command::new(go)
        .args(["mod", "download", "-json", name])
        .current_dir(std::env::temp_dir())
        .output()
        .map_err(|error| error.to_string())?;
    let told: Value = serde_json::from_slice(&asked.stdout).map_err(|error| format!("{name}: {error}"))?;
    let folder = told["Dir"]
        .as_str()
        .ok_or_else(|| format!("{name}: {}", told["Error"]))?;
    Ok(folder.into())
}

/// The name of a schema's file: `deployment-apps-v1.json`, as kubeconform asks for it.
fn file_name(group: &str, version: &str, kind: &str) -> String {
    let group = group.split('.').next().unwrap_or_default();
    let parts = [kind, group, version].into_iter().filter(|part| !part.is_empty());
    let name: Vec<String> = parts.map(str::to_lowercase).collect();
    format!("{}.json", name.join("-"))
}

/// A schema for each kind of Kubernetes' own API.
fn of_api(api: &Value) -> Vec<(String, Value)> {
    let definitions = api["definitions"].as_object().expect("definitions");
    let strict: Map<String, Value> = definitions
        .iter()
        .map(|(name, schema)| (name.clone(), strict(schema.clone())))
        .collect();
    let mut schemas = Vec::new();
    for (name, schema) in &strict {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array();
        for kind in kinds.into_iter().flatten() {
            let part = |part: &str| kind[part].as_str().unwrap_or_default();
            let mut used = BTreeMap::new();
            collect(schema, &strict, &mut used);
            used.insert(name.clone(), schema.clone());
            let whole = json!({ "$ref": format!("#/definitions/{name}"), "definitions": used });
            schemas.push((file_name(part("group"), part("version"), part("kind")), whole));
        }
    }
    schemas
}

/// The definitions that a schema refers to, and those that they do.
fn collect(schema: &Value, all: &Map<String, Value>, used: &mut BTreeMap<String, Value>) {
    match schema {
        Value::Object(parts) => {
            let reference = parts.get("$ref").and_then(Value::as_str);
            if let Some(name) = reference.and_then(|path| path.strip_prefix("#/definitions/"))
                && !used.contains_key(name)
            {
                let definition = &all[name];
                used.insert(name.to_owned(), definition.clone());
                collect(definition, all, used);
            }
            parts.values().for_each(|part| collect(part, all, used));
        }
        Value::Array(parts) => parts.iter().for_each(|part| collect(part, all, used)),
        _ => {}
    }
}

/// A schema for each version of a custom resource.
fn of_definition(definition: &Value) -> Vec<(String, Value)> {
    let spec = &definition["spec"];
    let (group, kind) = (spec["group"].as_str(), spec["names"]["kind"].as_str());
    let (group, kind) = (group.expect("a group"), kind.expect("a kind"));
    let versions = spec["versions"].as_array().expect("versions").iter();
    let schemas = versions.map(|version| {
        let name = file_name(group, version["name"].as_str().expect("a name"), kind);
        let mut schema = strict(version["schema"]["openAPIV3Schema"].clone());
        // The definition leaves it to Kubernetes.
        schema["properties"]["metadata"] = json!({ "type": "object" });
        (name, schema)
    });
    schemas.collect()
}

/// The same, refusing fields that it does not know, and with what OpenAPI says in its own words put into
/// those of JSON Schema.
fn strict(mut schema: Value) -> Value {
    match &mut schema {
        Value::Object(parts) => {
            let is_int_or_string = parts.get("format").is_some_and(|format| format == "int-or-string")
                || parts.contains_key("x-kubernetes-int-or-string");
            if is_int_or_string {
                return json!({ "type": ["integer", "string"] });
            }
            let is_open = parts.contains_key("x-kubernetes-preserve-unknown-fields");
            let is_object = parts.get("properties").is_some_and(Value::is_object);
            if is_object && !is_open && !parts.contains_key("additionalProperties") {
                parts.insert("additionalProperties".to_owned(), false.into());
            }
            // Formats are Go's, such as int32: the type says enough.
            if parts.get("format").is_some_and(Value::is_string) {
                parts.remove("format");
            }
            parts.values_mut().for_each(|part| *part = strict(part.take()));
        }
        Value::Array(parts) => parts.iter_mut().for_each(|part| *part = strict(part.take())),
        _ => {}
    }
    schema
}

#[test]
fn a_field_that_kubernetes_does_not_know_is_refused() {
    let schema = strict(json!({
        "properties": { "port": { "format": "int-or-string", "type": "string" }, "count": { "format": "int32", "type": "integer" } }
    }));
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(schema["properties"]["port"]["type"], json!(["integer", "string"]));
    assert_eq!(schema["properties"]["count"], json!({ "type": "integer" }));
    assert_eq!(
        file_name("networking.k8s.io", "v1", "NetworkPolicy"),
        "networkpolicy-networking-v1.json"
    );
    assert_eq!(file_name("", "v1", "Service"), "service-v1.json");
}
