//! Which waiters are notified, and which are removed.

use super::*;
use crate::backend::etcd::cluster::settings::Settings;
use crate::name::Namespace;

#[test]
fn a_waiter_that_is_gone_is_reported_once_and_removed() {
    let waiter = NewClaim::numbered(1);
    let mut view = View::default();
    view.revision = 7;
    let mut watch = LockWatch {
        view: Some(view),
        ..LockWatch::default()
    };
    watch.own_waiters.insert(waiter.id, OwnWaiter::new(waiter.call, 8));
    assert!(!watch.is_lost(&waiter.id), "the view does not have it yet");
    watch.own_waiters.insert(waiter.id, OwnWaiter::new(waiter.call, 7));
    assert!(watch.is_lost(&waiter.id));
    assert!(!watch.is_lost(&waiter.id));
    assert!(watch.own_waiters.is_empty(), "no call would remove it any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn no_waiter_is_registered_with_a_removed_watch() {
    let namespace = Namespace::new("n").unwrap();
    let link = ClusterClient::new(&Settings::new(vec!["http://127.0.0.1:1".into()]));
    let closed = CancellationToken::new();
    let watches = LockWatches::new(
        Keys::new("r", &namespace),
        Arc::new(link),
        Arc::default(),
        closed.clone(),
    );
    let name = LockName::new("a").unwrap();
    let others = Arc::clone(&watches);
    let removed = name.clone();
    let removing = tokio::task::spawn_blocking(move || {
        while !others.closed.is_cancelled() {
            if let Some(watch) = others.watch_of(&removed) {
                others.remove_if_unused(&removed, &watch);
            }
        }
    });
    let waiter = NewClaim::numbered(1);
    for round in 0..50_000 {
        watches.register(&name, waiter.id, OwnWaiter::new(waiter.call, 1), None);
        let joined = watches
            .watch_of(&name)
            .is_some_and(|watch| !lock(&watch).own_waiters.is_empty());
        if !joined {
            closed.cancel();
        }
        assert!(joined, "round {round}");
        watches.part(&name, &waiter.id, waiter.call);
    }
    closed.cancel();
    removing.await.unwrap();
}
