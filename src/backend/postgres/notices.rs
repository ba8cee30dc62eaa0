//! The warnings of a server in the log.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_postgres::error::DbError;

/// The shortest time between two lines about one kind of warning.
const INTERVAL: Duration = Duration::from_secs(60);
/// How many kinds are told apart.
const KINDS: usize = 32;

/// When the log told of each kind of warning last, and how many came since.
#[derive(Debug, Default)]
pub struct Notices {
    kinds: Mutex<HashMap<String, (Instant, u64)>>,
}

impl Notices {
    /// Logs a warning, at most once a minute for each kind: a database that runs out of numbers warns with each commit.
    pub fn warn(&self, notice: &DbError) {
        // The code alone is that of all warnings.
        let kind = format!("{} {}", notice.code().code(), notice.routine().unwrap_or_default());
        if let Some(unlogged) = self.due(kind) {
            tracing::warn!(%notice, unlogged, "PostgreSQL warns");
        }
    }

    /// How many of this kind came since the last line, if one is due.
    fn due(&self, kind: String) -> Option<u64> {
        let (mut kinds, now) = (self.kinds.lock(), Instant::now());
        let kind = match kinds.len() < KINDS || kinds.contains_key(&kind) {
            true => kind,
            false => String::new(),
        };
        match kinds.get_mut(&kind) {
            Some((logged, unlogged)) if now - *logged < INTERVAL => {
                *unlogged += 1;
                None
            }
            known => {
                let unlogged = known.map_or(0, |(_, unlogged)| *unlogged);
                kinds.insert(kind, (now, 0));
                Some(unlogged)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_kind_is_logged_once_a_minute_and_kinds_are_few() {
        let notices = Notices::default();
        let due = |kind: &str| notices.due(kind.to_owned());
        assert_eq!((due("one"), due("two")), (Some(0), Some(0)));
        assert_eq!((due("one"), due("one"), due("two")), (None, None, None));
        tokio::time::advance(INTERVAL).await;
        assert_eq!((due("one"), due("two"), due("one")), (Some(2), Some(1), None));
        let logged = (0..1_000).filter(|kind| due(&format!("kind {kind}")).is_some());
        assert_eq!(logged.count(), KINDS - 1, "the last one stands for all others");
    }
}
