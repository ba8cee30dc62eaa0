//! Cleans up: reads all nodes of the namespace slowly, for the leases and ends of dead replicas and for unused locks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Replica, changed};
use crate::backend::FINISHED_KEPT;
use crate::backend::tree::data::paths::{BUCKETS, decode_name};
use crate::backend::tree::data::record::Memory;
use crate::backend::tree::data::view::View;
use crate::backend::tree::fenced_connection::FencedConnection;
use crate::backend::tree::store::{ANY, Failure, Op, Stat};
use crate::name::LockName;

/// The pause between two buckets: all are looked through in 51 s.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a record is left to the replica that wrote it, which deletes it in time unless it is dead. Nobody else reads
/// it before.
const LEFT: Duration = Duration::from_secs(FINISHED_KEPT.as_secs() * 5 / 4);

/// When a node was first seen as it still was when it was looked at last.
#[derive(Debug, Clone, Copy)]
struct SeenNode {
    /// The transaction that was the last to change it; None: it was not read. A version would not do: a node that was
    /// made anew may have the same.
    modified: Option<i64>,
    since: Instant,
}

/// The nodes of each directory, by name.
type FirstSeen = HashMap<String, HashMap<String, SeenNode>>;

impl SeenNode {
    fn now(modified: Option<i64>) -> Self {
        let since = Instant::now();
        Self { modified, since }
    }

    /// Whether it is time to read a record, again if it was read before.
    fn is_due(&self) -> bool {
        self.since.elapsed() >= self.modified.map_or(LEFT, |_| 2 * FINISHED_KEPT)
    }

    /// Whether nobody has written a record since it was read.
    fn is_unchanged(&self, now: &Stat) -> bool {
        self.modified == Some(now.modified)
    }
}

impl Replica {
    /// See the module.
    pub async fn clean_up(self: Arc<Self>) {
        let mut seen = FirstSeen::new();
        loop {
            for bucket in 0..BUCKETS {
                sleep(PAUSE).await;
                if let Err(failure) = self.clean_up_bucket(bucket, &mut seen).await {
                    tracing::debug!(%failure, "a bucket could not be swept");
                }
            }
        }
    }

    async fn clean_up_bucket(&self, bucket: u16, seen: &mut FirstSeen) -> Result<(), Failure> {
        let connection = self.connections.ready().await?;
        let locks = self
            .tree
            .children(connection.generation, &self.paths.locks(bucket))
            .await?;
        let names = locks.map(|(names, _)| names).unwrap_or_default();
        let seen_locks = keep_listed(seen, &self.paths.locks(bucket), &names);
        for (name, lock) in names.iter().filter_map(|name| Some((name, decode_name(name)?))) {
            self.clean_up_lock(&connection, (name, &lock), seen_locks).await?;
        }
        self.clean_up_history(&connection, bucket, seen).await
    }

    /// Watches over the leases of a lock, and deletes the node of one that stays without claims.
    async fn clean_up_lock(
        &self,
        connection: &FencedConnection,
        (name, lock): (&str, &LockName),
        seen: &mut HashMap<String, SeenNode>,
    ) -> Result<(), Failure> {
        let path = self.paths.lock(lock);
        let Some((names, stat)) = self.tree.children(connection.generation, &path).await? else {
            return Ok(());
        };
        let view = View::of(&names);
        for holder in view.holders() {
            // A holder that cannot be read, such as one of a later release, is left to other replicas.
            self.shown_holder(connection, lock, holder).await?;
        }
        if !names.is_empty() {
            seen.remove(name);
            return Ok(());
        }
        let first = seen
            .entry(name.to_owned())
            .or_insert_with(|| SeenNode::now(Some(stat.modified)));
        if first.since.elapsed() > PAUSE * u32::from(BUCKETS) / 2 {
            seen.remove(name);
            // The deletion fails if it has a claim by now. Its version says nothing, because its data never changes.
            changed(self.step(lock, vec![Op::delete(path, ANY)], None).await)?;
        }
        Ok(())
    }

    /// Deletes the ends that are older than they are remembered, and requests whose claim is gone.
    async fn clean_up_history(
        &self,
        connection: &FencedConnection,
        bucket: u16,
        seen: &mut FirstSeen,
    ) -> Result<(), Failure> {
        let directory = self.paths.memory(bucket);
        let children = self.tree.children(connection.generation, &directory).await?;
        let names = children.map(|(names, _)| names).unwrap_or_default();
        let seen = keep_listed(seen, &directory, &names);
        for name in names {
            let known = match seen.get(&name) {
                Some(known) => *known,
                None => *seen.entry(name.clone()).or_insert_with(|| SeenNode::now(None)),
            };
            if !known.is_due() {
                continue;
            }
            let path = format!("{directory}/{name}");
            let Some((data, stat)) = self.tree.get(connection.generation, &path).await? else {
                continue;
            };
            if known.is_unchanged(&stat) && self.is_over(connection, &data).await? {
                let read = vec![(path.clone(), stat.version)];
                self.history.delete_as_read(connection.generation, read).await?;
            }
            seen.insert(name, SeenNode::now(Some(stat.modified)));
        }
        Ok(())
    }

    /// Whether a record is of an ended hold, or of a request whose claim is gone.
    async fn is_over(&self, connection: &FencedConnection, data: &[u8]) -> Result<bool, Failure> {
        let (claim, lock) = match Memory::decode(data) {
            Ok(Memory::Ended(_) | Memory::Forgotten) => return Ok(true),
            Ok(Memory::Live { claim, lock, .. }) => (claim, LockName::new(&lock)),
            // It is of a later release.
            Err(_) => return Ok(false),
        };
        let Ok(lock) = lock else { return Ok(false) };
        let view = self.list_now(connection, &lock).await?;
        Ok(view.of_claim(&claim).is_none())
    }
}

/// The nodes of a directory, without those that are not there any more.
fn keep_listed<'a>(seen: &'a mut FirstSeen, directory: &str, names: &[String]) -> &'a mut HashMap<String, SeenNode> {
    let names: HashSet<_> = names.iter().map(String::as_str).collect();
    let seen = seen.entry(directory.to_owned()).or_default();
    seen.retain(|name, _| names.contains(name.as_str()));
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_others_have_deleted_are_forgotten() {
        let mut seen = FirstSeen::new();
        for (directory, names) in [("/l/00", ["a", "b"]), ("/l/01", ["a", "d"])] {
            let names = names.map(|name| (name.to_owned(), SeenNode::now(None)));
            seen.insert(directory.to_owned(), names.into());
        }
        let left = keep_listed(&mut seen, "/l/00", &["b".to_owned(), "c".to_owned()]);
        assert_eq!(left.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(seen["/l/01"].len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_is_left_to_its_replica_and_then_judged_after_it_was_seen_unchanged() {
        let second = Duration::from_secs(1);
        let (new, read) = (SeenNode::now(None), SeenNode::now(Some(7)));
        tokio::time::advance(FINISHED_KEPT + 14 * second).await;
        assert!(!new.is_due(), "its replica is about to delete it");
        tokio::time::advance(second).await;
        assert!(new.is_due() && !read.is_due());
        tokio::time::advance(FINISHED_KEPT - 15 * second).await;
        assert!(read.is_due());
    }

    #[tokio::test]
    async fn a_record_that_was_made_anew_is_not_the_one_that_was_read() {
        let (read, again) = (Stat::of_new(7, 0), Stat::of_new(8, 0));
        assert_eq!(read.version, again.version);
        let seen = SeenNode::now(Some(read.modified));
        assert!(seen.is_unchanged(&read) && !seen.is_unchanged(&again));
        assert!(!SeenNode::now(None).is_unchanged(&read), "it was not read before");
    }
}
