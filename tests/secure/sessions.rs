//! A session lives as long as its caller may open it, and each command is held to the rules and limits of its call.

use std::time::{Duration, Instant};

use fencepost::api::proto::session_command::{AcquireAll, Command, Open};
use fencepost::api::proto::{AcquireAllRequest, GetLockRequest, Lease, LockToAcquire};
use fencepost::auth::{Pattern, Policy, PolicySettings, Rules, Verb};
use fencepost::quota::{Quota, QuotaSettings, Rate};
use tonic::{Code, Status};

use super::asks::{living, reason, waiting, wire};
use super::fixture::{Caller, Fixture, access, ask, bearer, detail, everything, limited, rule, until};
use super::session_client::{SessionClient, acquire, attach, release, renew};

/// The time that a revoked caller may keep a session.
const REVOKED_WITHIN: Duration = Duration::from_secs(2);

fn settings() -> PolicySettings {
    PolicySettings {
        bearers: vec![bearer("ci"), bearer("ops")],
        rules: everything(),
        ..PolicySettings::default()
    }
}

/// `ci` may only acquire locks that begin with `mine` in `jobs`.
fn narrow() -> PolicySettings {
    let rules = Rules::new(vec![
        rule(&["token:ci"], &["jobs"], &["mine"], &[Verb::Acquire]),
        rule(&["token:ops"], &["*"], &[""], &[Verb::Acquire, Verb::Read]),
    ]);
    PolicySettings { rules, ..settings() }
}

async fn try_open(caller: &Caller) -> Result<SessionClient, Status> {
    let (commands, sent) = SessionClient::commands();
    let events = caller.locks().session(caller.request(sent)).await?;
    SessionClient::opened(commands, events.into_inner()).await
}

async fn open(caller: &Caller) -> SessionClient {
    try_open(caller).await.expect("it may open one")
}

fn replace(fixture: &Fixture, settings: &PolicySettings) {
    let policy = Policy::open(settings).expect("a policy");
    fixture.access.auth.replace(Some(policy));
}

fn denied<T: std::fmt::Debug>(result: Result<T, Status>) {
    let status = result.expect_err("no rule allows it");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::PermissionDenied, "PERMISSION_DENIED")
    );
}

fn get(namespace: &str, name: &str) -> Command {
    Command::GetLock(GetLockRequest {
        namespace: namespace.into(),
        name: name.into(),
    })
}

// G47
#[tokio::test(flavor = "multi_thread")]
async fn each_command_asks_the_rules_of_its_call() {
    let fixture = Fixture::open(access(&narrow())).await;
    let ci = fixture.caller(Some("secret-ci")).await;
    let theirs = ci
        .showing("secret-ops")
        .acquire(ask("jobs", "theirs"))
        .await
        .expect("free");
    let mut session = open(&ci).await;
    let mine = session.try_acquire(ask("jobs", "mine"), true).await.expect("it may");
    denied(session.try_acquire(ask("jobs", "other"), true).await);
    denied(session.try_acquire(ask("other", "mine"), false).await);
    let ids = session.send(vec![
        get("jobs", "mine"),
        renew(&theirs, None),
        release(&theirs),
        attach(&[&theirs.lease_id]),
        renew(&mine, None),
    ]);
    for id in &ids[..4] {
        denied(session.result(*id).await);
    }
    session.lease(ids[4]).await.expect("the session lives on");
    let ops = ci.showing("secret-ops");
    let state = ops.inspect("jobs", "theirs").await.expect("a state");
    assert_eq!(state.holders.len(), 1, "nothing was done to a lease of others");
}

// G47
#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_the_token_that_opened_it() {
    let fixture = Fixture::open(access(&settings())).await;
    let caller = fixture.caller(Some("secret-ci")).await;
    let other = caller.showing("secret-ops");
    let held = other.acquire(ask("jobs", "held")).await.expect("it is free");
    let mut revoked = open(&caller).await;
    let mine = revoked
        .try_acquire(ask("jobs", "mine"), true)
        .await
        .expect("it is free");
    revoked.one(acquire(waiting(Duration::from_secs(60), ask("jobs", "held")), true));
    until("it waits", async || waiters(&other).await == 1).await;
    replace(
        &fixture,
        &PolicySettings {
            bearers: vec![bearer("ops")],
            ..settings()
        },
    );
    let began = Instant::now();
    let (_, end) = revoked.rest().await;
    assert_eq!(reason(&end.expect("it is revoked")), "UNAUTHENTICATED");
    assert!(began.elapsed() < REVOKED_WITHIN, "{:?}", began.elapsed());
    until("its wait has ended", async || waiters(&other).await == 0).await;
    other.release(&held).await.expect("released");
    let state = other.inspect("jobs", "mine").await.expect("a state");
    assert_eq!(state.holders[0].fencing_token, mine.fencing_token, "its lease lives on");
}

async fn waiters(caller: &Caller) -> u32 {
    caller.inspect("jobs", "held").await.expect("a state").waiter_count
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_no_rule_allows_any_more_is_lost_to_its_session_alone() {
    let fixture = Fixture::open(access(&settings())).await;
    let caller = fixture.caller(Some("secret-ci")).await;
    let mut session = open(&caller).await;
    let mine = session
        .try_acquire(ask("jobs", "mine"), true)
        .await
        .expect("it is free");
    let theirs = session
        .try_acquire(ask("jobs", "theirs"), true)
        .await
        .expect("it is free");
    replace(&fixture, &narrow());
    let kept = session.keep_alive().await;
    let [refused] = &kept.not_renewed[..] else {
        panic!("{kept:?}")
    };
    assert_eq!(
        (&refused.lease_id, refused.reason.as_str()),
        (&theirs.lease_id, "PERMISSION_DENIED")
    );
    assert_eq!(session.lost().await.lease_id, theirs.lease_id);
    assert!(session.keep_alive().await.not_renewed.is_empty());
    let id = session.one(renew(&mine, None));
    session.lease(id).await.expect("it is allowed");
}

// G47
#[tokio::test(flavor = "multi_thread")]
async fn limits_of_rate_leases_and_waiters_bind_each_command() {
    let quota = Quota {
        rate: Some(Rate {
            per_second: 1,
            burst: 20,
        }),
        leases: Some(3),
        waiters: Some(1),
        ..Quota::default()
    };
    let quotas = QuotaSettings {
        identities: vec![(vec![Pattern::new("token:ci").expect("a pattern")], quota)],
        ..QuotaSettings::default()
    };
    let fixture = Fixture::open(limited(&settings(), quotas)).await;
    let caller = fixture.caller(Some("secret-ci")).await;
    let mut session = open(&caller).await;
    let mut over = Vec::new();
    let mut leases = Vec::new();
    for name in ["0", "1", "2"] {
        leases.push(session.try_acquire(ask("jobs", name), false).await.expect("it is free"));
    }
    over.push(session.try_acquire(ask("jobs", "3"), false).await);
    for id in session.send(vec![release(&leases[0]), release(&leases[2])]) {
        session.result(id).await.expect("no limit refuses it");
    }
    let wait = waiting(Duration::from_secs(60), ask("jobs", "1"));
    session.one(acquire(wait.clone(), false));
    over.push(session.try_acquire(wait, false).await);
    let looks = session.send(vec![get("jobs", "0"); 40]);
    for id in looks {
        over.push(session.result(id).await.map(|_| Lease::default()));
    }
    let limits: Vec<String> = over
        .into_iter()
        .filter_map(Result::err)
        .map(|status| detail(&status, "limit"))
        .collect();
    assert!(
        limits.len() > 2 && limits.starts_with(&["leases".into(), "waiters".into(), "rate".into()]),
        "{limits:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_count_as_streams_of_their_identity() {
    let access = access(&settings());
    let quota = Quota {
        streams: Some(1),
        ..Quota::default()
    };
    access.quotas.replace(QuotaSettings {
        identities: vec![(vec![Pattern::new("token:ci").expect("a pattern")], quota)],
        ..QuotaSettings::default()
    });
    let fixture = Fixture::open(access).await;
    let caller = fixture.caller(Some("secret-ci")).await;
    let first = open(&caller).await;
    let over = try_open(&caller).await.err().expect("one too many");
    assert_eq!(
        (reason(&over).as_str(), detail(&over, "limit").as_str()),
        ("OVERLOADED", "streams")
    );
    drop(first);
    until("there is room again", async || try_open(&caller).await.is_ok()).await;
}

// G221
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_all_whose_credentials_are_gone_keeps_its_place_and_what_it_holds() {
    const GRACE: Duration = Duration::from_secs(10);
    let fixture = Fixture::open(access(&settings())).await;
    let ops = fixture.caller(Some("secret-ops")).await;
    ops.acquire(living(6 * GRACE, ask("jobs", "y"))).await.expect("free");
    let mut session = open(&ops.showing("secret-ci")).await;
    let lock = |name: &str| LockToAcquire {
        name: name.into(),
        mode: None,
    };
    let both = AcquireAllRequest {
        namespace: "jobs".into(),
        locks: vec![lock("x"), lock("y")],
        owner: "me".into(),
        ttl: Some(wire(6 * GRACE)),
        wait: Some(wire(6 * GRACE)),
        request_id: "request".into(),
        ..AcquireAllRequest::default()
    };
    session.one(Command::Open(Open {
        session_id: "session".into(),
        number: 1,
        grace: Some(wire(GRACE)),
        ..Open::default()
    }));
    session.one(Command::AcquireAll(AcquireAll {
        request: Some(both),
        keep: true,
    }));
    let counts = async |name| {
        let lock = ops.inspect("jobs", name).await.expect("a state");
        (lock.holder_count, lock.waiter_count)
    };
    until("it waits", async || counts("y").await == (1, 1)).await;
    let bearers = vec![bearer("ops")];
    replace(&fixture, &PolicySettings { bearers, ..settings() });
    let (_, end) = session.rest().await;
    assert_eq!(end.expect("it is ended").code(), Code::Unauthenticated);
    // What is not kept leaves at once.
    tokio::time::sleep(REVOKED_WITHIN / 2).await;
    assert_eq!((counts("x").await, counts("y").await), ((1, 0), (1, 1)));
}
