//! The page when the server, its store, the browser or the page itself fails.

use serde_json::json;

use crate::browser::{Browser, ESCAPE};
use crate::fixture::Fixture;

const LOCK: &str = "/ns/default/lock/app%2Fone";
const HOLDERS: &str = "[aria-label=Holders] tbody";

/// Lets the page's calls pass this body of a function of `url`, `init` and `real`.
fn intercept(browser: &Browser, body: &str) {
    browser.script(&format!(
        "const real = (window.realFetch ??= window.fetch.bind(window));
         window.fetch = async (url, init) => {{ {body} }};"
    ));
}

fn restore(browser: &Browser) {
    intercept(browser, "return real(url, init);");
}

/// Puts the tab in the background, or in front again.
fn set_hidden(browser: &Browser, is_hidden: bool) {
    browser.script(&format!(
        "Object.defineProperty(document, 'hidden', {{ value: {is_hidden}, configurable: true }});
         document.dispatchEvent(new Event('visibilitychange'));"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_read_in_the_background_is_not_shown_as_current() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    let _lease = fixture.acquire("app/one", "before").await;
    browser.go(&fixture.page(LOCK));
    browser.shows(HOLDERS, "before");
    // A server that does not answer, so that a call is under way when the tab is hidden.
    fixture.server.signal("STOP");
    browser.script("window.calls = 0");
    intercept(&browser, "window.calls += 1; return real(url, init);");
    browser.until("a call", || {
        (browser.script("return window.calls").as_u64() > Some(0)).then_some(())
    });
    set_hidden(&browser, true);
    set_hidden(&browser, false);
    browser.shows("#connection", "Not read since");
    fixture.server.signal("CONT");
    browser.until("it is read", || browser.text("#connection").is_empty().then_some(()));
    browser.shows(HOLDERS, "before");
    assert_eq!(browser.errors(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_does_not_clear_the_banner_of_a_lost_server() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    let _lease = fixture.acquire("app/one", "before").await;
    browser.go(&fixture.page(LOCK));
    browser.shows(HOLDERS, "before");
    // Streams that are open go on; the calls fail.
    intercept(&browser, "throw new TypeError('lost');");
    browser.shows("#connection", "No answer from the server since");
    intercept(
        &browser,
        "return new Response('<h1>Bad Gateway</h1>', { status: 502 });",
    );
    browser.shows("#connection", "No answer from the server since");
    intercept(
        &browser,
        r#"const details = [{ type: 'google.rpc.ErrorInfo', debug: { reason: 'NO_QUORUM' } }];
           const error = { code: 'unavailable', message: 'two nodes', details };
           return new Response(JSON.stringify(error), { status: 503 });"#,
    );
    browser.shows("[role=alert]", "NO_QUORUM: two nodes");
    browser.shows("#connection", "What is shown may be old");
    browser.shows(HOLDERS, "before");
    restore(&browser);
    browser.until("it is read", || browser.text("#connection").is_empty().then_some(()));
    browser.until("no error is left", || {
        browser.text("[role=alert]").is_empty().then_some(())
    });
    assert_eq!(browser.errors(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_the_page_does_not_understand_does_not_end_its_reading() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    browser.go(&fixture.page("/ns/default"));
    browser.shows("#count", "No locks in use");
    intercept(&browser, "return new Response('{}');");
    browser.shows("[role=alert]", "This page failed");
    restore(&browser);
    let _lease = fixture.acquire("app/one", "after").await;
    browser.shows("tbody", "app/one");
    browser.until("no error is left", || {
        browser.text("[role=alert]").is_empty().then_some(())
    });
    assert!(browser.errors().iter().all(|error| error.contains("TypeError")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_whose_time_has_passed_unread_is_not_shown_as_held() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    let _lease = fixture.acquire_for("app/one", "short", 8).await;
    browser.go(&fixture.page(LOCK));
    browser.shows(HOLDERS, "short");
    intercept(&browser, "return new Promise(() => {});");
    fixture.server.signal("STOP");
    browser.shows(".time-left", "may be over");
    fixture.server.signal("CONT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_is_found_where_its_stream_is_refused() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    let first = fixture.campaign("app/leader", "node-1", "10.0.0.1").await;
    let page = fixture.page("/ns/default/election/app%2Fleader");
    browser.go(&page);
    browser.shows("#leader", "10.0.0.1");
    let refused = r#"'{"code":"resource_exhausted","message":"too many streams"}'"#;
    let refuse = format!(
        "if (url.endsWith('Observe')) return new Response({refused}, {{ status: 429 }});
         return real(url, init);"
    );
    intercept(&browser, &refuse);
    // A stream that has worked is refused: what is read without it is current.
    set_hidden(&browser, true);
    set_hidden(&browser, false);
    browser.shows("[role=alert]:not(:empty)", "too many streams");
    browser.until("the banner goes", || {
        browser.text("#connection").is_empty().then_some(())
    });
    // The view is opened once more, now without its stream.
    browser.script("location.hash = '#/'");
    browser.shows("h1", "Namespaces");
    browser.script("location.hash = '#/ns/default/election/app%2Fleader'");
    browser.shows("[role=alert]:not(:empty)", "too many streams");
    browser.shows("#leader", "10.0.0.1");
    fixture.release(&first).await;
    browser.shows("#leader", "Nobody leads.");
    let second = fixture.campaign("app/leader", "node-2", "10.0.0.2").await;
    browser.shows("#leader", "10.0.0.2");
    browser.shows(".history", &format!("node-2 leads with token {}", second.fencing_token));
    // A stream that is open again takes its notice back, although it does not end.
    restore(&browser);
    browser.until("the notice goes", || {
        (browser.count("[role=alert]:not(:empty)") == 0).then_some(())
    });
    assert_eq!(browser.errors(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_with_a_lower_token_is_shown_where_the_store_was_put_back() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    let _lease = fixture.campaign("app/leader", "node-1", "10.0.0.1").await;
    browser.go(&fixture.page("/ns/default/election/app%2Fleader"));
    browser.shows("#leader", "10.0.0.1");
    // The stream stays open and tells nothing.
    intercept(
        &browser,
        "const answer = await real(url, init);
         if (!url.endsWith('GetLeader')) return answer;
         const read = await answer.json();
         Object.assign(read.leader, { fencingToken: '7', candidate: 'node-2', value: '10.0.0.2' });
         return new Response(JSON.stringify(read), { headers: answer.headers });",
    );
    browser.shows("#leader", "10.0.0.2");
    browser.shows(".history li:first-child", "node-2 leads with token 7");
    browser.click(".force");
    browser.shows("dialog dl", "node-2");
    browser.press(ESCAPE);
    assert_eq!(browser.errors(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_does_not_bring_a_leader_of_the_past_back() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    let first = fixture.campaign("app/leader", "node-1", "10.0.0.1").await;
    browser.go(&fixture.page("/ns/default/election/app%2Fleader"));
    browser.shows("#leader", "10.0.0.1");
    // An answer that stays under way while the stream tells of the next leader.
    intercept(
        &browser,
        "if (!url.endsWith('GetLeader')) return real(url, init);
         window.asked = (window.asked ?? 0) + 1;
         const answer = await real(url, init);
         if (window.asked > 1) return answer;
         const text = await answer.text();
         await new Promise((resolve) => { window.go = resolve; });
         return new Response(text, { headers: answer.headers });",
    );
    browser.until("an answer", || {
        browser
            .script("return window.go !== undefined")
            .as_bool()?
            .then_some(())
    });
    fixture.release(&first).await;
    let _second = fixture.campaign("app/leader", "node-2", "10.0.0.2").await;
    browser.shows("#leader", "10.0.0.2");
    browser.script("window.go()");
    browser.until("the next answer", || {
        (browser.script("return window.asked").as_u64()? > 2).then_some(())
    });
    browser.shows("#leader", "10.0.0.2");
    let past = browser.text(".history");
    assert_eq!(past.matches("node-1 leads").count(), 1, "{past}");
    assert_eq!(browser.errors(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_stays_until_its_answer_is_there() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    let _lease = fixture.acquire("app/one", "worker").await;
    browser.go(&fixture.page(LOCK));
    browser.shows(HOLDERS, "worker");
    intercept(
        &browser,
        "if (url.endsWith('ForceRelease')) await new Promise((resolve) => { window.go = resolve; });
         return real(url, init);",
    );
    browser.click(".force");
    browser.click("#question-yes");
    browser.until("the call", || {
        browser
            .script("return window.go !== undefined")
            .as_bool()?
            .then_some(())
    });
    for _ in 0..3 {
        browser.press(ESCAPE);
        assert_eq!(browser.count("dialog[open]"), 1);
    }
    browser.click("#question-no");
    browser.script("location.hash = '#/'");
    browser.shows("h1", "Namespaces");
    assert_eq!(browser.count("dialog[open]"), 1);
    browser.script("window.go()");
    browser.until("it closes", || (browser.count("dialog[open]") == 0).then_some(()));
    browser.script("location.hash = '#/ns/default/lock/app%2Fone'");
    browser.shows(".figures", "0\nholding");

    // An answer that never comes is told as such.
    let _lease = fixture.acquire("app/one", "worker").await;
    browser.shows(HOLDERS, "worker");
    intercept(
        &browser,
        "if (url.endsWith('ForceRelease')) throw new TypeError('lost');
         return real(url, init);",
    );
    browser.click(".force");
    browser.click("#question-yes");
    browser.shows("dialog [role=alert]", "it is not known whether this was done");
    browser.press(ESCAPE);
    browser.until("it closes", || (browser.count("dialog[open]") == 0).then_some(()));
    assert_eq!(browser.errors(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_of_the_browser_may_be_wrong() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    let _lease = fixture.acquire("app/one", "worker").await;
    for (offset, name) in [(3_600_000, "ahead"), (-3_600_000, "behind")] {
        let source = format!("{{ const now = Date.now.bind(Date); Date.now = () => now() + ({offset}); }}");
        let added = browser.devtools("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": source }));
        browser.go(&fixture.page("/ns/default"));
        browser.shows("tbody", "app/one");
        let since = || browser.text("tbody td:nth-child(5)");
        browser.until("a time", || since().ends_with(" s ago").then_some(()));
        let first = since();
        browser.until("it goes on", || (since() != first).then_some(()));
        assert!(since().ends_with(" s ago"), "{name}: {}", since());
        browser.devtools("Page.removeScriptToEvaluateOnNewDocument", &added);
    }
    assert_eq!(browser.errors(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overview_of_a_part_says_of_how_many_locks_it_is() {
    let Some(browser) = Browser::open() else { return };
    let fixture = Fixture::open().await;
    let _lease = fixture.acquire("app/one", "worker").await;
    browser.go(&fixture.page("/"));
    browser.shows("tbody", "default");
    intercept(
        &browser,
        "const answer = await real(url, init);
         if (!url.endsWith('ListLocks')) return answer;
         const read = await answer.json();
         // Longer than the page reads further pages.
         await new Promise((resolve) => setTimeout(resolve, 8100));
         return new Response(JSON.stringify({ ...read, nextPageToken: 'x' }), { headers: answer.headers });",
    );
    browser.script("location.hash = '#/ns/default/owners'");
    browser.shows("#part", "Only the first 1 locks were read");
    browser.shows(".figures", "1 and more\nlocks in use");
    restore(&browser);
    // Another view reads at once.
    browser.script("location.hash = '#/ns/default/contention'");
    browser.shows("h1", "Contention");
    browser.shows(".figures", "1\nlocks in use");
    browser.until("all are read", || browser.text("#part").is_empty().then_some(()));
    assert_eq!(browser.errors(), [""; 0]);
}
