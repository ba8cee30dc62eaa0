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
    ("acquire", include_str!("acquire.lua")),
    ("promote", include_str!("promote.lua")),
    ("release", include_str!("release.lua")),
    ("renew", include_str!("renew.lua")),
    ("update", include_str!("update.lua")),
    ("inspect", include_str!("inspect.lua")),
    ("tidy", include_str!("tidy.lua")),
    ("heartbeat", include_str!("heartbeat.lua")),
];

static LIBRARY: LazyLock<Library> = LazyLock::new(|| Library::new(PRELUDE, VERBS));

/// Acquires: grants or enqueues a claim, or adopts the existing one with its id.
pub static ACQUIRE: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("acquire"));
/// Promotes: makes an eligible waiter a holder.
pub static PROMOTE: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("promote"));
/// Releases a hold, the claim of a call or the holder with a token.
pub static RELEASE: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("release"));
/// Renews a lease.
pub static RENEW: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("renew"));
/// Replaces the description of a holder.
pub static UPDATE: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("update"));
/// Reads the queue.
pub static INSPECT: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("inspect"));
/// Purges, and deletes the records of holds that ended long ago.
pub static TIDY: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("tidy"));
/// Keeps a replica's waiters alive.
pub static HEARTBEAT: LazyLock<Script> = LazyLock::new(|| LIBRARY.script("heartbeat"));

/// All scripts; each server loads them before the first call.
pub static ALL: Scripts = Scripts {
    library: Some(&LIBRARY),
    scripts: &[
        &ACQUIRE, &PROMOTE, &RELEASE, &RENEW, &UPDATE, &INSPECT, &TIDY, &HEARTBEAT,
    ],
};
