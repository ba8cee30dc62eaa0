//! A configuration that changes while calls are under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencepost::backend::Guarantee;
use fencepost::config::{Config, Overrides};
use fencepost::metrics::Metrics;
use fencepost::stores::{self, OpenError};

use crate::observe::asks::{living, reason, waiting};
use crate::observe::calls::Calls;
use crate::observe::fixture::{Fixture, ask, eventually};

const STAYS: &str = "[namespaces.stays]\nembedded.path = ':memory:'\n";
const WAIT: Duration = Duration::from_secs(20);
const APPLIED: &str = "fencepost_config_reloads_total";
const FAILED: &str = "fencepost_config_reload_failed";

fn with(more: &str) -> String {
    format!("{STAYS}{more}")
}

/// Calls that go on and must all succeed, until it is told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn begin(calls: &Calls) -> Self {
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let tasks = (0..8).map(|number| {
            let (calls, stop, done) = (calls.clone(), stop.clone(), done.clone());
            tokio::spawn(async move {
                // Two share a lock, so that hand-offs are under way too.
                let name = format!("lock-{}", number / 2);
                while !stop.load(Ordering::Relaxed) {
                    let lease = calls.acquire(waiting(WAIT, ask("stays", &name, "load"))).await;
                    calls.try_renew(&lease, None).await.expect("renewed");
                    calls.release(&lease).await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        Self {
            tasks: tasks.collect(),
            stop,
            done,
        }
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Ends it; panics if any call failed.
    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("no call failed");
        }
    }
}

// G65
#[tokio::test(flavor = "multi_thread")]
async fn namespaces_limits_and_the_log_change_under_load_and_no_call_fails() {
    let mut fixture = Fixture::start(&with("")).await;
    let load = Load::begin(&fixture.calls);
    for round in 1..=6 {
        let before = load.done();
        let more = match round % 3 {
            0 => "",
            1 => "ttl_max = '1h'\n[log]\nlevel = 'debug'\n[namespaces.new]\nembedded.path = ':memory:'\n",
            _ => "queue_limit = 50\n[namespaces.new]\nembedded.path = ':memory:'\n[namespaces.newer]\n",
        };
        fixture.configure(&with(more));
        fixture.shows(APPLIED, &[], f64::from(round)).await;
        eventually("calls go on", || load.done() > before + 8).await;
    }
    assert!(fixture.server.said("call finished"), "the level debug was in force");
    load.end().await;
    fixture.shows(FAILED, &[], 0.0).await;
    let failed = fixture.metrics();
    let failed: Vec<_> = failed
        .lines()
        .filter(|line| line.starts_with("fencepost_requests_total") && line.contains("\"stays\""))
        .filter(|line| !line.contains("reason=\"OK\"") && !line.ends_with(" 0"))
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_counts_for_the_calls_that_come_after_it() {
    let mut fixture = Fixture::start(&with("ttl_max = '1h'\n")).await;
    let long = living(Duration::from_secs(1800), ask("stays", "x", "o"));
    let lease = fixture.calls.acquire(long.clone()).await;
    fixture.configure(&with("ttl_max = '10m'\nttl_default = '1m'\n"));
    fixture.shows(APPLIED, &[], 1.0).await;
    fixture.calls.release(&lease).await;
    let refused = fixture.calls.try_acquire(long).await.expect_err("too long now");
    assert_eq!(reason(&refused), "INVALID_FIELD");
    let lease = fixture.calls.acquire(ask("stays", "x", "o")).await;
    assert_eq!(lease.ttl.expect("a TTL").seconds, 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_goes_ends_its_waits_and_keeps_its_leases() {
    let other = "[namespaces.other]\nembedded.path = 'other.redb'\n";
    let mut fixture = Fixture::start(&with(other)).await;
    let held = fixture.calls.acquire(ask("other", "x", "o")).await;
    let waits = tokio::spawn({
        let (calls, ask) = (fixture.calls.clone(), waiting(WAIT, ask("other", "x", "waiter")));
        async move { calls.try_acquire(ask).await }
    });
    fixture
        .shows("fencepost_acquires_waiting", &[("namespace", "other")], 1.0)
        .await;

    fixture.configure(&with(""));
    let ended = waits.await.expect("an answer").expect_err("the namespace goes");
    assert_eq!(reason(&ended), "DRAINING");
    fixture.shows(APPLIED, &[], 1.0).await;
    let gone = fixture
        .calls
        .try_acquire(ask("other", "y", "o"))
        .await
        .expect_err("gone");
    assert_eq!(reason(&gone), "NAMESPACE_NOT_FOUND");
    eventually("it is closed", || {
        fixture
            .metric("fencepost_backend_healthy", &[("namespace", "other")])
            .is_none()
    })
    .await;

    fixture.configure(&with(other));
    fixture.shows(APPLIED, &[], 2.0).await;
    let state = fixture.calls.look_at("other", "x").await;
    assert_eq!(state.holders.len(), 1, "{state:?}");
    fixture.calls.release(&held).await;
    fixture.calls.acquire(ask("other", "x", "next")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_on_the_same_store_can_go_and_come_back() {
    let other = "[namespaces.other]\nembedded.path = ':memory:'\n";
    let mut fixture = Fixture::start(&with(other)).await;
    for round in 1..=2 {
        fixture.configure(&with(""));
        fixture.shows(APPLIED, &[], f64::from(2 * round - 1)).await;
        fixture.configure(&with(other));
        fixture.shows(APPLIED, &[], f64::from(2 * round)).await;
        let held = fixture.calls.acquire(ask("other", "x", "o")).await;
        let waits = tokio::spawn({
            let (calls, ask) = (fixture.calls.clone(), waiting(WAIT, ask("other", "x", "waiter")));
            async move { calls.acquire(ask).await }
        });
        fixture
            .shows("fencepost_acquires_waiting", &[("namespace", "other")], 1.0)
            .await;
        fixture.calls.release(&held).await;
        let next = waits.await.expect("granted, for its wakes come again");
        fixture.calls.release(&next).await;
    }
}

// G65
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_is_refused_visibly_and_the_old_one_stays() {
    let mut fixture = Fixture::start(&with("")).await;
    for (bad, what) in [
        (with("queue_limit = 0\n"), "namespaces.stays.queue_limit"),
        ("no toml".to_owned(), "f.toml:1:"),
        (
            with("guarantee = 'cp'\n"),
            "namespaces.stays.guarantee: must be at most AP",
        ),
        (
            format!("listen = ['127.0.0.1:1']\n[log]\nformat = 'json'\n{STAYS}"),
            "log.format can only change with a restart",
        ),
        (
            // The first of them can be opened, and is closed again.
            with(
                "[namespaces.fresh]\nembedded.path = ':memory:'\n[namespaces.new]\nembedded.path = '/dev/null/x.redb'\n",
            ),
            "namespace new",
        ),
        (
            STAYS.replace(":memory:", "another.redb"),
            "the backend of namespaces.stays can only change with a restart",
        ),
    ] {
        fixture.configure(&bad);
        fixture.shows(FAILED, &[], 1.0).await;
        eventually(what, || fixture.server.said(what)).await;
        let lease = fixture.calls.acquire(ask("stays", "x", "o")).await;
        fixture.calls.release(&lease).await;
        for none in ["fresh", "new"] {
            let unknown = fixture
                .calls
                .try_acquire(ask(none, "x", "o"))
                .await
                .expect_err("not served");
            assert_eq!(reason(&unknown), "NAMESPACE_NOT_FOUND");
            assert_eq!(
                fixture.metric("fencepost_backend_healthy", &[("namespace", none)]),
                None
            );
        }

        fixture.configure(&with(""));
        fixture.shows(FAILED, &[], 0.0).await;
    }
    fixture.shows(APPLIED, &[], 6.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_cannot_be_what_it_must_is_not_seen_in_the_metrics() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("f.toml");
    std::fs::write(&file, STAYS).expect("a file");
    let overrides = Overrides {
        config: Some(file),
        ..Overrides::default()
    };
    let mut config = Config::load(overrides, stores::ALL).expect("a configuration");
    // The file could not say so: it is read by the same rule.
    let namespace = config.namespaces.values_mut().next().expect("a namespace");
    namespace.guarantee = Some(Guarantee::Cp);
    let metrics = Metrics::new("0");
    let refused = stores::open(&config, Some(&metrics)).await.expect_err("memory is AP");
    assert!(matches!(refused, OpenError::Guarantee { .. }), "{refused}");
    let text = String::from_utf8(metrics.text().expect("a text")).expect("UTF-8");
    assert!(!text.contains("namespace=\"stays\""), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_up_lets_it_read_its_file_again() {
    let fixture = Fixture::start(&with("")).await;
    fixture.shows(APPLIED, &[], 0.0).await;
    fixture.signal("HUP");
    fixture.shows(APPLIED, &[], 1.0).await;
    let age = fixture.metric("fencepost_config_age_seconds", &[]).expect("an age");
    assert!((0.0..20.0).contains(&age), "{age}");
}

/// With a namespace in a Redis that nobody needs to reach, of this `ttl_max`, beside one of another.
#[cfg(feature = "redis")]
fn spans(far: &str, stays: &str) -> String {
    with(&format!(
        "ttl_max = '{stays}'\n[namespaces.far]\nbackend = 'redis'\nttl_max = '{far}'\n\
         redis.urls = ['redis://127.0.0.1:1']\n"
    ))
}

#[cfg(all(feature = "postgres", feature = "mysql"))]
#[tokio::test(flavor = "multi_thread")]
async fn a_longer_ttl_max_applies_to_a_namespace_in_a_sql_database() {
    let with_ttl = |ttl: &str| {
        with(&format!(
            "[namespaces.one]\nbackend = 'postgres'\nttl_max = '{ttl}'\npostgres.servers = ['127.0.0.1:1']\n\
             [namespaces.two]\nbackend = 'mysql'\nttl_max = '{ttl}'\nmysql.servers = ['127.0.0.1:1']\n"
        ))
    };
    let mut fixture = Fixture::start(&with_ttl("10m")).await;
    for (round, ttl) in (1..).zip(["1h", "10m", "2h"]) {
        fixture.configure(&with_ttl(ttl));
        fixture.shows(APPLIED, &[], f64::from(round)).await;
    }
    fixture.shows(FAILED, &[], 0.0).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn only_a_namespace_in_a_redis_may_not_have_a_longer_ttl_max_than_at_the_start() {
    let mut fixture = Fixture::start(&spans("10m", "1h")).await;
    for (round, (far, stays)) in (1..).zip([("10m", "2h"), ("5m", "2h"), ("10m", "24h")]) {
        fixture.configure(&spans(far, stays));
        fixture.shows(APPLIED, &[], f64::from(round)).await;
    }
    fixture.configure(&spans("11m", "24h"));
    fixture.shows(FAILED, &[], 1.0).await;
    let why = "namespace far: ttl_max must stay at most 600s";
    eventually(why, || fixture.server.said(why)).await;
    let long = living(Duration::from_secs(20 * 3600), ask("stays", "x", "o"));
    fixture.calls.acquire(long).await;
    // With the last Redis its longest TTL is forgotten.
    fixture.configure(&with(""));
    fixture.shows(APPLIED, &[], 4.0).await;
    fixture.configure(&spans("1h", "1h"));
    fixture.shows(APPLIED, &[], 5.0).await;
}
