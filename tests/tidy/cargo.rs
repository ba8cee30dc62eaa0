//! What `Cargo.toml` says.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::source::{files_in, read, root};

const SERVER: &str = "Cargo.toml";
const CORE: &str = "core/Cargo.toml";
const CLIENT: &str = "clients/rust/Cargo.toml";

/// One table of a manifest: its keys, each with the text of its value.
fn table(manifest: &str, name: &str) -> BTreeMap<String, String> {
    let manifest = read(manifest);
    let header = format!("[{name}]");
    let lines = manifest.lines().skip_while(|line| *line != header).skip(1);
    let entries = lines
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.starts_with('#'));
    let pairs = entries.filter_map(|line| line.split_once(" = "));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The crates that the product is built on, as code names them.
pub fn dependencies() -> Vec<String> {
    [SERVER, CORE].into_iter().flat_map(named_dependencies).collect()
}

fn named_dependencies(manifest: &str) -> Vec<String> {
    let all = table(manifest, "dependencies");
    all.keys().map(|name| name.replace('-', "_")).collect()
}

/// The backends by their feature, each with the crates that its feature alone brings in: none that the engines have.
pub fn backends() -> BTreeMap<String, Vec<String>> {
    let (of_core, engines) = (table(CORE, "features"), table(CORE, "dependencies"));
    let is_of_engines = |name: &String| engines.get(name).is_some_and(|value| !value.contains("optional"));
    let features = table(SERVER, "features").into_iter();
    let backends = features.filter(|(feature, _)| root().join(format!("src/backend/{feature}.rs")).is_file());
    let brought = backends.map(|(feature, brings)| {
        let brings = brings + of_core.get(&feature).map_or("", String::as_str);
        let own = crates(&brings).into_iter().filter(|name| !is_of_engines(name));
        (feature, own.collect())
    });
    brought.collect()
}

fn crates(brings: &str) -> Vec<String> {
    let parts = brings.split('"').filter_map(|part| part.strip_prefix("dep:"));
    parts.map(|name| name.replace('-', "_")).collect()
}

/// Crates that no code of their manifest names, each with the reason why they are there.
const UNNAMED: &[(&str, &str, &str)] = &[(CLIENT, "tonic_prost", "only the generated code names it")];

#[test]
fn every_backend_is_behind_a_feature_of_its_own() {
    let backends = backends();
    assert!(backends.contains_key("embedded"), "{backends:?}");
    let mut optional = table(CORE, "dependencies");
    optional.extend(table(SERVER, "dependencies"));
    for (feature, crates) in &backends {
        for name in crates {
            let dependency = optional.get(&name.replace('_', "-")).or_else(|| optional.get(name));
            let is_optional = dependency.is_some_and(|value| value.contains("optional = true"));
            assert!(
                is_optional,
                "{name} of the feature {feature} must be an optional dependency"
            );
        }
    }
}

#[test]
fn every_dependency_is_used() {
    let all = crate::source::Source::product();
    for manifest in [SERVER, CORE, CLIENT] {
        let uses = |name: &str| {
            let own = all.iter().filter(|source| source.manifest() == manifest);
            own.into_iter().any(|source| source.names(name))
        };
        for name in named_dependencies(manifest) {
            let excused = UNNAMED
                .iter()
                .any(|(of, unnamed, _)| (*of, *unnamed) == (manifest, &*name));
            assert_ne!(uses(&name), excused, "{manifest}: {name}: excused and used, or neither");
        }
    }
}

/// The most crates that a program with the client is built from, the client and those that only the compiler runs
/// included.
const CLIENT_CRATES: usize = 110;

/// The crates from which a program with this package is built, each with its version; `edges` as those of `cargo tree`.
fn built_from(package: &str, edges: &str) -> BTreeSet<String> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--locked", "--offline", "-p", package, "-e", edges])
        .args(["--prefix", "none", "--no-dedupe"])
        .current_dir(root());
    let tree = tree.output().expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).expect("names");
    tree.lines().map(str::to_owned).collect()
}

#[test]
fn the_client_brings_few_crates() {
    let crates = built_from("fencepost-client", "normal");
    assert!(crates.iter().any(|line| line.starts_with("tonic ")), "{crates:?}");
    assert!(crates.len() <= CLIENT_CRATES, "{}: {crates:#?}", crates.len());
}

/// What would make the tests of the queue and the engines wait: the wire, TLS, and drivers.
const NOT_IN_CORE: [&str; 10] = [
    "etcd-client",
    "fencepost",
    "fencepost-client",
    "hyper",
    "prost",
    "redb",
    "redis",
    "rustls",
    "tokio-postgres",
    "tonic",
];

#[test]
fn the_queue_and_the_engines_are_tested_without_wire_tls_and_drivers() {
    let crates = built_from("fencepost-core", "normal,build,dev");
    let names: BTreeSet<&str> = crates.iter().filter_map(|line| line.split(' ').next()).collect();
    assert!(
        names.contains("fencepost-core-tests") && names.contains("tokio"),
        "{names:?}"
    );
    let brought: Vec<_> = NOT_IN_CORE.iter().filter(|name| names.contains(**name)).collect();
    assert!(brought.is_empty(), "{brought:?}");
}

#[test]
fn unsafe_code_is_forbidden_everywhere() {
    for root in [
        "src/lib.rs",
        "src/main.rs",
        "core/src/lib.rs",
        "clients/rust/src/lib.rs",
    ] {
        assert!(read(root).contains("#![forbid(unsafe_code)]"), "{root}");
    }
    // The one call that has no safe wrapper is in a crate of its own.
    let allocator = read("allocator/src/lib.rs");
    assert_eq!(allocator.matches("unsafe {").count(), 1);
    assert_eq!(files_in("allocator/src").len(), 1);
    assert!(files_in("src").len() > 20, "the files of src were not found");
}
