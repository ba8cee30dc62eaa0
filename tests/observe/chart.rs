//! What the chart shows and warns of is there to be seen.

use std::collections::BTreeSet;

use fencepost::metrics::calls::Reason;
use serde_json::Value;

use crate::observe::asks::reason;
use crate::observe::fixture::{Fixture, ask};

const ALERTS: &str = include_str!("../../helm/fencepost/files/alerts.yaml");
const DASHBOARD: &str = include_str!("../../helm/fencepost/files/dashboard.json");

/// Only a server with TLS shows it: `tests/secure/live.rs`.
const OF_TLS: &str = "fencepost_certificate_expiry_timestamp_seconds";
/// Shown once a task was started again.
const OF_RESTARTS: &str = "fencepost_task_restarts_total{task=\"health\"}";

/// The metrics that a text names, without what Prometheus adds to a histogram's name.
fn named(text: &str) -> BTreeSet<String> {
    let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = text
        .split(|c| !is_of_name(c))
        .filter(|word| word.starts_with("fencepost_"));
    let suffixes = ["_bucket", "_count", "_sum"];
    let bare = words.map(|word| suffixes.iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word));
    bare.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_of_the_dashboard_and_the_alerts_is_shown() {
    let fixture = Fixture::start("[namespaces.a]\nlease_limit = 1\nembedded.path = ':memory:'\n").await;
    let held = fixture.calls.acquire(ask("a", "x", "o")).await;
    let over = fixture
        .calls
        .try_acquire(ask("a", "y", "o"))
        .await
        .expect_err("one alone");
    assert_eq!(reason(&over), "OVERLOADED");
    fixture.calls.release(&held).await;
    let shown = named(&fixture.metrics());
    let wanted: BTreeSet<String> = named(ALERTS).union(&named(DASHBOARD)).cloned().collect();
    assert!(wanted.len() > 15, "{wanted:?}");
    let missing: Vec<_> = wanted.difference(&shown).collect();
    assert_eq!(missing, [OF_TLS, "fencepost_task_restarts_total"]);
}

/// The names in front of what a text sets after them, such as labels before `="`.
fn labels(text: &str) -> BTreeSet<&str> {
    let names = text.split("=\"").map(|before| {
        let start = before.rfind(|c: char| !c.is_ascii_lowercase() && c != '_');
        &before[start.map_or(0, |start| start + 1)..]
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// The labels of what an expression finds, if it is one of the alerts'.
fn found<'a>(expression: &'a str, shown: &'a str) -> BTreeSet<&'a str> {
    if let Some((_, list)) = expression.split_once(" by (") {
        let list = list.split(')').next().expect("an end");
        return list.split(", ").filter(|label| *label != "le").collect();
    }
    if let Some(selector) = expression.strip_prefix("absent(") {
        return labels(selector);
    }
    // What two sides have is that of the left one.
    let metric = expression.find("fencepost_").map(|start| &expression[start..]);
    let metric = metric.map(|rest| {
        rest.split(|c: char| !c.is_ascii_lowercase() && c != '_')
            .next()
            .expect("a name")
    });
    let series = metric.map(|metric| {
        let line = shown.lines().find(|line| line.starts_with(metric));
        let absent = [OF_TLS, OF_RESTARTS]
            .into_iter()
            .find(|series| series.starts_with(metric));
        line.or(absent).unwrap_or_else(|| panic!("{metric} is not shown"))
    });
    let own = series.map(labels).unwrap_or_default();
    // Prometheus adds these to what it scrapes.
    own.into_iter().chain(["instance", "job"]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_label_of_an_alert_is_one_of_what_its_expression_finds() {
    let fixture = Fixture::start("[namespaces.a]\nembedded.path = ':memory:'\n").await;
    let shown = fixture.metrics();
    let alerts: Value = serde_saphyr::from_str(ALERTS).expect("YAML");
    let rules = alerts["groups"][0]["rules"].as_array().expect("rules");
    let mut seen = BTreeSet::new();
    for rule in rules {
        let found = found(rule["expr"].as_str().expect("an expression"), &shown);
        let told = rule["annotations"].to_string();
        for rest in told.split("$labels.").skip(1) {
            let end = rest
                .find(|c: char| !c.is_ascii_lowercase() && c != '_')
                .expect("an end");
            let label = &rest[..end];
            assert!(found.contains(label), "{}: {label} is none of {found:?}", rule["alert"]);
            seen.insert(label.to_owned());
        }
    }
    assert!(seen.len() >= 4, "{seen:?}");
}

#[test]
fn every_reason_of_the_alerts_and_the_dashboard_is_one_of_the_answers() {
    let dashboard = DASHBOARD.replace("\\\"", "\"");
    let mut words = BTreeSet::new();
    for text in [ALERTS, &dashboard] {
        for operator in ["reason=\"", "reason!=\"", "reason=~\"", "reason!~\""] {
            for rest in text.split(operator).skip(1) {
                words.extend(rest.split('"').next().expect("an end").split('|'));
            }
        }
    }
    assert!(words.len() >= 6, "{words:?}");
    for word in words {
        assert_ne!(Reason::of(word), Reason::of("none of them"), "{word}");
    }
}
