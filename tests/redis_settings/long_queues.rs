//! What the rare, long walks through a lock cost: Redis does nothing else meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencepost::backend::redis::Store;
use fencepost::backend::{
    AcquireOutcome, Backend, ClaimLimits, Health, InspectLimit, NewClaim, PageRequest, ReleaseTarget, Released,
};
use fencepost::name::{FencingToken, LockKey, LockName, Mode, Namespace, Ttl};
use futures::future::join_all;
use futures::{StreamExt, stream};

use crate::crowds::moved;
use crate::harness::standalone;
use crate::numbered::numbered;
use crate::servers::{RedisServer, available};

/// How long a replica that is silent counts as alive, and a heartbeat.
const SILENT: Duration = Duration::from_millis(7_500);
/// For how long one script may work, and Redis is there for nobody else: an answer may take a second.
const LONGEST: Duration = Duration::from_millis(500);
/// The size of a record of a thousand claims, whose owners have short names.
const LARGEST: u64 = 128 << 10;

pub fn claim(number: u128) -> NewClaim {
    NewClaim {
        ttl: Ttl::new(Duration::from_secs(600)).unwrap(),
        limits: ClaimLimits {
            queue: 1_000,
            finished: 100_000,
            holds: 10,
        },
        ..numbered(number)
    }
}

pub async fn open(server: &RedisServer) -> Arc<dyn Backend> {
    open_at(&server.url()).await
}

pub async fn open_at(url: &str) -> Arc<dyn Backend> {
    let backend = Store::open(standalone(url))
        .unwrap()
        .namespace(&Namespace::new("long").unwrap());
    let mut health = backend.health();
    health.wait_for(|health| *health == Health::Serving).await.unwrap();
    backend
}

/// How long the thread of a server that runs the scripts has worked, however long that took on a slow
/// machine.
pub fn worked(server: &RedisServer) -> Duration {
    let text = server.cli(&["INFO", "cpu"]);
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
    };
    let seconds = |name: &str| field(name).expect("INFO cpu has it");
    Duration::from_secs_f64(seconds("used_cpu_user_main_thread:") + seconds("used_cpu_sys_main_thread:"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_of_a_dead_replica_leave_without_stopping_redis() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let (living, dying) = (open(&server).await, open(&server).await);
    let lock = LockName::new("a").unwrap();
    let held = living.acquire(&lock, &claim(0)).await.unwrap();
    assert!(matches!(held, AcquireOutcome::Held(_)), "{held:?}");
    let acquired = stream::iter(1..1_000).map(|number| {
        let (dying, lock) = (&dying, &lock);
        async move { dying.acquire(lock, &claim(number)).await.unwrap() }
    });
    let waiting = acquired.buffer_unordered(200);
    let waiting = waiting.filter(|place| futures::future::ready(matches!(place, AcquireOutcome::Waiting(_))));
    assert_eq!(waiting.count().await, 999);
    drop(dying);
    let (mut before, mut longest) = (worked(&server), Duration::ZERO);
    let nobody = InspectLimit { holders: 0, waiters: 0 };
    let end = tokio::time::Instant::now() + SILENT * 8;
    while living.inspect(&lock, nobody).await.unwrap().waiter_count > 0 {
        assert!(tokio::time::Instant::now() < end, "the dead replica's waiters stay");
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = worked(&server);
        longest = longest.max(now - before);
        before = now;
    }
    longest = longest.max(worked(&server) - before);
    println!("the longest walk took {longest:?}");
    assert!(longest > Duration::ZERO && longest < LONGEST, "{longest:?}");
}

/// Takes a lock, or queues for it, so often at once. Returns the claims.
async fn crowd(backend: &dyn Backend, lock: &LockName, mode: Mode) -> Vec<NewClaim> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let claims = (0..1_000).map(|_| NewClaim {
        mode,
        ..claim(NEXT.fetch_add(1, Ordering::Relaxed).into())
    });
    let claims: Vec<_> = claims.collect();
    let places = join_all(claims.iter().map(|claim| backend.acquire(lock, claim))).await;
    let are_in = places
        .iter()
        .all(|place| matches!(place, Ok(AcquireOutcome::Held(_) | AcquireOutcome::Waiting(_))));
    assert!(are_in, "{:?}", places.last());
    claims
}

/// Asserts that Redis took no millisecond for the calls of functions since its figures were reset.
fn took_no_millisecond(server: &RedisServer) {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:"));
    let field = |name: &str| {
        line?
            .split(',')
            .find_map(|field| field.strip_prefix(name)?.parse::<f64>().ok())
    };
    let field = |name| field(name).expect("functions are called");
    let slow: u32 = server.cli(&["SLOWLOG", "LEN"]).parse().expect("a number");
    let (calls, mean) = (field("calls="), field("usec_per_call="));
    println!("{calls} calls, {mean} us each, {slow} above 1 ms");
    // Redis is not alone on its machine.
    assert!(
        mean < 1_000.0 && f64::from(slow) * 50.0 < calls,
        "{slow} of {calls}, {mean} us"
    );
}

/// What takes Redis no millisecond moves no more bytes: the long form measures the time, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_beside_twenty_thousand_holders_and_ten_thousand_waiters_costs_redis_little() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&["--slowlog-log-slower-than", "1000", "--slowlog-max-len", "100000"]);
    let backend = open(&server).await;
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for number in 0..30 {
        let lock = LockName::new(&format!("a{number:02}")).unwrap();
        match number < 20 {
            true => held.push((crowd(&*backend, &lock, Mode::Shared).await, lock)),
            false => waiting.push((crowd(&*backend, &lock, Mode::Exclusive).await, lock)),
        }
    }
    for reset in [["CONFIG", "RESETSTAT"], ["SLOWLOG", "RESET"]] {
        assert_eq!(server.cli(&reset), "OK");
    }
    let page = PageRequest { after: None, size: 100 };
    assert_eq!(backend.list("", page).await.unwrap().locks.len(), 30);
    let listed = moved(&server);
    let mut verbs = 0;
    for (claims, lock) in held.iter().chain(&waiting) {
        let key = format!("fencepost:long:l:{lock}");
        let bytes: u64 = server.cli(&["HSTRLEN", &key, "b"]).parse().unwrap();
        assert!(bytes <= LARGEST, "{bytes}");
        let everyone = backend.inspect(lock, InspectLimit::of_each(1_000)).await.unwrap();
        assert_eq!(everyone.holder_count + everyone.waiter_count, 1_000);
        for claim in &claims[1..20] {
            let call = ReleaseTarget::Call(&claim.id, claim.call);
            let left = backend.release(lock, call, None).await.unwrap();
            assert!(matches!(left.released, Released::Ended(_)), "{left:?}");
            backend.acquire(lock, claim).await.unwrap();
            verbs += 2;
        }
    }
    let now = moved(&server);
    let (steps, bytes) = (now.0 - listed.0, now.1 - listed.1);
    println!("{verbs} verbs, {steps} steps, {bytes} bytes");
    assert!(
        steps < 2 * verbs && bytes / steps < LARGEST,
        "{verbs} verbs, {steps} steps, {bytes} bytes"
    );
    if cfg!(feature = "soak") {
        took_no_millisecond(&server);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cause_of_a_forced_tokens_end_is_found_among_thousands_without_stopping_redis() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let (backend, lock) = (open(&server).await, LockName::new("a").unwrap());
    let mut first = None;
    for number in 1..=1_000 {
        let claim = claim(number);
        let place = backend.acquire(&lock, &claim).await.unwrap();
        let AcquireOutcome::Held(grant) = place else {
            panic!("{place:?}")
        };
        first.get_or_insert(grant.token);
        let lease = grant.lease(LockKey {
            namespace: Namespace::new("long").unwrap(),
            name: lock.clone(),
        });
        let left = backend.release(&lock, ReleaseTarget::Hold(&lease), None).await;
        assert!(matches!(left.unwrap().released, Released::Ended(_)));
    }
    let before = worked(&server);
    // The oldest that is remembered, and one that never was.
    let oldest = backend
        .release(&lock, ReleaseTarget::Forced(first.unwrap()), None)
        .await
        .unwrap();
    assert!(matches!(oldest.released, Released::EndedBefore(_)), "{oldest:?}");
    let never = ReleaseTarget::Forced(FencingToken::new(1).unwrap());
    let never = backend.release(&lock, never, None).await.unwrap();
    assert_eq!(never.released, Released::Nothing);
    let longest = worked(&server) - before;
    println!("both searches took {longest:?}");
    assert!(longest < LONGEST, "{longest:?}");
}
