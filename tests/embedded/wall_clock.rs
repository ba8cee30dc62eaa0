//! Tokens rise and last although the wall clock is wrong.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencepost::backend::embedded::Store;
use fencepost::backend::local_clock::{BootClock, Clock};
use futures::future::BoxFuture;

use crate::embedded::{ask, locks, take};

/// A boot clock with a wall clock that is wrong.
#[derive(Debug)]
pub struct WrongWall {
    pub wall: SystemTime,
}

impl Clock for WrongWall {
    fn now(&self) -> Duration {
        BootClock.now()
    }

    fn wall(&self) -> SystemTime {
        self.wall
    }

    fn sleep_until(&self, due: Duration) -> BoxFuture<'static, ()> {
        BootClock.sleep_until(due)
    }
}

// G77b, G81
#[tokio::test]
async fn tokens_rise_also_when_the_wall_clock_was_set_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let mut last = 0;
    for years in [30, 10, 0] {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(years * 31_557_600);
        let store = Store::open_with_clock(&file, Arc::new(WrongWall { wall })).expect("the store opens");
        let locks = locks(&store);
        drop(store);
        for _ in 0..3 {
            let lease = take(&locks, ask("a")).await;
            assert!(lease.key.token.get() > last, "{years}: {lease:?} after {last}");
            last = lease.key.token.get();
            locks.release(&lease.key).await.expect("it is released");
        }
        locks.close().await;
    }
}

// G6
#[tokio::test]
async fn a_wall_clock_in_the_year_2326_uses_up_no_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let mut last = 0;
    for years in [356, 56, 356, 0] {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(years * 31_557_600);
        let store = Store::open_with_clock(&file, Arc::new(WrongWall { wall })).expect("the store opens");
        let locks = locks(&store);
        drop(store);
        let lease = take(&locks, ask("a")).await;
        let token = lease.key.token.get();
        assert!(
            token > last && token < 2_000_000_000_000_000,
            "{years}: {lease:?} after {last}"
        );
        last = token;
        locks.release(&lease.key).await.expect("it is released");
        locks.close().await;
    }
}
