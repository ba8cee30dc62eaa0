//! What the chart shows and warns of is there to be seen.

use std::collections::BTreeSet;

use crate::asks::reason;
use crate::bed::{Bed, ask};

const ALERTS: &str = include_str!("../../helm/fencepost/files/alerts.yaml");
const DASHBOARD: &str = include_str!("../../helm/fencepost/files/dashboard.json");

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
    let bed = Bed::start("[namespaces.a]\nlease_limit = 1\nembedded.path = ':memory:'\n").await;
    let held = bed.calls.acquire(ask("a", "x", "o")).await;
    let over = bed.calls.try_acquire(ask("a", "y", "o")).await.expect_err("one alone");
    assert_eq!(reason(&over), "OVERLOADED");
    bed.calls.release(&held).await;
    let shown = named(&bed.metrics());
    let wanted: BTreeSet<String> = named(ALERTS).union(&named(DASHBOARD)).cloned().collect();
    assert!(wanted.len() > 15, "{wanted:?}");
    let missing: Vec<_> = wanted.difference(&shown).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_label_of_the_alerts_is_one_of_their_metrics() {
    let bed = Bed::start("[namespaces.a]\nembedded.path = ':memory:'\n").await;
    let refused = bed.calls.try_acquire(ask("none", "x", "o")).await.expect_err("unknown");
    assert_eq!(reason(&refused), "NAMESPACE_NOT_FOUND");
    let text = bed.metrics();
    // Prometheus adds these to what it scrapes.
    let added = ["instance", "job", "le"];
    let labels = ALERTS.split("$labels.").skip(1).map(|rest| {
        let end = rest
            .find(|c: char| !c.is_ascii_lowercase() && c != '_')
            .unwrap_or(rest.len());
        &rest[..end]
    });
    let own: BTreeSet<&str> = labels.filter(|label| !added.contains(label)).collect();
    assert!(own.len() >= 3, "{own:?}");
    for label in own {
        assert!(text.contains(&format!("{label}=\"")), "{label}");
    }
}
