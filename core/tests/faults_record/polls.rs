//! Servers that miss messages read locks by themselves: what they learn so, and how often they read.

use std::time::Duration;

use fencepost_core::backend::{ChangeKind, WatchEvent};
use fencepost_core::claim::Cause;
use futures::StreamExt;
use tokio::time::{sleep, timeout};

use crate::record_store::{Database, Faults};
use crate::server::{Server, claim, lease, living, lock, server, server_on};
use crate::servers::{MILLI, SECOND, deaf, is_told, queued};

// G13
#[tokio::test(start_paused = true)]
async fn a_waiter_is_told_although_every_message_is_lost() {
    let database = Database::new(1, deaf());
    let (a, b) = (server(&database), server(&database));
    let mut told = b.backend.notifications();
    let (grant, waiter) = queued(&a, &b).await;
    a.release(&grant).await;
    is_told(&mut told, &waiter, 2 * SECOND).await;
    crate::server::held(b.promote(&waiter).await);
}

/// A server that hears no messages, as on MySQL.
fn polling(database: &Database) -> Server {
    server_on(database.connect_polling(20 * MILLI))
}

/// How many commits and reads a server sends within a time.
async fn steps_within(server: &Server, time: Duration) -> u64 {
    let before = server.connection.steps();
    sleep(time).await;
    server.connection.steps() - before
}

// G13
#[tokio::test(start_paused = true)]
async fn a_lock_that_does_not_change_is_read_less_and_less_often() {
    let database = Database::new(1, deaf());
    let (a, b) = (server(&database), polling(&database));
    let mut told = b.backend.notifications();
    let (grant, waiter) = queued(&a, &b).await;
    // After 20, 60, 140 and 300 ms, and then each 250 ms.
    assert_eq!(steps_within(&b, 299 * MILLI).await, 3);
    assert_eq!(steps_within(&b, 10 * SECOND).await, 1 + 39);
    // A change begins that anew. It is seen within 250 ms, and 20 to 550 ms later there are five reads.
    a.backend.renew(&lease(&grant), None).await.expect("it answers");
    let reads = steps_within(&b, SECOND).await;
    assert!((6..=7).contains(&reads), "{reads}");
    sleep(10 * SECOND).await;
    a.release(&grant).await;
    is_told(&mut told, &waiter, 251 * MILLI).await;
    crate::server::held(b.promote(&waiter).await);
}

// G13
#[tokio::test(start_paused = true)]
async fn a_lock_that_could_not_be_read_is_read_again() {
    let database = Database::new(1, deaf());
    let (a, b) = (server(&database), polling(&database));
    let mut told = b.backend.notifications();
    let (grant, waiter) = queued(&a, &b).await;
    database.set_down(true);
    sleep(10 * SECOND).await;
    database.set_down(false);
    a.release(&grant).await;
    is_told(&mut told, &waiter, 251 * MILLI).await;
}

// G13
#[tokio::test(start_paused = true)]
async fn a_waiter_is_told_when_the_lease_before_it_ends() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let mut told = b.backend.notifications();
    a.hold(&living(5 * SECOND + 500 * MILLI)).await;
    let waiter = claim();
    b.queue(&waiter).await;
    is_told(&mut told, &waiter, 5 * SECOND + 510 * MILLI).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_changes_here_all_the_time_is_not_read_besides() {
    let database = Database::default();
    let server = polling(&database);
    let (mut grant, mut next) = (server.hold(&claim()).await, claim());
    server.queue(&next).await;
    let before = (database.commits().0, server.connection.steps());
    for _ in 0..100 {
        let waiter = claim();
        server.queue(&waiter).await;
        sleep(10 * MILLI).await;
        server.release(&grant).await;
        grant = crate::server::held(server.promote(&next).await);
        next = waiter;
    }
    let commits = database.commits().0 - before.0;
    assert_eq!(server.connection.steps() - before.1, commits);
}

// G37, G36c
#[tokio::test(start_paused = true)]
async fn a_watcher_reads_the_state_again_if_changes_are_missing() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let mut watching = b.backend.watch(&lock());
    let first = watching.next().await;
    assert!(
        matches!(&first, Some(Ok(WatchEvent::State(queue))) if queue.holder_count == 0),
        "{first:?}"
    );
    let grant = a.hold(&claim()).await;
    let change = watching.next().await;
    assert!(
        matches!(&change, Some(Ok(WatchEvent::Change(change)))
            if change.kind == ChangeKind::Granted && change.token == Some(grant.token)),
        "{change:?}"
    );
    database.set_faults(deaf());
    a.release(&grant).await;
    let second = a.hold(&claim()).await;
    let state = timeout(5 * SECOND, watching.next()).await;
    assert!(
        matches!(&state, Ok(Some(Ok(WatchEvent::State(queue)))) if queue.holders[0].token == second.token),
        "{state:?}"
    );
    database.set_faults(Faults::default());
    a.release(&second).await;
    let change = timeout(5 * SECOND, watching.next()).await;
    assert!(
        matches!(&change, Ok(Some(Ok(WatchEvent::Change(change)))) if change.kind == ChangeKind::Ended(Cause::Released)),
        "{change:?}"
    );
    // A minute later the server still watches.
    sleep(100 * SECOND).await;
    let grant = a.hold(&claim()).await;
    let change = timeout(5 * SECOND, watching.next()).await;
    assert!(
        matches!(&change, Ok(Some(Ok(WatchEvent::Change(change)))) if change.token == Some(grant.token)),
        "{change:?}"
    );
}
