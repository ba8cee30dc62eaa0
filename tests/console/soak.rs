//! A page that is open for long. `scripts/test --soak` takes ten minutes for each view.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::browser::Browser;
use crate::fixture::Fixture;

/// How long a view is watched.
const LENGTH: Duration = Duration::from_secs(if cfg!(feature = "soak") { 600 } else { 6 });
/// How many locks are in use.
const LOCKS: usize = if cfg!(feature = "soak") { 10_000 } else { 1_000 };
/// Between two changes.
const PAUSE: Duration = Duration::from_millis(100);
/// Longer than the tests, in seconds.
const HOUR: i64 = 3600;
/// How many claims wait.
const QUEUE: usize = 1000;
/// How many locks of the list are taken and released again, one after the other.
const VISITORS: usize = 10;
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
        browser.devtools("Performance.enable", &json!({}));
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

    /// Fails if the page takes more than before.
    fn assert_no_more_than(&self, before: &Self) {
        assert!(self.heap < 1.25 * before.heap + 1e6, "{before:?} became {self:?}");
        assert!(self.elements < 1.1 * before.elements, "{before:?} became {self:?}");
        assert!(self.listeners <= before.listeners + 20.0, "{before:?} became {self:?}");
    }
}

/// Counts the elements that are added to this one from now on.
fn count_added<'a>(browser: &'a Browser, selector: &str) -> impl Fn() -> u64 + 'a {
    browser.script(&format!(
        "window.added = 0;
         const count = new MutationObserver((all) => {{
             window.added += all.flatMap((one) => [...one.addedNodes]).length;
         }});
         count.observe(document.querySelector('{selector}'), {{ childList: true }});"
    ));
    || browser.script("return window.added").as_u64().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_changes_a_second_of_a_queue_of_a_thousand_leave_the_page_as_small_as_before() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    let names = (0..LOCKS).map(|number| format!("job/{number:05}"));
    fixture.acquire_many_for(names, HOUR).await;
    let lease = fixture.acquire_for("app/one", "holder", HOUR).await;
    let waiters: Vec<_> = (0..QUEUE)
        .map(|number| fixture.wait_for("app/one", &format!("waiter-{number}"), HOUR))
        .collect();
    browser.go(&fixture.page("/ns/default/lock/app%2Fone"));
    browser.shows("#waiter-count", "1000");
    browser.shows("[aria-label=Queue] tbody tr:last-child", "1000");
    let added = count_added(&browser, ".history");
    // Until the history is full.
    let filling = Instant::now();
    while added() < HISTORY {
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
    let (before, added_before, began) = (Taken::by(&browser), added(), Instant::now());
    let (mut changes, mut shortest) = (0, QUEUE);
    while began.elapsed() < LENGTH {
        let visitor = fixture.wait("app/one", "visitor");
        tokio::time::sleep(PAUSE).await;
        visitor.abort();
        tokio::time::sleep(PAUSE).await;
        changes += 2;
        if changes % 20 == 0 {
            let shown = browser.text("#waiter-count").parse().expect("a number");
            shortest = shortest.min(shown);
        }
    }
    assert_eq!(shortest, QUEUE, "the queue stands all the time");
    assert!(!waiters.iter().any(tokio::task::JoinHandle::is_finished), "all wait");
    // The last change is shown. Visitors that left before they had arrived, and changes that a slow page was told as a
    // state, are not in its history.
    let last = fixture.wait("app/one", "last");
    browser.shows(".history", "last queued");
    let shown = added() - added_before;
    assert!(shown >= changes / 2, "{shown} of {changes} changes are shown");
    let after = Taken::by(&browser);
    println!(
        "a queue of {QUEUE}, after {changes} changes in {:?}: {before:?} became {after:?}",
        began.elapsed()
    );
    assert_eq!(browser.count(".history li"), HISTORY);
    after.assert_no_more_than(&before);
    assert_eq!(browser.errors(), [""; 0]);
    waiters.iter().chain([&last]).for_each(tokio::task::JoinHandle::abort);
    drop(lease);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_changes_a_second_of_many_locks_leave_their_list_as_small_as_before() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    let names = (0..LOCKS).map(|number| format!("job/{number:05}"));
    fixture.acquire_many_for(names, HOUR).await;
    browser.go(&fixture.page("/ns/default"));
    browser.shows("#count", "Page 1: 100 locks, and more");
    let added = count_added(&browser, "tbody");
    let (mut before, mut began) = (None, Instant::now());
    let (mut changes, mut visitors) = (0, VecDeque::new());
    let mut pace = tokio::time::interval(PAUSE);
    for number in 0.. {
        if before.is_some() && began.elapsed() >= LENGTH {
            break;
        }
        // They come before all others, so that they are on the page that is shown.
        visitors.push_back(fixture.acquire(&format!("app/{number}"), "visitor").await);
        pace.tick().await;
        if visitors.len() > VISITORS {
            fixture.release(&visitors.pop_front().expect("a lease")).await;
        }
        pace.tick().await;
        changes += 2;
        // The first ones make what is made once.
        if before.is_none() && added() > 2 * VISITORS as u64 {
            (before, began) = (Some((Taken::by(&browser), added())), Instant::now());
            changes = 0;
        }
        assert!(before.is_some() || changes < 1000, "the list does not change");
    }
    let (before, added_before) = before.expect("a loop");
    let _lease = fixture.acquire("app/last", "visitor").await;
    browser.shows("tbody", "app/last");
    let shown = added() - added_before;
    // It is read every two seconds, and less often where that takes long.
    assert!(shown > changes / 20, "{shown} rows after {changes} changes");
    let after = Taken::by(&browser);
    println!(
        "{LOCKS} locks, after {changes} changes in {:?}, {shown} rows of them shown: {before:?} became {after:?}",
        began.elapsed()
    );
    assert_eq!(browser.count("tbody tr"), 100);
    after.assert_no_more_than(&before);
    assert_eq!(browser.errors(), [""; 0]);
}
