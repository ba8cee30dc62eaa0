//! The chart, rendered by Helm.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The Kubernetes for which it is rendered, that of the schemas.
pub const KUBERNETES: &str = "1.34.2";

/// Where the project lies.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where the chart lies.
pub fn chart() -> PathBuf {
    root().join("helm/fencepost")
}

/// All values that are shipped, as files.
pub fn shipped() -> Vec<PathBuf> {
    let examples = std::fs::read_dir(chart().join("examples")).expect("the examples");
    let mut files: Vec<PathBuf> = examples.map(|entry| entry.expect("a file").path()).collect();
    files.extend(["values.yaml", "values-ha.yaml"].map(|name| chart().join(name)));
    files.sort();
    assert!(files.len() >= 5, "{files:?}");
    files
}

/// A tool that `scripts/test` installs; nothing, with the reason printed, where it is missing at home.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = root().join("target/tools");
    let found = std::env::split_paths(&path)
        .chain([own])
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    assert!(found.is_some() || std::env::var_os("CI").is_none(), "{name} is missing");
    if found.is_none() {
        eprintln!("{name} is missing: scripts/test installs it");
    }
    found
}

/// Helm with these arguments.
pub fn helm(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        // None of the user's own settings.
        .env("HELM_CONFIG_HOME", root().join("target/helm/config"))
        .env("HELM_CACHE_HOME", root().join("target/helm/cache"))
        .env("HELM_DATA_HOME", root().join("target/helm/data"))
        .env_remove("KUBECONFIG")
        .output()
        .expect("helm runs")
}

/// What the chart renders to, with these arguments of Helm, or what Helm says against it.
pub fn render(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let chart = chart();
    let own = [
        "template",
        "release",
        chart.to_str().expect("a path"),
        "--kube-version",
        KUBERNETES,
    ];
    let ran = helm(program, &[&own, arguments].concat());
    let text = |bytes| String::from_utf8(bytes).expect("text");
    if ran.status.success() {
        Ok(text(ran.stdout))
    } else {
        Err(text(ran.stderr))
    }
}

/// The same as objects.
pub fn objects(rendered: &str) -> Vec<Value> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(rendered).expect("YAML");
    objects.into_iter().filter(|object| !object.is_null()).collect()
}

/// What the chart renders to with a file of values, as objects.
pub fn shipped_objects(program: &Path, values: &Path) -> Vec<Value> {
    let rendered = render(program, &["--values", values.to_str().expect("a path")]);
    objects(&rendered.unwrap_or_else(|said| panic!("{values:?}: {said}")))
}

/// The objects of a kind.
pub fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// The text of a path below an object, such as `/metadata/name`.
pub fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    object.pointer(path).unwrap_or(&Value::Null)
}
