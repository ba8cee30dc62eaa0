//! A server without a quorum that serves reads alone.

use std::time::Duration;

use fencepost::backend::Health;
use fencepost::error::Error;

use crate::clients::{acquire, health, take, token};
use crate::harness::{READY, name, nothing_is_left, replica, serves};
use crate::servers::{Ensemble, Options, eventually, found, program};

const TTL: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_read_only_is_not_used() {
    let Some(program) = found(program()) else { return };
    let options = Options {
        flags: vec!["-Dreadonlymode.enabled=true".to_owned()],
        ..Options::default()
    };
    let mut ensemble = Ensemble::start_of(program, 3, &options);
    let locks = replica(&ensemble).await;
    let held = take(&locks, "a", TTL).await;
    for server in &mut ensemble.servers[1..] {
        server.kill9();
    }
    eventually("the last server is read-only", || {
        ensemble.servers[0].ask("isro").as_deref().map(str::trim) == Some("ro")
    });
    health(&locks, READY, |health| *health != Health::Serving).await;
    // Its data shows who holds, and may be old.
    let shown = locks.inspect(&name("a"), 1).await;
    assert!(matches!(shown, Err(Error::Backend(_))), "{shown:?}");
    let refused = acquire(&locks, "b", TTL, Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::Backend(_))), "{refused:?}");
    ensemble.start_all();
    ensemble.wait_ready();
    serves(&locks).await;
    locks.renew(&held.key, None).await.expect("it is held");
    locks.release(&held.key).await.expect("it is held");
    let next = take(&locks, "a", TTL).await;
    assert!(token(&next) > token(&held));
    locks.release(&next.key).await.expect("it is held");
    nothing_is_left(&ensemble).await;
}
