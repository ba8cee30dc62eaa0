//! The focus stays where it is while lists are read again.

use crate::accessible::assert_accessible;
use crate::browser::{Browser, ENTER};
use crate::fixture::Fixture;

fn focus(browser: &Browser) -> String {
    let focused = browser.script("return document.activeElement.innerText");
    focused.as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_button_that_ends_a_quarantine_keeps_the_focus() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    browser.go(&fixture.page("/ns/default"));
    browser.shows("#count", "No locks in use");
    browser.script(
        "const real = window.fetch.bind(window);
         window.left = 600;
         window.fetch = async (url, init) => {
             const answer = await real(url, init);
             if (!url.endsWith('ListNamespaces')) return answer;
             const read = await answer.json();
             Object.assign(read.namespaces[0], {
                 health: 'NAMESPACE_HEALTH_QUARANTINED', reason: 'it was lost', quarantineLeft: `${window.left -= 60}s`,
             });
             return new Response(JSON.stringify(read), { headers: answer.headers });
         };",
    );
    browser.script("location.hash = '#/'");
    let row = "[data-namespace=default]";
    browser.shows(row, "quarantined for");
    assert_accessible(&browser, "a quarantine");
    let state = || browser.text(&format!("{row} .badge"));
    browser.script(&format!("document.querySelector('{row} button').focus()"));
    let before = state();
    browser.until("it is read again", || (state() != before).then_some(()));
    assert_eq!(focus(&browser), "Admit…");
    browser.press(ENTER);
    browser.shows("dialog", "End this quarantine?");
    browser.shows("dialog dl", "it was lost");
    browser.press(ENTER);
    browser.until("it closes", || (browser.count("dialog[open]") == 0).then_some(()));
    assert_eq!(focus(&browser), "Admit…");
    assert_eq!(browser.errors(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_buttons_for_pages_keep_the_focus_and_each_press_is_one_page() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    fixture
        .acquire_many((0..250).map(|number| format!("job/{number:03}")))
        .await;
    browser.go(&fixture.page("/ns/default"));
    browser.shows("#count", "Page 1: 100 locks, and more");
    browser.script("document.querySelector('.controls button:nth-of-type(2)').focus()");
    for page in ["Page 2: 100 locks, and more", "Page 3: 50 locks"] {
        browser.press(ENTER);
        browser.shows("#count", page);
        assert_eq!(focus(&browser), "Next");
    }
    browser.press(ENTER);
    assert_eq!(focus(&browser), "Next", "after the last page too");
    browser.script("document.querySelector('.controls button').focus()");
    browser.press(ENTER);
    browser.shows("#count", "Page 2: 100 locks, and more");
    assert_eq!(browser.text("tbody td:first-child a"), "job/100");
    // Two presses at once, of which the second cannot know the page after the next one.
    browser
        .script("const next = document.querySelector('.controls button:nth-of-type(2)'); next.click(); next.click();");
    browser.shows("#count", "Page 3: 50 locks");
    for _ in 0..5 {
        browser.press(ENTER);
    }
    browser.shows("#count", "Page 1: 100 locks, and more");
    assert_eq!(focus(&browser), "Previous");
    assert_eq!(browser.errors(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_keeps_the_focus_when_its_row_moves_and_passes_it_on_when_its_row_goes() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    let _first = fixture.acquire("app/one", "worker").await;
    let _second = fixture.acquire("app/two", "worker").await;
    let mut waiters = vec![
        fixture.wait("app/one", "waiter"),
        fixture.wait("app/one", "waiter"),
        fixture.wait("app/two", "waiter"),
    ];
    browser.go(&fixture.page("/ns/default/contention"));
    browser.shows("tbody tr:nth-child(1)", "app/one");
    browser.shows("tbody tr:nth-child(2)", "app/two");
    browser.until("all wait", || {
        browser.text(".figures").contains("3\nwaiting").then_some(())
    });
    browser.script("document.querySelector('tbody tr:nth-child(1) a').focus()");
    assert_eq!(focus(&browser), "app/one");
    waiters.extend((0..3).map(|_| fixture.wait("app/two", "waiter")));
    browser.shows("tbody tr:nth-child(1)", "app/two");
    assert_eq!(focus(&browser), "app/one");
    waiters[..2].iter().for_each(tokio::task::JoinHandle::abort);
    browser.until("one row", || (browser.count("tbody tr") == 1).then_some(()));
    assert_eq!(focus(&browser), "app/two");
    assert_eq!(browser.errors(), [""; 0]);
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
}
