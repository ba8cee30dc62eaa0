//! The Lua scripts: one per verb, with a shared prelude, and all verbs as one function library.

use std::sync::LazyLock;

use crate::backend::redis_server::library::{Library, Scripts};
use crate::backend::redis_server::script::Script;

const PRELUDE: &str = concat!(
    include_str!("prelude.lua"),
    include_str!("lists.lua"),
    include_str!("claims.lua"),
    include_str!("purge.lua")
);

const VERBS: &[(&str, &str)] = &[
    ("enter", include_str!("enter.lua")),
    ("take_up", include_str!("take_up.lua")),
    ("leave", include_str!("leave.lua")),
    ("renew", include_str!("renew.lua")),
    ("look", include_str!("look.lua")),
    ("tidy", include_str!("tidy.lua")),
    ("beat", include_str!("beat.lua")),
];

static LIBRARY: LazyLock<Library> = LazyLock::new(|| Library::new(PRELUDE, VERBS));

/// Acquires: grants or enqueues a claim, or adopts the existing one with its id.
pub static ENTER: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("enter"));
/// Promotes: makes an eligible waiter a holder.
pub static TAKE_UP: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("take_up"));
/// Releases a hold, the claim of a call or the holder with a token.
pub static LEAVE: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("leave"));
/// Renews a lease.
pub static RENEW: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("renew"));
/// Reads the queue.
pub static LOOK: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("look"));
/// Purges, and deletes the records of holds that ended long ago.
pub static TIDY: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("tidy"));
/// Keeps a replica's waiters alive.
pub static BEAT: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("beat"));

/// All scripts; each server loads them before the first call.
pub static ALL: Scripts = Scripts {
    library: Some(&LIBRARY),
    scripts: &[&ENTER, &TAKE_UP, &LEAVE, &RENEW, &LOOK, &TIDY, &BEAT],
};
