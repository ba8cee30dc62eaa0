use super::*;
use crate::auth::Pattern;
use crate::name::{FencingToken, Kind, LeaseKey, LockKey, LockName, Namespace, Secret};

const TRY: Entry = Entry {
    waits: false,
    claim: None,
};
const WAIT: Entry = Entry {
    waits: true,
    claim: None,
};

fn who(name: &str) -> Identity {
    Identity::authenticated(name)
}

fn quotas(of_identities: Quota, of_namespace: Quota) -> Quotas {
    Quotas::new(QuotaSettings {
        namespaces: BTreeMap::from([("jobs".to_owned(), of_namespace)]),
        identities: vec![(vec![Pattern::new("token:*").unwrap()], of_identities)],
    })
}

fn claim(number: u8) -> ClaimId {
    ClaimId::from_bytes([number; 16])
}

fn lease(number: u8) -> LeaseKey {
    LeaseKey {
        lock: LockKey {
            namespace: Namespace::new("jobs").unwrap(),
            name: LockName::new("a").unwrap(),
        },
        kind: Kind::Exclusive,
        claim: claim(number),
        token: FencingToken::new(u64::from(number)).unwrap(),
        secret: Secret::from_bytes([number; 16]),
    }
}

/// Delivers a lease that was granted for this time.
fn hold(mut place: AcquireQuota, lease: &LeaseKey, ttl: Duration) {
    place.granted(lease, ttl);
    place.holds(lease);
}

/// Counts a call of an identity, in a namespace where one is named.
fn call(quotas: &Quotas, identity: &Identity, namespace: Option<&str>) -> Result<(), QuotaExceeded> {
    quotas.call(identity)?;
    namespace.map_or(Ok(()), |namespace| quotas.call_in(namespace))
}

fn limit<T>(answer: Result<T, QuotaExceeded>) -> Option<(&'static str, Scope)> {
    answer.err().map(|over| (over.limit, over.scope))
}

#[tokio::test(start_paused = true)]
async fn a_rate_admits_a_burst_and_then_its_calls_per_second() {
    let rate = Rate {
        per_second: 10,
        burst: 3,
    };
    let of_identity = Quota {
        rate: Some(rate),
        ..Quota::default()
    };
    let quotas = quotas(of_identity, Quota::default());
    let me = who("token:me");
    for _ in 0..3 {
        call(&quotas, &me, Some("jobs")).unwrap();
    }
    let over = call(&quotas, &me, Some("jobs")).unwrap_err();
    assert_eq!((over.limit, over.scope, over.most), ("rate", Scope::Identity, 10));
    assert_eq!(over.retry, Duration::from_millis(100));
    call(&quotas, &who("token:you"), Some("jobs")).unwrap();
    call(&quotas, &who("jwt:me"), Some("jobs")).unwrap();
    let mut passed = 0;
    for _ in 0..100 {
        tokio::time::advance(Duration::from_millis(10)).await;
        passed += u32::from(call(&quotas, &me, None).is_ok());
    }
    assert_eq!(passed, 10);
    // What is not used for long does not add up.
    tokio::time::advance(Duration::from_secs(3600)).await;
    let passed = (0..10).filter(|_| call(&quotas, &me, None).is_ok()).count();
    assert_eq!(passed, 3);
}

#[tokio::test(start_paused = true)]
async fn only_identities_that_have_used_nothing_make_room_for_others() {
    let once = Quota {
        rate: Some(Rate {
            per_second: 1,
            burst: 1,
        }),
        ..Quota::default()
    };
    let quotas = quotas(once, Quota::default());
    for number in 0..MAX_IDENTITIES {
        quotas.call(&who(&format!("token:{number}"))).unwrap();
    }
    let others = who("token:others");
    assert_eq!(limit(quotas.call(&others)), Some(("identities", Scope::Identity)));
    assert_eq!(limit(quotas.call(&who("token:0"))), Some(("rate", Scope::Identity)));
    tokio::time::advance(Duration::from_secs(1)).await;
    quotas.call(&others).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_refused_by_its_identity_limit_does_not_count_for_the_namespace() {
    let rate = |per_second, burst| Quota {
        rate: Some(Rate { per_second, burst }),
        ..Quota::default()
    };
    let quotas = quotas(rate(1, 1), rate(1, 2));
    for _ in 0..10 {
        let _ = call(&quotas, &who("token:me"), Some("jobs"));
    }
    call(&quotas, &who("token:you"), Some("jobs")).unwrap();
    let over = call(&quotas, &who("token:third"), Some("jobs"));
    assert_eq!(limit(over), Some(("rate", Scope::Namespace)));
    call(&quotas, &who("token:fourth"), Some("other")).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_counts_until_its_end_is_observed() {
    let of_identity = Quota {
        leases: Some(1),
        ..Quota::default()
    };
    let ledger = Arc::new(Ledger::new(false));
    let quotas = quotas(of_identity, Quota::default());
    let me = who("token:me");
    let full = || limit(quotas.acquire(&me, "jobs", TRY, &ledger)) == Some(("leases", Scope::Identity));
    let ttl = Duration::from_secs(10);

    let place = quotas.acquire(&me, "jobs", TRY, &ledger).unwrap();
    assert!(full(), "an Acquire in progress counts");
    drop(place);
    assert!(!full(), "an Acquire without a grant does not count");

    hold(quotas.acquire(&me, "jobs", TRY, &ledger).unwrap(), &lease(1), ttl);
    assert!(full());
    ledger.ended(&lease(2), None);
    assert!(full(), "another lease ended");
    ledger.ended(&lease(1), None);
    assert!(!full());

    hold(quotas.acquire(&me, "jobs", TRY, &ledger).unwrap(), &lease(3), ttl);
    tokio::time::advance(Duration::from_secs(9)).await;
    ledger.renewed(&lease(3), Instant::now() + ttl);
    tokio::time::advance(Duration::from_secs(9)).await;
    assert!(full(), "it was renewed");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!full(), "it has expired");

    hold(quotas.acquire(&me, "jobs", TRY, &ledger).unwrap(), &lease(4), ttl);
    let token = |number| FencingToken::new(number).unwrap();
    ledger.forced(&LockName::new("a").unwrap(), token(5));
    assert!(full(), "another token was forced");
    ledger.forced(&LockName::new("a").unwrap(), token(4));
    assert!(!full());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_renewed_before_its_delivery_is_counted_after_the_end_that_its_grant_had() {
    let of_identity = Quota {
        leases: Some(1),
        ..Quota::default()
    };
    let ttl = Duration::from_secs(10);
    // Its delivery is before the end that its grant had, or after it.
    for delivered_after in [ttl * 3 / 4, ttl * 5 / 4] {
        let ledger = Arc::new(Ledger::new(false));
        let quotas = quotas(of_identity, Quota::default());
        let me = who("token:me");
        let mut place = quotas.acquire(&me, "jobs", TRY, &ledger).unwrap();
        place.granted(&lease(1), ttl);
        tokio::time::advance(ttl / 2).await;
        ledger.renewed(&lease(1), Instant::now() + ttl);
        tokio::time::advance(delivered_after - ttl / 2).await;
        place.holds(&lease(1));
        tokio::time::advance(ttl * 3 / 2 - delivered_after - Duration::from_millis(1)).await;
        assert!(quotas.acquire(&me, "jobs", TRY, &ledger).is_err(), "it is held");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(quotas.acquire(&me, "jobs", TRY, &ledger).is_ok(), "it has expired");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_expired_in_another_namespace_no_longer_counts_for_its_identity() {
    let of_identity = Quota {
        leases: Some(1),
        ..Quota::default()
    };
    let quotas = quotas(of_identity, Quota::default());
    let (jobs, other) = (Arc::new(Ledger::new(false)), Arc::new(Ledger::new(false)));
    let me = who("token:me");
    let ttl = Duration::from_secs(10);
    hold(quotas.acquire(&me, "jobs", TRY, &jobs).unwrap(), &lease(1), ttl);
    assert!(quotas.acquire(&me, "other", TRY, &other).is_err());
    tokio::time::advance(ttl).await;
    assert!(quotas.acquire(&me, "other", TRY, &other).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_a_held_lease_counts_once_and_is_never_refused() {
    let of_identity = Quota {
        leases: Some(1),
        ..Quota::default()
    };
    let ledger = Arc::new(Ledger::new(false));
    let quotas = quotas(of_identity, Quota::default());
    let me = who("token:me");
    let retry = |number| Entry {
        waits: false,
        claim: Some(claim(number)),
    };
    for _ in 0..5 {
        let place = quotas.acquire(&me, "jobs", retry(1), &ledger).unwrap();
        hold(place, &lease(1), Duration::from_secs(10));
    }
    assert!(quotas.acquire(&me, "jobs", retry(2), &ledger).is_err(), "another claim");
    ledger.ended(&lease(1), None);
    let again = quotas.acquire(&me, "jobs", retry(1), &ledger).unwrap();
    assert!(quotas.acquire(&me, "jobs", TRY, &ledger).is_err(), "it counts again");
    drop(again);
}

#[tokio::test(start_paused = true)]
async fn waiters_and_streams_count_while_they_last() {
    let of_namespace = Quota {
        waiters: Some(1),
        streams: Some(1),
        ..Quota::default()
    };
    let ledger = Arc::new(Ledger::new(false));
    let quotas = quotas(Quota::default(), of_namespace);
    let (me, you) = (who("token:me"), who("token:you"));
    let waiting = quotas.acquire(&me, "jobs", WAIT, &ledger).unwrap();
    assert_eq!(
        limit(quotas.acquire(&you, "jobs", WAIT, &ledger)),
        Some(("waiters", Scope::Namespace))
    );
    assert!(
        quotas.acquire(&you, "jobs", TRY, &ledger).is_ok(),
        "a try does not wait"
    );
    hold(waiting, &lease(1), Duration::from_secs(10));
    assert!(
        quotas.acquire(&you, "jobs", WAIT, &ledger).is_ok(),
        "a holder does not count as a waiter"
    );
    let watching = quotas.stream(&me, Some("jobs")).unwrap();
    assert_eq!(
        limit(quotas.stream(&you, Some("jobs"))),
        Some(("streams", Scope::Namespace))
    );
    drop(watching);
    assert!(quotas.stream(&you, Some("jobs")).is_ok());
}

#[tokio::test(start_paused = true)]
async fn replaced_limits_keep_the_current_counts() {
    let held = |most| Quota {
        leases: Some(most),
        ..Quota::default()
    };
    let ledger = Arc::new(Ledger::new(false));
    let quotas = quotas(held(1), Quota::default());
    let me = who("token:me");
    let place = quotas.acquire(&me, "jobs", TRY, &ledger).unwrap();
    hold(place, &lease(1), Duration::from_secs(10));
    let patterns = vec![Pattern::new("*").unwrap()];
    quotas.replace(QuotaSettings {
        identities: vec![(patterns, held(2))],
        ..QuotaSettings::default()
    });
    let second = quotas.acquire(&me, "jobs", TRY, &ledger).unwrap();
    assert!(quotas.acquire(&me, "jobs", TRY, &ledger).is_err());
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn only_the_exact_lease_key_ends_a_lease_and_its_secret_is_redacted() {
    let held = Quota {
        leases: Some(1),
        ..Quota::default()
    };
    let ledger = Arc::new(Ledger::new(false));
    let quotas = quotas(held, Quota::default());
    let me = who("token:me");
    let minute = Duration::from_secs(60);
    let place = quotas.acquire(&me, "jobs", TRY, &ledger).unwrap();
    hold(place, &lease(77), minute);
    let mut elsewhere = lease(77);
    elsewhere.lock.name = LockName::new("b").unwrap();
    let later = FencingToken::new(78).unwrap();
    for altered in [
        elsewhere,
        LeaseKey {
            kind: Kind::Shared,
            ..lease(77)
        },
        LeaseKey {
            claim: claim(78),
            ..lease(77)
        },
        LeaseKey {
            token: later,
            ..lease(77)
        },
    ] {
        ledger.ended(&altered, None);
        assert!(quotas.acquire(&me, "jobs", TRY, &ledger).is_err(), "{altered:?}");
    }
    let shown = format!("{ledger:?}");
    assert!(shown.contains("Secret(..)") && !shown.contains("[77, 77"), "{shown}");
    ledger.ended(&lease(77), None);
    assert!(quotas.acquire(&me, "jobs", TRY, &ledger).is_ok());
}
