//! The scripts: one per verb, on shared ground.

use std::sync::LazyLock;

use crate::backend::redis_server::script::{Script, Scripts};

const PRELUDE: &str = concat!(
    include_str!("prelude.lua"),
    include_str!("lists.lua"),
    include_str!("claims.lua"),
    include_str!("purge.lua")
);

/// Puts a claim into the queue, or adopts it.
pub static ENTER: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("enter.lua")));
/// Makes a waiting claim a holder.
pub static TAKE_UP: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("take_up.lua")));
/// Takes a hold, a call's claim or a token's holder out.
pub static LEAVE: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("leave.lua")));
/// Lets a lease live on.
pub static RENEW: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("renew.lua")));
/// Reads the queue.
pub static LOOK: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("look.lua")));
/// Purges, and forgets what ended long ago.
pub static TIDY: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("tidy.lua")));
/// Keeps a replica's waiters alive.
pub static BEAT: LazyLock<Script> = LazyLock::new(|| Script::on(PRELUDE, include_str!("beat.lua")));

/// All of them, for a server to know before they are called.
pub static ALL: Scripts = &[&ENTER, &TAKE_UP, &LEAVE, &RENEW, &LOOK, &TIDY, &BEAT];
