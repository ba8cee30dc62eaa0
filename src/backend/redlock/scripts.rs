//! The scripts of a node: one per step, with a shared prelude.

use std::sync::LazyLock;

use crate::backend::redis_server::library::Scripts;
use crate::backend::redis_server::script::Script;

const PRELUDE: &str = include_str!("prelude.lua");

/// Votes for an attempt.
pub static LOCK: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("lock.lua")));
/// Raises a vote to the token.
pub static RAISE: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("raise.lua")));
/// Extends a lease.
pub static RENEW: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("renew.lua")));
/// Adds a lease at a node that lacks it.
pub static REPAIR: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("repair.lua")));
/// Ends a lease, an attempt or a call.
pub static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("release.lua")));
/// Returns the holder.
pub static INSPECT: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("inspect.lua")));
/// Returns the names of the locks in use.
pub static NAMES: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("names.lua")));

/// All scripts, so that a node loads them before they are called.
pub static ALL: Scripts = Scripts {
    library: None,
    scripts: &[&LOCK, &RAISE, &RENEW, &REPAIR, &RELEASE, &INSPECT, &NAMES],
};
