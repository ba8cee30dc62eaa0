//! No modules of one folder import each other in a circle.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

/// Which modules each module imports, of those in the same folder, whatever file below them does so.
type Imports = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

fn imports(sources: &[Source]) -> Imports {
    let modules: BTreeSet<Vec<String>> = sources.iter().map(Source::module).collect();
    let mut imports = Imports::new();
    for source in sources {
        let own = source.module();
        for named in source.paths() {
            let Some(path) = path_in_crate(&named.segments, &own, &modules) else {
                continue;
            };
            let ends = (0..=path.len()).rev();
            let target = ends.map(|end| &path[..end]).find(|start| modules.contains(*start));
            let target = target.unwrap_or_default();
            let same = own.iter().zip(target).take_while(|(one, other)| one == other).count();
            if same < own.len() && same < target.len() {
                let (from, to) = (own[..=same].to_vec(), target[..=same].to_vec());
                imports.entry(from).or_default().insert(to);
            }
        }
    }
    imports
}

/// A path behind `crate`; also one that begins with a module below its file.
fn path_in_crate(segments: &[String], own: &[String], modules: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
    if segments[0] == "crate" {
        return Some(segments[1..].to_vec());
    }
    let below = [own, segments].concat();
    modules.contains(&below[..=own.len()]).then_some(below)
}

/// The modules that a module imports, directly or through others.
fn reached<'a>(imports: &'a Imports, from: &'a Vec<String>) -> BTreeSet<&'a Vec<String>> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(module) = left.pop() {
        for next in imports.get(module).into_iter().flatten() {
            if reached.insert(next) {
                left.push(next);
            }
        }
    }
    reached
}

fn circles(imports: &Imports) -> BTreeSet<Vec<String>> {
    let name = |module: &Vec<String>| format!("crate::{}", module.join("::"));
    let circle = |module: &Vec<String>| {
        let all = reached(imports, module);
        let back = all.iter().filter(|other| reached(imports, other).contains(module));
        let mut names: Vec<String> = back.map(|module| name(module)).collect();
        names.sort();
        names
    };
    imports.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn modules_of_one_folder_import_each_other_in_no_circle() {
    assert_eq!(circles(&imports(&Source::product())), BTreeSet::new());
}

#[test]
fn a_circle_through_files_below_is_found() {
    let source = |path: &str, code: &str| Source {
        path: path.into(),
        code: code.into(),
    };
    let sources = [
        source("src/a.rs", "use crate::b::B;"),
        source("src/b.rs", "use self::c::C;"),
        source("src/b/c.rs", "use crate::d; use super::B;"),
        source("src/d.rs", "use crate::{a::A, b};"),
        source("src/e.rs", "use crate::a;"),
    ];
    let found = circles(&imports(&sources));
    let expected = ["crate::a", "crate::b", "crate::d"].map(str::to_owned).to_vec();
    assert_eq!(found, [expected].into());
}
