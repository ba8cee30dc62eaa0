//! A page that is open for long. `scripts/test --soak` takes ten minutes for it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::browser::Browser;
use crate::fixture::Fixture;

/// How long the page is watched.
const LENGTH: Duration = Duration::from_secs(if cfg!(feature = "soak") { 600 } else { 6 });
/// Between two changes.
const PAUSE: Duration = Duration::from_millis(100);
/// Longer than the test, in seconds.
const HOUR: i64 = 3600;
/// How many entries the page keeps of a lock's history.
const HISTORY: u64 = 200;

/// What the page takes of the browser, without garbage.
#[derive(Debug)]
struct Taken {
    heap: f64,
    elements: f64,
    listeners: f64,
}

impl Taken {
    fn by(browser: &Browser) -> Self {
        browser.devtools("HeapProfiler.collectGarbage", &json!({}));
        let metrics = browser.devtools("Performance.getMetrics", &json!({}));
        let all = metrics["metrics"].as_array().expect("metrics");
        let of = |name: &str| {
            let found = all.iter().find(|metric| metric["name"] == name);
            found.and_then(|metric| metric["value"].as_f64()).expect(name)
        };
        Self {
            heap: of("JSHeapUsedSize"),
            elements: of("Nodes"),
            listeners: of("JSEventListeners"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_changes_a_second_of_a_queue_of_a_thousand_leave_the_page_as_small_as_before() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    let lease = fixture.acquire_for("app/one", "holder", HOUR).await;
    let waiters: Vec<_> = (0..1000)
        .map(|number| fixture.wait_for("app/one", &format!("waiter-{number}"), HOUR))
        .collect();
    browser.go(&fixture.page("/ns/default/lock/app%2Fone"));
    browser.shows("#waiter-count", "1000");
    browser.shows("[aria-label=Queue] tbody tr:last-child", "1000");
    browser.devtools("Performance.enable", &json!({}));
    browser.script(
        "window.moved = 0;
         const count = new MutationObserver((all) => {
             window.moved += all.flatMap((one) => [...one.addedNodes]).length;
         });
         count.observe(document.querySelector('.history'), { childList: true });",
    );
    let moved = || browser.script("return window.moved").as_u64().expect("a number");
    // Until the history is full.
    let filling = Instant::now();
    while moved() < HISTORY {
        assert!(
            filling.elapsed() < Duration::from_secs(300),
            "the history does not grow"
        );
        fixture.wait("app/one", "visitor").abort();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let visitor = fixture.wait("app/one", "visitor");
        tokio::time::sleep(Duration::from_millis(20)).await;
        visitor.abort();
    }
    let (before, moved_before, began) = (Taken::by(&browser), moved(), Instant::now());
    let mut changes = 0;
    while began.elapsed() < LENGTH {
        let visitor = fixture.wait("app/one", "visitor");
        tokio::time::sleep(PAUSE).await;
        visitor.abort();
        tokio::time::sleep(PAUSE).await;
        changes += 2;
    }
    // The last change is shown. Visitors that left before they had arrived, and changes that a slow page was told as a
    // state, are not in its history.
    let last = fixture.wait("app/one", "last");
    browser.shows(".history", "last queued");
    let shown = moved() - moved_before;
    assert!(shown >= changes / 2, "{shown} of {changes} changes are shown");
    let after = Taken::by(&browser);
    println!(
        "after {changes} changes in {:?}: {before:?} became {after:?}",
        began.elapsed()
    );
    assert_eq!(browser.count(".history li"), HISTORY);
    assert!(after.heap < 1.25 * before.heap + 1e6, "{before:?} became {after:?}");
    assert!(after.elements < 1.1 * before.elements, "{before:?} became {after:?}");
    assert!(
        after.listeners <= before.listeners + 20.0,
        "{before:?} became {after:?}"
    );
    assert_eq!(browser.errors(), [""; 0]);
    waiters.iter().chain([&last]).for_each(tokio::task::JoinHandle::abort);
    drop(lease);
}
