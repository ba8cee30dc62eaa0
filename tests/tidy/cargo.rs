//! What `Cargo.toml` says.

use std::collections::BTreeMap;

use crate::source::{files_in, read, root};

/// One table of `Cargo.toml`: its keys, each with the text of its value.
fn table(name: &str) -> BTreeMap<String, String> {
    let manifest = read("Cargo.toml");
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
    let all = table("dependencies");
    all.keys().map(|name| name.replace('-', "_")).collect()
}

/// The backends by their feature, each with the crates that its feature alone brings in.
pub fn backends() -> BTreeMap<String, Vec<String>> {
    let features = table("features").into_iter();
    let backends = features.filter(|(feature, _)| root().join(format!("src/backend/{feature}.rs")).is_file());
    backends.map(|(feature, brings)| (feature, crates(&brings))).collect()
}

fn crates(brings: &str) -> Vec<String> {
    let parts = brings.split('"').filter_map(|part| part.strip_prefix("dep:"));
    parts.map(|name| name.replace('-', "_")).collect()
}

/// Crates that no code names, each with the reason why they are there.
const UNNAMED: &[(&str, &str)] = &[("tonic_prost", "only the generated code names it")];

#[test]
fn every_backend_is_behind_a_feature_of_its_own() {
    let backends = backends();
    assert!(backends.contains_key("embedded"), "{backends:?}");
    let optional = table("dependencies");
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
    let uses = |name: &str| {
        all.iter()
            .any(|source| source.paths().iter().any(|path| path.segments[0] == name))
    };
    for name in dependencies() {
        let excused = UNNAMED.iter().any(|(unnamed, _)| *unnamed == name);
        assert_ne!(uses(&name), excused, "{name}: excused and used, or neither");
    }
}

#[test]
fn unsafe_code_is_forbidden_everywhere() {
    for root in ["src/lib.rs", "src/main.rs"] {
        assert!(read(root).contains("#![forbid(unsafe_code)]"), "{root}");
    }
    // The one call that has no safe wrapper is in a crate of its own.
    let allocator = read("allocator/src/lib.rs");
    assert_eq!(allocator.matches("unsafe {").count(), 1);
    assert_eq!(files_in("allocator/src").len(), 1);
    assert!(files_in("src").len() > 20, "the files of src were not found");
}
