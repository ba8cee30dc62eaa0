//! Servers at unequal distances from the store that use one lock all the time: how many round trips a verb takes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{
    AcquireOutcome, InspectLimit, NewClaim, ReleaseTarget, Released, RenewOutcome, UpdateOutcome,
};
use fencepost_core::name::{Metadata, Mode};
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::record_store::Database;
use crate::server::{Server, claim, lease, living, lock, server, trying};

/// The most round trips of a verb, and how many of the farthest server's it lasts at most.
const MOST: u64 = 20;

/// By verb: how many there were, the most round trips, and the longest time.
#[derive(Debug, Default)]
struct Costs(BTreeMap<&'static str, (u64, u64, Duration)>);

impl Costs {
    /// Measures a verb of a server that has no other in flight.
    async fn of<T>(&mut self, server: &Server, verb: &'static str, call: impl Future<Output = T>) -> T {
        let (before, began) = (server.connection.steps(), Instant::now());
        let answer = call.await;
        let (count, steps, time) = self.0.entry(verb).or_default();
        *count += 1;
        *steps = (*steps).max(server.connection.steps() - before);
        *time = (*time).max(began.elapsed());
        answer
    }

    /// The longest time of any verb.
    fn slowest(&self) -> Duration {
        self.0.values().map(|(.., time)| *time).max().unwrap_or_default()
    }
}

/// Runs each verb of a holder on the lock, which all hold together, and those of a claim that waits.
async fn all_verbs(server: &Server, costs: &mut Costs) {
    let shared = NewClaim {
        mode: Mode::Shared,
        ..claim()
    };
    let (backend, name) = (&server.backend, lock());
    let note = Metadata::new([("note".into(), "x".into())]).expect("metadata");
    let grant = match costs.of(server, "Acquire", server.acquire(&shared)).await {
        AcquireOutcome::Held(grant) => grant,
        AcquireOutcome::Waiting(_) => {
            costs.of(server, "promote", server.promote(&shared)).await;
            costs
                .of(server, "undo", server.undo(&shared))
                .await
                .expect("it answers");
            return;
        }
        other => panic!("{other:?}"),
    };
    let lease = lease(&grant);
    let renewed = costs.of(server, "Renew", backend.renew(&lease, None)).await;
    assert!(matches!(renewed, Ok(RenewOutcome::Renewed(_))), "{renewed:?}");
    let updated = costs
        .of(server, "Update", backend.update_metadata(&lease, &note, None))
        .await;
    assert_eq!(updated, Ok(UpdateOutcome::Updated));
    let limit = InspectLimit::of_each(9);
    let queue = costs.of(server, "Inspect", backend.inspect(&name, limit)).await;
    assert!(queue.expect("it answers").holder_count > 0);
    let holder = costs.of(server, "Check", backend.holder(&name, grant.token)).await;
    assert!(holder.expect("it answers").is_some());
    let waiter = claim();
    costs.of(server, "Acquire", server.acquire(&waiter)).await;
    costs
        .of(server, "undo", server.undo(&waiter))
        .await
        .expect("it answers");
    let target = ReleaseTarget::Hold(&lease);
    let released = costs.of(server, "Release", backend.release(&name, target, None)).await;
    assert!(matches!(released.expect("it answers").released, Released::Ended(_)));
}

/// Servers so far away, each way, use the lock for ten seconds.
async fn costs(distances: &[u64]) {
    let database = Database::default();
    let until = Instant::now() + Duration::from_secs(10);
    let servers = distances.iter().map(async |distance| {
        let (server, mut costs) = (server(&database), Costs::default());
        server.connection.set_distance(Duration::from_millis(*distance));
        while Instant::now() < until {
            all_verbs(&server, &mut costs).await;
        }
        costs
    });
    let farthest = 2 * Duration::from_millis(*distances.iter().max().expect("some"));
    for (distance, costs) in distances.iter().zip(join_all(servers).await) {
        println!("{distance} ms: {costs:?}");
        for verb in ["Acquire", "Renew", "Update", "Inspect", "Check", "undo", "Release"] {
            let (count, steps, time) = costs.0[verb];
            assert!(count >= 3, "{distance} ms: {verb}: {count}");
            assert!(steps <= MOST, "{distance} ms: {verb}: {steps} round trips");
            assert!(time <= farthest * MOST as u32, "{distance} ms: {verb}: {time:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_servers_of_unequal_latency_serve_each_verb_within_twenty_round_trips() {
    // Times are whole milliseconds: as 3 ms beside an eighth of one.
    costs(&[1, 12]).await;
}

#[tokio::test(start_paused = true)]
async fn three_servers_of_unequal_latency_serve_each_verb_within_twenty_round_trips() {
    costs(&[1, 4, 12]).await;
}

/// The most round trips of a renewal or release of a holder whose server is far away; of one that is the only one, which
/// loses once before it asks for the lock.
const KEPT_WITHIN: u64 = 10;
const KEPT_ALONE: u64 = 4;
/// How long servers use the lock, at least, and in round trips of the farthest one.
const TIME: (Duration, u32) = (Duration::from_secs(2), 40);

/// Acquires, keeps and releases the lock from a far server, and returns what each verb cost.
async fn keeps(server: &Server, until: Instant) -> Costs {
    let mut costs = Costs::default();
    while Instant::now() < until {
        let shared = NewClaim {
            mode: Mode::Shared,
            ..living(Duration::from_secs(5))
        };
        let grant = costs.of(server, "Acquire", server.hold(&shared)).await;
        let lease = lease(&grant);
        for _ in 0..3 {
            let renewed = costs.of(server, "Renew", server.backend.renew(&lease, None)).await;
            assert!(matches!(renewed, Ok(RenewOutcome::Renewed(_))), "{renewed:?}");
        }
        let released = costs.of(server, "Release", server.release(&grant)).await;
        assert!(matches!(released, Released::Ended(_)), "{released:?}");
    }
    costs
}

/// Clients of a near server change the lock all the time, while holders of these servers keep it: by how long each way to the
/// store takes, and for how long the server runs and stands still.
async fn keeps_beside_a_near_server(others: &[(u64, Option<(u64, u64)>)]) {
    let round_trip =
        |(distance, pulses): &(u64, Option<(u64, u64)>)| 2 * distance + pulses.map_or(0, |(_, stands)| stands);
    let farthest = others.iter().map(round_trip).max().expect("some");
    let until = Instant::now() + TIME.0.max(TIME.1 * Duration::from_millis(farthest));
    let database = Database::default();
    let near = server(&database);
    near.connection.set_distance(Duration::from_millis(1));
    let changes = join_all((0..2).map(async |_| {
        let mut changes = 0;
        while Instant::now() < until {
            let shared = NewClaim {
                mode: Mode::Shared,
                ..claim()
            };
            near.release(&near.hold(&shared).await).await;
            changes += 1;
        }
        changes
    }));
    let kept = others.iter().map(async |(distance, pulses)| {
        let server = server(&database);
        server.connection.set_distance(Duration::from_millis(*distance));
        let (runs, stands) = pulses.unwrap_or((1, 0));
        server
            .connection
            .set_pulses(Duration::from_millis(runs), Duration::from_millis(stands));
        keeps(&server, until).await
    });
    let (changes, kept) = tokio::join!(changes, join_all(kept));
    println!("near: {changes:?}");
    let longest = Duration::from_millis(farthest * KEPT_WITHIN);
    for (other, costs) in others.iter().zip(kept) {
        println!("{other:?}: {costs:?}");
        for verb in ["Renew", "Release"] {
            let (count, steps, time) = costs.0[verb];
            assert!(count >= 2, "{other:?}: {verb}: {count}");
            assert!(time <= longest, "{other:?}: {verb}: {time:?}");
            // A nearer one asks several times while a farther one commits.
            let is_farthest = round_trip(other) == farthest;
            let most = match others {
                [(_, None)] => KEPT_ALONE,
                _ => KEPT_WITHIN,
            };
            assert!(!is_farthest || steps <= most, "{other:?}: {verb}: {steps} round trips");
        }
    }
    assert!(
        changes.iter().all(|changes| *changes >= 30),
        "the near one is served: {changes:?}"
    );
}

// G196
#[tokio::test(start_paused = true)]
async fn a_far_holder_renews_and_releases_within_ten_round_trips_while_near_clients_change_its_lock() {
    // A round trip takes twice as long.
    for distance in [3, 20, 75, 150] {
        keeps_beside_a_near_server(&[(distance, None)]).await;
    }
}

// G196
#[tokio::test(start_paused = true)]
async fn holders_of_three_far_servers_renew_within_ten_round_trips_of_the_farthest() {
    keeps_beside_a_near_server(&[(3, None), (20, None), (75, None)]).await;
    keeps_beside_a_near_server(&[(20, None), (23, None), (150, None)]).await;
}

// G196
#[tokio::test(start_paused = true)]
async fn a_holder_whose_server_runs_in_pulses_renews_within_ten_round_trips() {
    keeps_beside_a_near_server(&[(1, Some((20, 80)))]).await;
    keeps_beside_a_near_server(&[(5, Some((30, 170))), (20, None)]).await;
}

/// How long a far server's commit takes, and how long a nearer one's verb may take beside it: the far one reads parts and
/// commits.
const FAR: Duration = Duration::from_millis(150);
const BESIDE: Duration = Duration::from_millis(330);

/// A near server and a far one, and what the near one's verbs cost: it renews a lease on a lock that both share all the time
/// for two seconds, while this happens.
async fn beside<F: Future<Output = ()>>(happens: impl FnOnce(Arc<[Server; 2]>) -> F) -> Costs {
    let database = Database::default();
    let servers = Arc::new([server(&database), server(&database)]);
    let [near, far] = &*servers;
    near.connection.set_distance(Duration::from_millis(1));
    far.connection.set_distance(FAR / 2);
    let until = Instant::now() + Duration::from_secs(2);
    let near_verbs = async {
        let mut costs = Costs::default();
        let lease = lease(&near.hold(&shared()).await);
        while Instant::now() < until {
            let renewed = costs.of(near, "Renew", near.backend.renew(&lease, None)).await;
            assert!(matches!(renewed, Ok(RenewOutcome::Renewed(_))), "{renewed:?}");
        }
        costs
    };
    let (costs, ()) = tokio::join!(near_verbs, happens(Arc::clone(&servers)));
    println!("{costs:?}");
    costs
}

fn shared() -> NewClaim {
    NewClaim {
        mode: Mode::Shared,
        ..claim()
    }
}

// G196
#[tokio::test(start_paused = true)]
async fn a_far_renewal_that_turns_out_to_be_of_a_lost_lease_keeps_nobody_waiting() {
    let costs = beside(async |servers| {
        let [near, far] = &*servers;
        let lease = lease(&far.hold(&shared()).await);
        let renewed = far.backend.renew(&lease, None);
        // Its first commit is lost then, and its second one reserves the lock and finds that the lease is over.
        let ended = async {
            sleep(2 * FAR / 3).await;
            near.backend.release(&lock(), ReleaseTarget::Hold(&lease), None).await
        };
        let (renewed, ended) = tokio::join!(renewed, ended);
        assert!(matches!(ended.expect("it answers").released, Released::Ended(_)));
        assert!(matches!(renewed, Ok(RenewOutcome::Gone(_))), "{renewed:?}");
    })
    .await;
    assert!(costs.slowest() <= BESIDE, "{costs:?}");
}

// G196
#[tokio::test(start_paused = true)]
async fn a_far_renewal_whose_caller_has_left_keeps_nobody_waiting() {
    let costs = beside(async |servers| {
        let far = &servers[1];
        let lease = lease(&far.hold(&shared()).await);
        let renewed = far.backend.renew(&lease, None);
        // Its second commit reserves the lock then.
        timeout(FAR + 2 * FAR / 3, renewed).await.expect_err("it is refused");
    })
    .await;
    assert!(costs.slowest() <= BESIDE, "{costs:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_store_is_away_does_not_try_to_give_its_reservation_up() {
    let database = Database::default();
    let [near, far] = [server(&database), server(&database)];
    far.connection.set_distance(FAR / 2);
    let lease = lease(&far.hold(&shared()).await);
    let away = async {
        // The first commit of the renewal is lost, and the second one, which asks, is not sent.
        sleep(FAR / 4).await;
        near.hold(&shared()).await;
        sleep(FAR / 2).await;
        database.set_down(true);
    };
    let (renewed, ()) = tokio::join!(far.backend.renew(&lease, None), away);
    renewed.expect_err("the store is away");
    let steps = far.connection.steps();
    sleep(Duration::from_secs(10)).await;
    assert_eq!((database.commits().1, far.connection.steps()), (1, steps));
}

// G196
#[tokio::test(start_paused = true)]
async fn far_tries_end_no_lease_that_a_near_holder_renews() {
    let database = Database::default();
    let [near, far] = [server(&database), server(&database)];
    near.connection.set_distance(Duration::from_millis(1));
    far.connection.set_distance(FAR / 2);
    let until = Instant::now() + Duration::from_secs(30);
    let (mut costs, mut tries) = (Costs::default(), 0);
    let holds = async {
        while Instant::now() < until {
            let AcquireOutcome::Held(grant) = near.acquire(&trying(living(Duration::from_secs(1)))).await else {
                sleep(Duration::from_millis(5)).await;
                continue;
            };
            let lease = lease(&grant);
            for _ in 0..2 {
                sleep(Duration::from_millis(20)).await;
                let renewed = costs.of(&near, "Renew", near.backend.renew(&lease, None)).await;
                assert!(matches!(renewed, Ok(RenewOutcome::Renewed(_))), "{renewed:?}");
            }
            let released = costs.of(&near, "Release", near.release(&grant)).await;
            assert!(matches!(released, Released::Ended(_)), "{released:?}");
            sleep(Duration::from_millis(20)).await;
        }
    };
    let polls = async {
        while Instant::now() < until {
            if let AcquireOutcome::Held(grant) = far.acquire(&trying(claim())).await {
                far.release(&grant).await;
            }
            tries += 1;
        }
    };
    tokio::join!(holds, polls);
    println!("{tries} tries: {costs:?}");
    assert!(tries >= 10 && costs.slowest() <= BESIDE, "{costs:?}");
}

/// A near server takes the free lock on each way of a try of this far one to the store: the try is refused after one loss.
async fn loses_a_race(near: &Server, far: &Server) {
    let distance = Duration::from_millis(10);
    far.connection.set_distance(Duration::ZERO);
    assert!(far.is_free().await);
    far.connection.set_distance(distance);
    let overtakes = async {
        sleep(distance / 2).await;
        near.hold(&claim()).await
    };
    let claim = trying(claim());
    let (tried, grant) = tokio::join!(far.acquire(&claim), overtakes);
    assert!(matches!(tried, AcquireOutcome::Busy(_)), "{tried:?}");
    near.release(&grant).await;
}

// G196
#[tokio::test(start_paused = true)]
async fn races_that_earlier_verbs_have_lost_reserve_nothing_for_later_ones() {
    let database = Database::default();
    let [near, far] = [server(&database), server(&database)];
    for _ in 0..9 {
        loses_a_race(&near, &far).await;
    }
    assert_eq!(database.commits().1, 9, "each has lost one");
    assert_eq!(database.reserving(), 0, "tries ask after four");
    // One loss is enough for a renewal, if it is its own.
    far.connection.set_distance(Duration::ZERO);
    let lease = lease(&far.hold(&claim()).await);
    for _ in 0..2 {
        let renewed = far.backend.renew(&lease, None).await;
        assert!(matches!(renewed, Ok(RenewOutcome::Renewed(_))), "{renewed:?}");
    }
    assert_eq!(database.reserving(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_read_found_is_no_answer_to_a_later_call() {
    let database = Database::default();
    let (near, far) = (server(&database), server(&database));
    assert!(far.is_free().await);
    far.connection.set_distance(Duration::from_millis(10));
    let grant = near.hold(&claim()).await;
    let (first, second) = tokio::join!(far.inspect(), async {
        sleep(Duration::from_millis(15)).await;
        // The read of the first call is on its way back.
        near.release(&grant).await;
        far.inspect().await
    });
    assert_eq!((first.holder_count, second.holder_count), (1, 0));
}
