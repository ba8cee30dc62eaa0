//! The Lua scripts, with a shared prelude, and all of them as one function library.

use std::sync::LazyLock;

use crate::backend::redis_server::library::{Library, Scripts};
use crate::backend::redis_server::script::Script;

const VERBS: &[(&str, &str)] = &[
    ("grant", include_str!("grant.lua")),
    ("commit", include_str!("commit.lua")),
    ("read", include_str!("read.lua")),
    ("parts", include_str!("parts.lua")),
    ("remove", include_str!("remove.lua")),
    ("beat", include_str!("beat.lua")),
];

static LIBRARY: LazyLock<Library> = LazyLock::new(|| Library::new(include_str!("record.lua"), VERBS));

/// Commits what may grant a lock or adds to its queue: refused while the memory is full.
pub static GRANT: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("grant"));
/// Commits what grants nothing.
pub static COMMIT: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("commit"));
/// Reads a root.
pub static READ: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("read"));
/// Reads parts.
pub static PARTS: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("parts"));
/// Removes a root.
pub static REMOVE: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("remove"));
/// Counts a beat of a server.
pub static BEAT: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("beat"));

/// All scripts; each server loads them before the first call.
pub static ALL: Scripts = Scripts {
    library: Some(&LIBRARY),
    scripts: &[&GRANT, &COMMIT, &READ, &PARTS, &REMOVE, &BEAT],
};
