#[cfg(feature = "embedded")]
mod outage;

use super::*;

fn leader(token: u64, value: &str) -> Leader {
    Leader {
        candidate: Owner::new("a").unwrap(),
        identity: Identity::anonymous(),
        token: FencingToken::new(token).unwrap(),
        value: value.into(),
        remaining: Duration::from_secs(1),
        since: SystemTime::UNIX_EPOCH,
    }
}

#[test]
fn an_older_leader_is_never_shown_after_a_newer_one() {
    let mut shown = Shown::default();
    assert_eq!(shown.take(None), Some(None), "the first message says that nobody leads");
    assert_eq!(shown.take(None), None);
    for (token, value, is_news) in [
        (5, "a", true),
        (5, "a", false),
        (5, "b", true),
        (4, "c", false),
        (6, "c", true),
        (5, "b", false),
    ] {
        let now = leader(token, value);
        let expected = is_news.then(|| Some(now.clone()));
        assert_eq!(shown.take(Some(now)), expected, "{token} {value}");
    }
    assert!(shown.is(FencingToken::new(6).unwrap()));
    assert_eq!(shown.take(None), Some(None));
    assert_eq!(shown.take(Some(leader(5, "b"))), None, "nor after nobody led");
    assert_eq!(shown.take(Some(leader(7, "d"))), Some(Some(leader(7, "d"))));
}

#[test]
fn events_that_came_together_are_read_once() {
    let token = |token| FencingToken::new(token).unwrap();
    let state = || News::Leader(Some(leader(5, "a")));
    for (events, expected) in [
        (vec![News::None, News::None], News::None),
        (vec![state(), News::None], state()),
        (vec![News::Changed, state()], state()),
        (vec![News::Ended(token(5)), News::None], News::Ended(token(5))),
        (vec![News::Ended(token(5)), News::Changed], News::Changed),
        (vec![News::Ended(token(5)), News::Ended(token(6))], News::Changed),
        (vec![News::Changed, News::Ended(token(6))], News::Changed),
        (vec![state(), News::Changed], News::Changed),
    ] {
        let said = format!("{events:?}");
        assert_eq!(events.into_iter().reduce(News::then), Some(expected), "{said}");
    }
}
