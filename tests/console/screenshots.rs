//! The pictures of the documentation. `UPDATE_DOCS=1` writes them.

use std::fs;
use std::path::Path;

use crate::accessible::assert_accessible;
use crate::browser::Browser;
use crate::fixture::Fixture;

/// The pictures: name, page, width and height of the window, and colours.
const PICTURES: &[(&str, &str, u32, u32, &str)] = &[
    ("namespaces", "/", 1100, 420, "light"),
    ("sessions", "/sessions", 1100, 420, "light"),
    ("locks", "/ns/default", 1100, 620, "light"),
    ("lock", "/ns/default/lock/orders%2Fexport", 1100, 670, "light"),
    ("lock-dark", "/ns/default/lock/orders%2Fexport", 1100, 670, "dark"),
    ("contention", "/ns/default/contention", 1100, 520, "dark"),
    ("owners", "/ns/default/owners", 1100, 520, "light"),
    ("election", "/ns/default/election/scheduler", 1100, 520, "light"),
    ("phone", "/ns/default", 390, 844, "dark"),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_main_views_fit_large_and_small_screens_in_light_and_dark() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    for (number, name) in [
        "orders/export",
        "orders/import",
        "mail/digest",
        "reports/daily",
        "search/index",
    ]
    .into_iter()
    .enumerate()
    {
        let ttl = 20 + 25 * i64::try_from(number).expect("small");
        fixture
            .acquire_for(name, &format!("worker-{}", number % 3 + 1), ttl)
            .await;
    }
    let session = fixture.session(3).await;
    let leader = fixture.campaign("scheduler", "node-1", "10.0.0.7:9000").await;
    let waiters = [("orders/export", 4), ("orders/import", 2), ("mail/digest", 1)];
    let waiters: Vec<_> = waiters
        .into_iter()
        .flat_map(|(name, count)| (0..count).map(move |number| (name, format!("worker-{}", number + 4))))
        .map(|(name, owner)| fixture.wait(name, &owner))
        .collect();
    let mut visitors = Vec::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/images");
    for (name, page, width, height, colours) in PICTURES {
        browser.resize(*width, *height);
        browser.prefer(colours);
        browser.go(&fixture.page(page));
        browser.until(page, || (browser.count("main tbody tr, #leader dl") > 0).then_some(()));
        if page.contains("/lock/") {
            visitors.push(fixture.wait("orders/export", "worker-9"));
            browser.shows(".history", "worker-9 queued");
            browser.shows("[aria-label=Queue] tbody tr:last-child", "worker-9");
        }
        // Nothing is wider than the window.
        let overflow = browser.script("return document.documentElement.scrollWidth - innerWidth");
        assert!(
            overflow.as_i64().expect("a number") <= 0,
            "{name}: {overflow} px too wide"
        );
        assert_accessible(&browser, name);
        browser.prefer(colours);
        let picture = browser.picture();
        assert!(picture.starts_with(b"\x89PNG"), "{name}");
        let file = folder.join(format!("console-{name}.png"));
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::create_dir_all(&folder).expect("a directory");
            fs::write(&file, picture).expect("a file");
        }
        assert!(file.is_file(), "UPDATE_DOCS=1 writes {}", file.display());
    }
    assert_eq!(browser.errors(), [""; 0]);
    waiters.iter().chain(&visitors).for_each(tokio::task::JoinHandle::abort);
    drop((leader, session));
}
