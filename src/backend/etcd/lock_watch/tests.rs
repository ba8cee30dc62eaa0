//! Who is told, and who is forgotten.

use super::super::settings::Settings;
use super::*;
use crate::name::Namespace;

#[test]
fn a_waiter_that_waits_no_more_is_told_once_and_forgotten() {
    let waiter = NewClaim::numbered(1);
    let mut view = View::default();
    view.revision = 7;
    let mut scene = LockWatch {
        view: Some(view),
        ..LockWatch::default()
    };
    scene.mine.insert(waiter.id, OwnWaiter::new(waiter.call, 8));
    assert!(!scene.is_lost(&waiter.id), "the view does not know it yet");
    scene.mine.insert(waiter.id, OwnWaiter::new(waiter.call, 7));
    assert!(scene.is_lost(&waiter.id));
    assert!(!scene.is_lost(&waiter.id));
    assert!(scene.mine.is_empty(), "nobody would take it out any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nobody_joins_a_scene_that_is_taken_down() {
    let namespace = Namespace::new("n").unwrap();
    let link = ClusterClient::new(&Settings::new(vec!["http://127.0.0.1:1".into()]));
    let closed = CancellationToken::new();
    let scenes = LockWatches::new(
        Keys::new("r", &namespace),
        Arc::new(link),
        Arc::default(),
        closed.clone(),
    );
    let name = LockName::new("a").unwrap();
    let others = Arc::clone(&scenes);
    let leaving = name.clone();
    let taking_down = tokio::task::spawn_blocking(move || {
        while !others.closed.is_cancelled() {
            if let Some(scene) = others.scene(&leaving) {
                others.is_left(&leaving, &scene);
            }
        }
    });
    let waiter = NewClaim::numbered(1);
    for round in 0..50_000 {
        scenes.sit(&name, waiter.id, OwnWaiter::new(waiter.call, 1), None);
        let joined = scenes.scene(&name).is_some_and(|scene| !lock(&scene).mine.is_empty());
        if !joined {
            closed.cancel();
        }
        assert!(joined, "round {round}");
        scenes.part(&name, &waiter.id, waiter.call);
    }
    closed.cancel();
    taking_down.await.unwrap();
}
