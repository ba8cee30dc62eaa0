//! The keys of the configuration that the chart names exist, and each limit can be set by values.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::helm::{chart, shipped_objects, tool};
use crate::service::{check, configuration};

/// The complete configuration, as the program documents it.
pub fn shown() -> String {
    let ran = Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .args(["config", "show"])
        .env_clear()
        .env("HOME", "/")
        .output();
    String::from_utf8(ran.expect("the program runs").stdout).expect("text")
}

/// By table: the keys with their values; an absent key is commented out and has an empty value.
pub fn keys(shown: &str) -> BTreeMap<&str, BTreeMap<&str, &str>> {
    let mut tables: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    let mut table = "";
    for line in shown.lines().filter(|line| !line.starts_with("# ")) {
        let line = line.trim_start_matches('#');
        if let Some((key, value)) = line.split_once('=') {
            tables.entry(table).or_default().insert(key.trim(), value.trim());
        } else if line.starts_with('[') {
            table = line.trim_matches(['[', ']']);
            tables.entry(table).or_default();
        }
    }
    tables
}

#[test]
fn each_limit_can_be_set_by_values() {
    let Some(program) = tool("helm") else { return };
    let shown = shown();
    let tables = keys(&shown);
    let folder = tempfile::tempdir().expect("a folder");
    let values = folder.path().join("values.yaml");
    let mut set = 0;
    for (table, path) in [
        ("server", "server"),
        ("namespaces.default", "namespaces.default"),
        ("namespaces.default.embedded", "namespaces.default.embedded"),
    ] {
        // Another value than the default, within the bounds of each.
        let changed = |(key, value): (&&str, &&str)| match value.parse::<u64>() {
            Ok(default) => Some((key.to_string(), default / 2 + 1)),
            Err(_) => (value.is_empty() && key.ends_with("_limit")).then(|| (key.to_string(), 7)),
        };
        let keys: BTreeMap<String, u64> = tables[table].iter().filter_map(changed).collect();
        let nested = path.rsplit('.').fold(
            serde_json::json!(keys),
            |inner, name| serde_json::json!({ name: inner }),
        );
        let text = serde_json::json!({ "config": nested }).to_string();
        fs::write(&values, text).expect("values");
        let config = configuration(&shipped_objects(&program, &values));
        check(&config).expect(&config);
        for (key, value) in &keys {
            assert!(
                config.contains(&format!("\n{key} = {value}\n")),
                "{key} = {value} in {config}"
            );
        }
        set += keys.len();
    }
    assert!(set > 20, "{set} limits");
}

#[test]
fn each_key_that_the_chart_names_exists() {
    let shown = shown();
    let tables = keys(&shown);
    let is_known = |path: &str| {
        let name = path.rsplit('.').next().unwrap_or(path);
        let is_part = |table: &str| table.split('.').any(|part| part == name);
        tables.keys().any(|table| is_part(table)) || tables.values().any(|keys| keys.contains_key(name))
    };
    let mut named = 0;
    let templates = fs::read_dir(chart().join("templates")).expect("the templates");
    let files = templates.map(|entry| entry.expect("a file").path());
    let values = ["values.yaml", "values-ha.yaml"].map(|name| chart().join(name));
    for file in files.chain(values).filter(|file| file.is_file()) {
        let text = fs::read_to_string(&file).expect("text");
        // A path below the configuration, or a quoted name in snake case: nothing else in the chart has that form.
        let is_part = |c: char| c.is_ascii_lowercase() || c == '_' || c == '.';
        let paths = text.split("config.").skip(1);
        let paths = paths.map(|rest| {
            rest.split(|c| !is_part(c))
                .next()
                .unwrap_or_default()
                .trim_end_matches('.')
        });
        let quoted = text
            .split('"')
            .filter(|word| word.contains('_') && word.len() > 1 && word.chars().all(is_part));
        for name in paths.chain(quoted).filter(|name| !name.is_empty()) {
            assert!(is_known(name), "{name:?} in {}", file.display());
            named += 1;
        }
    }
    assert!(named > 20, "{named} names");
}
