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
    let state = || LeaderChange::Leader(Some(leader(5, "a")));
    for (events, expected) in [
        (vec![LeaderChange::None, LeaderChange::None], LeaderChange::None),
        (vec![state(), LeaderChange::None], state()),
        (vec![LeaderChange::Changed, state()], state()),
        (
            vec![LeaderChange::Ended(token(5)), LeaderChange::None],
            LeaderChange::Ended(token(5)),
        ),
        (
            vec![LeaderChange::Ended(token(5)), LeaderChange::Changed],
            LeaderChange::Changed,
        ),
        (
            vec![LeaderChange::Ended(token(5)), LeaderChange::Ended(token(6))],
            LeaderChange::Changed,
        ),
        (
            vec![LeaderChange::Changed, LeaderChange::Ended(token(6))],
            LeaderChange::Changed,
        ),
        (vec![state(), LeaderChange::Changed], LeaderChange::Changed),
    ] {
        let said = format!("{events:?}");
        assert_eq!(events.into_iter().reduce(LeaderChange::then), Some(expected), "{said}");
    }
}
