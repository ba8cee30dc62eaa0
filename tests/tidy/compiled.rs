//! A file that no module names is not compiled, and its tests do not run.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::source::{TESTS, files_in, read};

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
        plain
    })
}

/// The files that the modules of this file may lie in.
fn named(path: &str) -> Vec<PathBuf> {
    let (file, text) = (Path::new(path), read(path));
    let folder = file.parent().expect("a folder");
    let is_first = ["main.rs", "lib.rs", "mod.rs"].iter().any(|name| file.ends_with(name));
    let is_first = is_first || folder == Path::new("tests");
    let below = if is_first {
        folder.to_owned()
    } else {
        file.with_extension("")
    };
    let (mut named, mut own) = (Vec::new(), None);
    for line in text.lines().map(str::trim) {
        if let Some(path) = line.strip_prefix("#[path = \"") {
            own = path.strip_suffix("\"]").map(|path| plain(&folder.join(path)));
            continue;
        }
        let module = line.strip_prefix("pub ").unwrap_or(line).strip_prefix("mod ");
        if let Some(module) = module.and_then(|module| module.strip_suffix(';')) {
            let files = [below.join(format!("{module}.rs")), below.join(module).join("mod.rs")];
            named.extend(own.take().map_or_else(|| files.to_vec(), |own| vec![own]));
        }
    }
    named
}

#[test]
fn every_file_of_the_tests_is_compiled() {
    let files: Vec<String> = TESTS
        .into_iter()
        .flat_map(files_in)
        .filter(|path| path.ends_with(".rs"))
        .collect();
    let named: BTreeSet<PathBuf> = files.iter().flat_map(|path| named(path)).collect();
    let is_first = |path: &Path| {
        let depth = path.components().count();
        depth == 2
            || path.ends_with("main.rs")
            || path.ends_with("lib.rs")
            || path.with_file_name("Cargo.toml").exists()
    };
    let lost: Vec<&String> = files
        .iter()
        .filter(|path| !is_first(Path::new(path)) && !named.contains(Path::new(path)))
        .collect();
    assert!(lost.is_empty(), "no module names {lost:?}");
    assert!(named.len() > 200, "{}", named.len());
}
