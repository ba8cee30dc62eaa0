//! Guards of a client that knows two servers on one store, of which the one in use is killed, stopped or cut off. What is
//! asked for is how the namespace `faults` is configured.

use std::time::Duration;

use fencepost::clock;
use fencepost_client::{Acquire, Client, LockGuard, Loss};
use futures::future::{join_all, try_join_all};

use crate::faults::stores::OneServer;
use crate::forwarder::Forwarder;
use crate::server::{PATIENCE, Server};

const NAMESPACE: &str = "faults";
/// Long enough that a machine that stands still for a second or two loses no lease.
const TTL: Duration = Duration::from_secs(9);
/// Longer than the test takes.
const LONG: Duration = Duration::from_secs(3600);
/// How many guards of each mode.
const GUARDS: usize = 5;

/// What becomes of the server in use.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Killed,
    /// It accepts, and answers nothing.
    Stopped,
    /// Nothing passes between it and the client, and no connection ends.
    CutOff,
}

async fn take(ask: Acquire) -> LockGuard {
    take_for(ask, TTL).await
}

async fn take_for(ask: Acquire, ttl: Duration) -> LockGuard {
    let end = clock::since_boot() + PATIENCE;
    loop {
        // A store that was just opened may not serve yet.
        match ask.clone().ttl(ttl).wait(PATIENCE).await {
            Ok(guard) => return guard,
            Err(error) => assert!(clock::since_boot() < end, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until a guard's lease was renewed beyond this time.
async fn renewed_beyond(guard: &mut LockGuard, time: Duration) -> Result<(), Loss> {
    while guard.end() <= time {
        let renewed = tokio::time::timeout(TTL * 2, guard.renewed()).await;
        if renewed.expect("a renewal or a loss in time").is_none() {
            return Err(guard.lost().await);
        }
    }
    Ok(())
}

/// A guard of one server is told at once that its lease was forced at another one. Shows how long that took.
pub async fn guards_are_told_what_is_forced_at_another_server(namespace: &str) {
    let ((_home, first), (_other_home, other)) = (Server::of_namespace(namespace), Server::of_namespace(namespace));
    let [client, other] = [&first, &other].map(|server| vec![server.address.parse().expect("an address")]);
    let client = Client::connect(&client).await.expect("a server");
    let other = Client::connect(&other).await.expect("a server");
    let (mut guards, mut took) = (Vec::new(), Vec::new());
    for number in 0..21 {
        let ask = client.acquire(NAMESPACE, &number.to_string(), "me");
        guards.push(take_for(ask, LONG).await);
    }
    let now = clock::since_boot();
    let kept = try_join_all(guards.iter_mut().map(|guard| renewed_beyond(guard, now + LONG))).await;
    kept.expect("nobody loses a lease");
    for (number, guard) in guards.iter().enumerate() {
        if number == 1 {
            // The first one was told by the next beat if the server had not subscribed yet, and now it has.
            took.clear();
        }
        let (began, name) = (clock::since_boot(), &guard.lease().name);
        let forced = other.force_release(NAMESPACE, name, guard.fencing_token()).await;
        forced.expect("it holds");
        let lost = tokio::time::timeout(2 * PATIENCE, guard.lost()).await;
        assert_eq!(lost, Ok(Loss::Gone { cause: "forced".into() }), "{name}");
        took.push(clock::since_boot() - began);
    }
    took.sort_unstable();
    println!(
        "told after {:?}, at most {:?}",
        took[took.len() / 2],
        took[took.len() - 1]
    );
    // A beat is sent each 30 s, so most would take longer.
    assert!(took[took.len() / 2] < Duration::from_secs(5), "{took:?}");
}

/// No guard loses its lease, and each is told of its later loss by the other server.
pub async fn guards_move_to_another_server(namespace: &str) {
    let (_home, other) = Server::of_namespace(namespace);
    let faults = [Fault::Killed, Fault::Stopped, Fault::CutOff];
    join_all(faults.map(|fault| guards_move(fault, namespace, &other))).await;
}

async fn guards_move(fault: Fault, namespace: &str, other: &Server) {
    let (_home, first) = Server::of_namespace(namespace);
    let forwarder = Forwarder::before(first.port()).await;
    let addresses = [forwarder.address(), other.address.clone()].map(|text| text.parse().expect("an address"));
    let client = Client::connect(&addresses).await.expect("a server");
    let direct = Client::connect(&addresses[1..]).await.expect("a server");
    let mut guards = Vec::new();
    for number in 0..GUARDS {
        let ask = |mode: &str| client.acquire(NAMESPACE, &format!("{fault:?}-{mode}-{number}"), "me");
        guards.push(take(ask("exclusive")).await);
        guards.push(take(ask("shared").shared()).await);
        guards.push(take(ask("semaphore").semaphore(1, 2)).await);
    }
    // The stream keeps them by then.
    let now = clock::since_boot();
    let kept = try_join_all(guards.iter_mut().map(|guard| renewed_beyond(guard, now + TTL))).await;
    kept.expect("nobody loses a lease");
    match fault {
        Fault::Killed => first.signal("KILL"),
        Fault::Stopped => first.signal("STOP"),
        Fault::CutOff => forwarder.stall(),
    }
    let now = clock::since_boot();
    let kept = try_join_all(guards.iter_mut().map(|guard| renewed_beyond(guard, now + TTL))).await;
    kept.unwrap_or_else(|loss| panic!("{fault:?}: {loss}"));
    for guard in &guards {
        let (name, token) = (&guard.lease().name, guard.fencing_token());
        let checked = direct.check_token(NAMESPACE, name, token).await.expect("an answer");
        assert!(guard.is_held() && checked.held, "{fault:?}: {name}");
        direct.force_release(NAMESPACE, name, token).await.expect("it holds");
        let lost = tokio::time::timeout(PATIENCE, guard.lost()).await;
        assert_eq!(lost, Ok(Loss::Gone { cause: "forced".into() }), "{fault:?}: {name}");
    }
    if matches!(fault, Fault::Stopped) {
        first.signal("CONT");
    }
}

/// A server whose store is away answers beats and renews nothing. The stream moves to the other server, as the calls do:
/// guards are told by it at once that their leases were forced.
pub async fn streams_leave_a_server_whose_store_is_away<S: OneServer>() {
    let store = S::start();
    let way = Forwarder::before(store.port()).await;
    let ((_home, first), (_other_home, other)) = (
        Server::of_namespace(&S::namespace_at(&way.address())),
        Server::of_namespace(&store.namespace()),
    );
    let addresses = [&first, &other].map(|server| server.address.parse().expect("an address"));
    let client = Client::connect(&addresses).await.expect("a server");
    let direct = Client::connect(&addresses[1..]).await.expect("a server");
    let mut guards = Vec::new();
    for number in 0..GUARDS {
        guards.push(take(client.acquire(NAMESPACE, &number.to_string(), "me")).await);
    }
    let now = clock::since_boot();
    let kept = try_join_all(guards.iter_mut().map(|guard| renewed_beyond(guard, now + TTL))).await;
    kept.expect("nobody loses a lease");
    way.stall();
    // Two beats of the stream are answered in this time, and calls renew the leases.
    for _ in 0..3 {
        let now = clock::since_boot();
        let kept = try_join_all(guards.iter_mut().map(|guard| renewed_beyond(guard, now + TTL))).await;
        kept.expect("nobody loses a lease");
    }
    for guard in &mut guards {
        // Where no stream tells, the next renewal does, a third of the TTL later.
        assert!(guard.renewed().await.is_some(), "it is held");
        let (name, token) = (guard.lease().name.clone(), guard.fencing_token());
        let began = clock::since_boot();
        direct.force_release(NAMESPACE, &name, token).await.expect("it holds");
        assert_eq!(guard.lost().await, Loss::Gone { cause: "forced".into() }, "{name}");
        let took = clock::since_boot() - began;
        assert!(took < TTL / 4, "{name}: {took:?}");
    }
}
