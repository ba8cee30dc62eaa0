//! Servers that close: what they leave in the store, and what others notice.

use fencepost_core::backend::record::store::ServerId;
use fencepost_core::backend::{Notification, ReleaseTarget};
use fencepost_core::name::LockName;
use futures::StreamExt;
use tokio::time::{Instant, sleep, timeout};

use crate::memory::Log;
use crate::record_store::{Database, Faults};
use crate::server::{Server, claim, lock, server, server_as};
use crate::servers::{MILLI, SECOND};

/// Servers with the ids from 1 on, as many as there are.
fn numbered(database: &Database, count: u64) -> impl Iterator<Item = Server> {
    let ids = (1..=count).map(|id| ServerId(id.try_into().expect("not 0")));
    ids.map(|id| server_as(database.connect(), id))
}

fn named(number: usize) -> LockName {
    LockName::new(&format!("l{number:03}")).expect("a name")
}

/// A server that is seen, and then killed.
async fn one_is_killed(database: &Database) {
    let killed = server(database);
    sleep(3 * SECOND).await;
    killed.connection.kill();
    sleep(20 * SECOND).await;
}

// G236
#[tokio::test(start_paused = true)]
async fn a_server_that_has_closed_leaves_no_counter_and_is_not_logged_as_dead() {
    let log = Log::default();
    let written = log.clone();
    let heard = tracing_subscriber::fmt().with_writer(move || written.clone()).finish();
    let _heard = tracing::subscriber::set_default(heard);
    let told = || {
        let text = String::from_utf8(log.0.lock().clone()).expect("text");
        text.matches("a server has gone").count()
    };
    // Some close while their first beat is on its way.
    let delays = Faults {
        delay: 1..40_000,
        ..Faults::default()
    };
    let database = Database::new(7, delays);
    let _stays = server(&database);
    one_is_killed(&database).await;
    // Another test may have had the line first, and nobody who listens.
    tracing::callsite::rebuild_interest_cache();
    let before = told();
    one_is_killed(&database).await;
    assert_eq!(told(), before + 1);
    let mut closed = Vec::new();
    for (number, short) in numbered(&database, 100).enumerate() {
        sleep(number as u32 % 50 * MILLI).await;
        short.backend.close().await;
        closed.push(short);
    }
    sleep(20 * SECOND).await;
    assert_eq!(database.servers().len(), 3, "one that lives, and two that were killed");
    // Seen for a while, as a long command is.
    let seen = server(&database);
    sleep(20 * SECOND).await;
    seen.backend.close().await;
    sleep(20 * SECOND).await;
    assert_eq!(told(), before + 1);
}

// G236
#[tokio::test(start_paused = true)]
async fn the_waiters_that_a_server_leaves_behind_as_it_closes_lose_their_places() {
    let database = Database::default();
    let (a, b, c) = (server(&database), server(&database), server(&database));
    let (grant, next) = (a.hold(&claim()).await, claim());
    b.queue(&claim()).await;
    c.queue(&next).await;
    let mut told = c.backend.notifications();
    sleep(3 * SECOND).await;
    b.backend.close().await;
    let closed = Instant::now();
    a.release(&grant).await;
    let told = timeout(20 * SECOND, async {
        while told.next().await != Some(Notification::Next(lock(), next.id)) {}
    });
    told.await.expect("it is told");
    assert!(closed.elapsed() < 10 * SECOND, "{:?}", closed.elapsed());
    crate::server::held(c.promote(&next).await);
}

// G236
#[tokio::test(start_paused = true)]
async fn servers_that_live_for_seconds_remove_idle_roots_and_tokens_still_rise() {
    let database = Database::default();
    let (mut tokens, mut most) = (Vec::new(), 0);
    for (number, short) in numbered(&database, 100).enumerate() {
        let (name, claim) = (named(number), claim());
        let outcome = short.backend.acquire(&name, &claim).await.expect("it answers");
        tokens.push(crate::server::held(outcome).token);
        // One is killed while it holds: its lease ends, and then its root is idle.
        if number == 3 {
            continue;
        }
        let target = ReleaseTarget::Call(&claim.id, claim.call);
        short.backend.release(&name, target, None).await.expect("it answers");
        short.backend.close().await;
        most = most.max(database.roots().len());
        sleep(60 * SECOND).await;
    }
    assert!(most <= 10 + 4 + 2, "{most}");
    assert!(!database.roots().contains(&"l003".to_owned()), "{:?}", database.roots());
    // A store whose clock went back has the floor alone.
    database.step_clock(-10 * 3_600_000_000);
    let last = server(&database);
    for (number, token) in tokens.into_iter().enumerate() {
        let outcome = last.backend.acquire(&named(number), &claim()).await;
        let again = crate::server::held(outcome.expect("it answers")).token;
        assert!(again > token, "{number}: {again} after {token}");
    }
}

// G236
#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_delays_a_close_by_four_seconds_at_most() {
    let database = Database::default();
    let closing: Vec<_> = numbered(&database, 4).collect();
    for one in closing {
        sleep(SECOND).await;
        one.connection.cut_off(true);
        let began = Instant::now();
        one.backend.close().await;
        assert!(began.elapsed() <= 4 * SECOND, "{:?}", began.elapsed());
    }
}
