//! Closes removed namespaces after their last calls, each in a task of its own, so that a call that does not end delays
//! no other change. A change that conflicts with a namespace that is still closing waits for it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::config::Config;
use crate::name::Namespace;
use crate::namespaces::Served;

/// How long the last calls of a removed namespace may take.
const LAST_CALLS: Duration = Duration::from_secs(10);
/// The time limit for closing a namespace: its last calls, undos, and the close of its store.
const CLOSE_TIME: Duration = Duration::from_secs(30);
/// How long the end of the server waits for namespaces that are still closing.
const SHUTDOWN_TIME: Duration = Duration::from_secs(5);

/// The namespaces that are still closing. Dropping this aborts their tasks.
#[derive(Debug, Default)]
pub(super) struct Retiring {
    all: Vec<Retired>,
}

#[derive(Debug)]
struct Retired {
    namespace: Namespace,
    /// The file that its store may still have open.
    file: Option<PathBuf>,
    task: AbortOnDropHandle<()>,
}

impl Retiring {
    /// Begins to close a namespace of this configuration.
    pub(super) fn begin(&mut self, served: Served, config: &Config) {
        let namespace = served.namespace().clone();
        let file = config
            .namespaces
            .get(&namespace)
            .and_then(|namespace_config| namespace_config.store.file());
        let file = file.map(Path::to_owned);
        self.follow(namespace, file, served.retire(LAST_CALLS));
    }

    /// Runs `close` for at most [`CLOSE_TIME`].
    fn follow(
        &mut self,
        namespace: Namespace,
        file: Option<PathBuf>,
        close: impl Future<Output = ()> + Send + 'static,
    ) {
        let name = namespace.clone();
        let task = tokio::spawn(async move {
            if timeout(CLOSE_TIME, close).await.is_err() {
                tracing::warn!(namespace = %name, "a removed namespace was not closed in time");
            }
        });
        self.all.push(Retired {
            namespace,
            file,
            task: AbortOnDropHandle::new(task),
        });
    }

    /// Whether a namespace is still closing.
    pub(super) fn has(&mut self, namespace: &Namespace) -> bool {
        self.closing().any(|retired| retired.namespace == *namespace)
    }

    /// The closing namespace that the change from `current` to `next` must wait for: one that is added again, or whose
    /// file `next` opens anew. A file that another namespace of `current` uses stays open and causes no wait.
    pub(super) fn blocked_by(&mut self, current: &Config, next: &Config) -> Option<Namespace> {
        let uses = |config: &Config, file: &Path| {
            let mut all = config.namespaces.values();
            all.any(|namespace_config| namespace_config.store.file() == Some(file))
        };
        let is_blocking = |retired: &&Retired| {
            let opens = |file: &PathBuf| uses(next, file) && !uses(current, file);
            next.namespaces.contains_key(&retired.namespace) || retired.file.as_ref().is_some_and(opens)
        };
        let found = self.closing().find(is_blocking);
        found.map(|retired| retired.namespace.clone())
    }

    fn closing(&mut self) -> impl Iterator<Item = &Retired> {
        self.all.retain(|retired| !retired.task.is_finished());
        self.all.iter()
    }

    /// Waits for all, for at most 5 s.
    pub(super) async fn end(self) {
        let tasks = self.all.into_iter().map(|retired| retired.task);
        if timeout(SHUTDOWN_TIME, join_all(tasks)).await.is_err() {
            tracing::warn!("removed namespaces were not closed before the end of the server");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_namespace_whose_store_does_not_close_is_given_up_after_thirty_seconds() {
        let name = Namespace::new("a").unwrap();
        let mut retiring = Retiring::default();
        retiring.follow(name.clone(), None, std::future::pending());
        tokio::time::sleep(CLOSE_TIME - Duration::from_secs(1)).await;
        assert!(retiring.has(&name));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!retiring.has(&name));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_server_waits_for_five_seconds() {
        let mut retiring = Retiring::default();
        retiring.follow(Namespace::new("a").unwrap(), None, std::future::pending());
        let began = tokio::time::Instant::now();
        timeout(CLOSE_TIME, retiring.end()).await.expect("in time");
        assert_eq!(began.elapsed(), SHUTDOWN_TIME);
    }
}
