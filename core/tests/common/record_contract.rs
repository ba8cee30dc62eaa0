//! What every [`RecordStore`] does: each function is one promise of the trait, on a store without roots.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::record::store::{
    Commit, Committed, Found, FoundRoot, Heard, LockTime, Message, RecordStore, Root, ServerId, Stamp, StoreTime,
    Version,
};
use fencepost_core::name::{LockName, Namespace};
use futures::StreamExt;
use futures::future::{join_all, ready};
use tokio::time::{sleep, timeout};

use crate::record_steps::{first, serves};

/// Runs all of them, each on a store without roots.
pub async fn all(open: impl AsyncFn() -> Arc<dyn RecordStore>) {
    all_but_messages(&open).await;
    a_message_follows_the_commit_that_took_effect(&*open().await).await;
}

/// Runs those that a store without messages keeps.
pub async fn all_but_messages(open: impl AsyncFn() -> Arc<dyn RecordStore>) {
    a_commit_replaces_the_version_that_it_expects(&*open().await).await;
    a_commit_keeps_to_its_guards(&*open().await).await;
    the_clocks_of_a_lock_advance(&*open().await).await;
    parts_go_with_the_commits_that_write_and_delete_them(&*open().await).await;
    a_root_is_removed_under_a_floor(&*open().await).await;
    a_reservation_lets_one_server_commit(&*open().await).await;
    reservations_follow_each_other(&*open().await).await;
    roots_are_listed_by_name(&*open().await).await;
    idle_roots_are_found(&*open().await).await;
    counters_rise_with_each_beat(&*open().await).await;
    bodies_and_parts_are_any_bytes(&*open().await).await;
}

fn number(number: u64) -> NonZeroU64 {
    NonZeroU64::new(number).expect("not 0")
}

fn version(of: u64) -> Version {
    Version(number(of))
}

fn lock(name: &str) -> LockName {
    LockName::new(name).expect("a name")
}

/// A commit of this version, with a body that names it.
pub fn commit(name: &str, expected: Option<u64>, to: u64) -> Commit {
    Commit {
        lock: lock(name),
        expected: expected.map(version),
        version: version(to),
        body: to.to_be_bytes().to_vec(),
        not_before: LockTime(0),
        not_after: LockTime(1 << 53),
        latest: StoreTime(1 << 53),
        put: Vec::new(),
        delete: 0..0,
        floor: 0,
        messages: Vec::new(),
        server: ServerId(number(7)),
        reserve: None,
        keep: Duration::ZERO,
        grants: true,
        extends: false,
        soft: false,
    }
}

/// The stamp of a commit that takes effect.
pub async fn applied(store: &dyn RecordStore, commit: Commit) -> Stamp {
    match store.commit(commit).await.expect("it answers") {
        Committed::Applied(stamp) => stamp,
        other => panic!("{other:?}"),
    }
}

/// What a commit finds that is refused.
pub async fn refused(store: &dyn RecordStore, commit: Commit) -> Found {
    match store.commit(commit).await.expect("it answers") {
        Committed::Refused(found) => found,
        other => panic!("{other:?}"),
    }
}

async fn read(store: &dyn RecordStore, name: &str, known: Option<u64>) -> Found {
    store.read(&lock(name), known.map(version)).await.expect("it answers")
}

fn root(found: Found) -> Root {
    match found.root {
        FoundRoot::Root(root) => root,
        other => panic!("{other:?}"),
    }
}

/// A commit takes effect once, and only on the version that it expects: rules 1, 2 and 9 of the engine build on it.
pub async fn a_commit_replaces_the_version_that_it_expects(store: &dyn RecordStore) {
    assert_eq!(read(store, "a", None).await.root, FoundRoot::Absent);
    let none = refused(store, commit("a", Some(9), 1)).await;
    assert_eq!(none.root, FoundRoot::Absent);
    let stamp = applied(store, commit("a", None, 1)).await;
    let expected = Root {
        version: version(1),
        stamp,
        body: 1_u64.to_be_bytes().to_vec(),
    };
    assert_eq!(root(read(store, "a", None).await), expected);
    assert_eq!(root(read(store, "a", Some(9)).await), expected);
    assert_eq!(read(store, "a", Some(1)).await.root, FoundRoot::Known);
    assert_eq!(
        root(refused(store, commit("a", None, 2)).await),
        expected,
        "a first write compares too"
    );
    assert_eq!(root(refused(store, commit("a", Some(9), 2)).await), expected);
    // The same commit again.
    assert_eq!(root(refused(store, commit("a", None, 1)).await), expected);
    let stamp = applied(store, commit("a", Some(1), 2)).await;
    let now = root(refused(store, commit("a", Some(1), 3)).await);
    assert_eq!((now.version, now.stamp), (version(2), stamp));
    assert_eq!(read(store, "b", None).await.root, FoundRoot::Absent, "another lock");
}

/// Commits and reads that are refused for a guard show the clocks by which they were.
pub async fn a_commit_keeps_to_its_guards(store: &dyn RecordStore) {
    let stamp = applied(store, commit("a", None, 1)).await;
    let clock = stamp.clock.0;
    let guarded = |not_before, not_after, latest| Commit {
        not_before: LockTime(not_before),
        not_after: LockTime(not_after),
        latest: StoreTime(latest),
        ..commit("a", Some(1), 2)
    };
    let far = 1 << 53;
    for guards in [
        (clock + 60_000_000, far, far),
        (0, clock, far),
        (0, far, stamp.time.0 - 1),
    ] {
        let found = refused(store, guarded(guards.0, guards.1, guards.2)).await;
        assert_eq!(found.root, FoundRoot::Known, "{guards:?}");
        assert!(found.now.clock.0 >= clock && found.now.time.0 >= stamp.time.0);
    }
    applied(store, guarded(clock, clock + 60_000_000, stamp.time.0 + 60_000_000)).await;
    let late = Commit {
        latest: StoreTime(stamp.time.0 - 1),
        ..commit("b", None, 1)
    };
    assert_eq!(
        refused(store, late).await.root,
        FoundRoot::Absent,
        "a first write has a latest time too"
    );
}

/// A lock's clock begins with the store's and advances with it.
pub async fn the_clocks_of_a_lock_advance(store: &dyn RecordStore) {
    let absent = read(store, "a", None).await.now;
    assert_eq!(absent.clock.0, absent.time.0);
    assert!(absent.time.0 > 1_577_836_800_000_000, "in microseconds since 1970");
    let first = applied(store, commit("a", None, 1)).await;
    assert!(first.clock >= absent.clock && first.clock.0 == first.time.0);
    sleep(Duration::from_millis(50)).await;
    let found = read(store, "a", Some(1)).await.now;
    let passed = found.clock.0 - first.clock.0;
    assert!((45_000..5_000_000).contains(&passed), "{passed}");
    assert_eq!(passed, found.time.0 - first.time.0);
    let second = applied(store, commit("a", Some(1), 2)).await;
    assert!(second.clock >= found.clock && second.time >= found.time);
}

/// Parts are written and deleted in one step with the root.
pub async fn parts_go_with_the_commits_that_write_and_delete_them(store: &dyn RecordStore) {
    let parts = async |range| store.parts(&lock("a"), range).await.expect("it answers");
    assert_eq!(parts(0..100).await, []);
    let written = |expected, to, put: &[u64], delete| Commit {
        put: put.iter().map(|number| (*number, vec![*number as u8; 3])).collect(),
        delete,
        ..commit("a", expected, to)
    };
    applied(store, written(None, 1, &[10, 11, 12], 0..0)).await;
    refused(store, written(None, 2, &[13], 10..12)).await;
    let part = |number: u64| (number, vec![number as u8; 3]);
    assert_eq!(parts(0..100).await, [part(10), part(11), part(12)]);
    assert_eq!(parts(11..12).await, [part(11)]);
    applied(store, written(Some(1), 2, &[13, 1 << 47], 10..12)).await;
    assert_eq!(parts(0..100).await, [part(12), part(13)]);
    assert_eq!(parts(1 << 47..1 + (1 << 47)).await, [part(1 << 47)]);
    assert_eq!(store.parts(&lock("b"), 0..100).await.expect("it answers"), []);
}

/// Removed roots leave a floor of tokens, without which no first write takes effect.
pub async fn a_root_is_removed_under_a_floor(store: &dyn RecordStore) {
    let put = vec![(4, vec![4])];
    applied(
        store,
        Commit {
            put,
            ..commit("a", None, 1)
        },
    )
    .await;
    applied(store, commit("b", None, 1)).await;
    let roots = [
        (lock("a"), version(1)),
        (lock("b"), version(9)),
        (lock("c"), version(1)),
    ];
    store.remove(&roots, 500).await.expect("it answers");
    assert_eq!(read(store, "a", None).await.root, FoundRoot::Absent);
    assert_eq!(
        read(store, "b", Some(1)).await.root,
        FoundRoot::Known,
        "it was at another version"
    );
    assert_eq!(store.parts(&lock("a"), 0..100).await.expect("it answers"), []);
    let found = refused(
        store,
        Commit {
            floor: 499,
            ..commit("a", None, 2)
        },
    )
    .await;
    assert_eq!((found.root, found.floor), (FoundRoot::Absent, 500));
    store.remove(&[], 400).await.expect("it answers");
    assert_eq!(read(store, "a", None).await.floor, 500, "it never sinks");
    applied(
        store,
        Commit {
            floor: 500,
            ..commit("a", None, 2)
        },
    )
    .await;
    // Where there is a root, its own tokens count.
    applied(
        store,
        Commit {
            floor: 0,
            ..commit("b", Some(1), 2)
        },
    )
    .await;
}

/// After a refusal by version, the server that asked for a reservation commits next.
pub async fn a_reservation_lets_one_server_commit(store: &dyn RecordStore) {
    let time = Duration::from_secs(2);
    applied(store, commit("a", None, 1)).await;
    let (mine, other) = (ServerId(number(1)), ServerId(number(2)));
    let of = |server, expected, to| Commit {
        server,
        ..commit("a", expected, to)
    };
    let loser = |server| Commit {
        reserve: Some(time),
        ..of(server, Some(9), 2)
    };
    let late = Commit {
        not_after: LockTime(0),
        reserve: Some(time),
        ..of(other, Some(1), 2)
    };
    assert_eq!(refused(store, late).await.reserved, None, "refused for another reason");
    refused(store, loser(mine)).await;
    let found = refused(store, of(other, Some(1), 3)).await;
    assert_eq!((&found.root, reserved(&found)), (&FoundRoot::Known, Some(mine)));
    applied(store, of(mine, Some(1), 3)).await;
    assert_eq!(reserved(&read(store, "a", None).await), None, "for one commit");
    applied(store, of(other, Some(3), 4)).await;
    refused(store, loser(mine)).await;
    sleep(time + time / 4).await;
    applied(store, of(other, Some(4), 5)).await;
}

/// A server that asks for a reservation while another one has it gets the next: nobody gets two while another one waits.
pub async fn reservations_follow_each_other(store: &dyn RecordStore) {
    let time = Duration::from_secs(3);
    applied(store, commit("a", None, 1)).await;
    let [mine, other, third] = [1, 2, 3].map(|id| ServerId(number(id)));
    let of = |server, expected, to| Commit {
        server,
        ..commit("a", expected, to)
    };
    let asks = |server, expected| Commit {
        reserve: Some(time),
        ..of(server, expected, 2)
    };
    refused(store, asks(mine, Some(9))).await;
    for later in [mine, other, third, mine] {
        let found = refused(store, asks(later, Some(9))).await;
        assert_eq!(reserved(&found), Some(mine), "there is one already");
    }
    applied(store, of(mine, Some(1), 3)).await;
    let found = refused(store, asks(mine, Some(3))).await;
    assert_eq!((&found.root, reserved(&found)), (&FoundRoot::Known, Some(other)));
    applied(store, of(other, Some(3), 4)).await;
    let found = refused(store, of(third, Some(4), 5)).await;
    assert_eq!(reserved(&found), Some(mine), "it asked although its version was right");
    applied(store, of(mine, Some(4), 5)).await;
    // Who follows itself has nothing left.
    refused(store, asks(mine, Some(9))).await;
    refused(store, asks(other, Some(9))).await;
    sleep(time + time / 4).await;
    refused(store, asks(other, Some(9))).await;
    applied(store, of(other, Some(5), 6)).await;
    assert_eq!(reserved(&read(store, "a", None).await), None);
    applied(store, of(third, Some(6), 7)).await;
}

fn reserved(found: &Found) -> Option<ServerId> {
    found.reserved.map(|(server, _)| server)
}

/// Lists are sorted by the bytes of the names, which may be any text.
pub async fn roots_are_listed_by_name(store: &dyn RecordStore) {
    for name in ["b", "a/2", "ü", "a%", "A", "a_1", "a/1", "a"] {
        applied(store, commit(name, None, 1)).await;
    }
    let list = async |prefix: &str, after: Option<&str>, limit| {
        let roots = store.list(prefix, after, limit).await.expect("it answers");
        for (_, root, now) in &roots {
            assert!(root.version == version(1) && now.clock >= root.stamp.clock);
        }
        roots
            .iter()
            .map(|(name, ..)| name.as_str().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        list("", None, 99).await,
        ["A", "a", "a%", "a/1", "a/2", "a_1", "b", "ü"]
    );
    assert_eq!(list("", Some("a/1"), 2).await, ["a/2", "a_1"]);
    assert_eq!(list("a/", None, 99).await, ["a/1", "a/2"]);
    assert_eq!(list("a/", Some("A"), 1).await, ["a/1"]);
    assert_eq!(list("a%", None, 99).await, ["a%"]);
    assert_eq!(list("a_", None, 99).await, ["a_1"]);
    assert_eq!(list("b", Some("c"), 99).await, [""; 0]);
}

/// Roots are idle by the time of their last commit.
pub async fn idle_roots_are_found(store: &dyn RecordStore) {
    for name in ["a", "b", "c"] {
        applied(store, commit(name, None, 1)).await;
    }
    let time = Duration::from_secs(1);
    sleep(time).await;
    applied(store, commit("b", Some(1), 2)).await;
    let idle = async |after: Option<&str>, limit| {
        let roots = store.idle(time, after, limit).await.expect("it answers");
        roots
            .iter()
            .map(|(name, root)| (name.as_str().to_owned(), root.version))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        idle(None, 9).await,
        [("a".into(), version(1)), ("c".into(), version(1))]
    );
    assert_eq!(idle(None, 1).await, [("a".into(), version(1))]);
    assert_eq!(idle(Some("a"), 9).await, [("c".into(), version(1))]);
}

/// Counters rise by their own server's beats alone.
pub async fn counters_rise_with_each_beat(store: &dyn RecordStore) {
    let (one, other) = (ServerId(number(11)), ServerId(number(12)));
    let beat = async |server| store.beat(server).await.expect("it answers");
    let of =
        |counters: &[(ServerId, u64)], server| counters.iter().find(|(id, _)| *id == server).map(|(_, count)| *count);
    let first = beat(one).await;
    let second = beat(other).await;
    let third = beat(one).await;
    assert_eq!(of(&first, one), of(&second, one));
    assert!(of(&second, one) < of(&third, one) && of(&first, other) < of(&second, other));
    assert_eq!(of(&second, other), of(&third, other));
    store.leave(one).await.expect("it answers");
    let fourth = beat(other).await;
    assert_eq!(of(&fourth, one), None);
    assert!(of(&third, other) < of(&fourth, other), "only its own");
}

/// A message comes with the stamp of its commit. A refused commit sends none.
pub async fn a_message_follows_the_commit_that_took_effect(store: &dyn RecordStore) {
    let to = ServerId(number(21));
    let mut messages = store.messages(to);
    let message = |body: &[u8]| Message {
        to,
        body: body.to_vec(),
    };
    let with = |expected, to, messages| Commit {
        messages,
        ..commit("a", expected, to)
    };
    // What is sent before the store listens is lost.
    let mut at = 0;
    loop {
        at += 1;
        applied(store, with((at > 1).then(|| at - 1), at, vec![message(b"early")])).await;
        let heard = timeout(Duration::from_millis(500), messages.next()).await;
        if heard.is_ok_and(|heard| heard != Some(Heard::Gap)) {
            break;
        }
        assert!(at < 100, "nothing is heard");
    }
    refused(store, with(None, 1, vec![message(b"refused")])).await;
    let stamp = applied(store, with(Some(at), at + 1, vec![message(&[0, 255, 10, 39])])).await;
    let is_later = |heard: &Heard| !matches!(heard, Heard::Message(_, _, body) if body == b"early");
    let mut later = messages.filter(|heard| ready(is_later(heard)));
    let heard = timeout(Duration::from_secs(10), later.next()).await;
    let expected = Heard::Message(lock("a"), stamp, vec![0, 255, 10, 39]);
    assert_eq!(heard.expect("it is heard"), Some(expected));
}

/// Neither zeros nor sizes matter.
pub async fn bodies_and_parts_are_any_bytes(store: &dyn RecordStore) {
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at % 256) as u8).collect();
    for (to, body) in [(1, vec![]), (2, vec![0; 9]), (3, bytes.clone())] {
        let expected = (to > 1).then_some(to - 1);
        let put = vec![(to, body.clone())];
        applied(
            store,
            Commit {
                body: body.clone(),
                put,
                ..commit("a", expected, to)
            },
        )
        .await;
        assert_eq!(root(read(store, "a", None).await).body, body);
        assert_eq!(
            store.parts(&lock("a"), to..to + 1).await.expect("it answers"),
            [(to, body)]
        );
    }
}

/// The locks of one namespace are no other's, whatever their names are.
pub async fn names_stay_in_their_namespace(open: impl Fn(Namespace) -> Arc<dyn RecordStore>) {
    let of = async |namespace: &str| {
        let records = open(Namespace::new(namespace).expect("a good name"));
        serves(&*records).await;
        records
    };
    let (one, other, longer) = (of("a").await, of("b").await, of("a1").await);
    for records in [&one, &other, &longer] {
        applied(&**records, commit("%_'\"\\ü", None, 1)).await;
    }
    applied(&*one, commit("%", None, 2)).await;
    assert_eq!(one.list("", None, 10).await.expect("it lists").len(), 2);
    assert_eq!(one.list("%_", None, 10).await.expect("it lists").len(), 1);
    assert_eq!(longer.list("", None, 10).await.expect("it lists").len(), 1);
}

/// Of the commits of two servers from one version one is applied, also if their batches have other orders.
pub async fn of_commits_from_one_version_one_is_applied(servers: [Arc<dyn RecordStore>; 2]) {
    let locks: Vec<String> = (0..40).map(|lock| format!("lock {lock}")).collect();
    let mut versions = vec![None; locks.len()];
    for round in 0..30 {
        let commits = locks.iter().enumerate().flat_map(|(at, lock)| {
            let turned = locks.len() - 1 - at;
            let commit = |at: usize, lock: &str| Commit {
                expected: versions[at],
                put: vec![(round, vec![round as u8])],
                ..first(lock)
            };
            [(at, 0, commit(at, lock)), (turned, 1, commit(turned, &locks[turned]))]
        });
        let results = join_all(commits.map(|(at, by, commit)| {
            let records = Arc::clone(&servers[by]);
            async move { (at, commit.version, records.commit(commit).await) }
        }))
        .await;
        let mut winners = vec![0; locks.len()];
        for (at, version, result) in results {
            if let Committed::Applied(_) = result.expect("it is answered") {
                winners[at] += 1;
                versions[at] = Some(version);
            }
        }
        assert!(
            winners.iter().all(|winners| *winners == 1),
            "round {round}: {winners:?}"
        );
    }
}
