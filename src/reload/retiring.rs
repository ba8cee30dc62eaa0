//! Namespaces that are gone and whose last calls still end, each in a task of its own: a call that does not
//! end holds no other change up. What cannot be beside one of them waits until it is over.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::config::Config;
use crate::name::Namespace;
use crate::namespaces::Served;

/// How long the calls of a namespace that is gone may take to end.
const LAST_CALLS: Duration = Duration::from_secs(10);
/// How long the whole may take, with undos and the goodbye to the store.
const WHOLE: Duration = Duration::from_secs(30);
/// How long it may take once the server ends.
const AT_THE_END: Duration = Duration::from_secs(5);

/// The namespaces that are not over yet. Dropped, they are left as they are.
#[derive(Debug, Default)]
pub(super) struct Retiring {
    all: Vec<Retired>,
}

#[derive(Debug)]
struct Retired {
    namespace: Namespace,
    /// What its store may still have open.
    file: Option<PathBuf>,
    task: AbortOnDropHandle<()>,
}

impl Retiring {
    /// Lets a namespace of this configuration end.
    pub(super) fn begin(&mut self, served: Served, config: &Config) {
        let namespace = served.namespace().clone();
        let file = config.namespaces.get(&namespace).and_then(|one| one.backend.file());
        let (name, file) = (namespace.clone(), file.map(Path::to_owned));
        let task = tokio::spawn(async move {
            if timeout(WHOLE, served.retire(LAST_CALLS)).await.is_err() {
                tracing::warn!(namespace = %name, "a namespace that is gone could not be closed in time");
            }
        });
        self.all.push(Retired {
            namespace,
            file,
            task: AbortOnDropHandle::new(task),
        });
    }

    /// Whether the last calls of a namespace have not ended.
    pub(super) fn has(&mut self, namespace: &Namespace) -> bool {
        self.under_way().any(|gone| gone.namespace == *namespace)
    }

    /// The namespace that must be over before the next configuration may follow the current one: one that
    /// comes back, or whose file is to be opened anew. A file that another namespace of the current one uses
    /// stays open.
    pub(super) fn in_the_way(&mut self, current: &Config, next: &Config) -> Option<Namespace> {
        let uses = |config: &Config, file: &Path| {
            let mut all = config.namespaces.values();
            all.any(|one| one.backend.file() == Some(file))
        };
        let is_in_the_way = |gone: &&Retired| {
            let opens = |file: &PathBuf| uses(next, file) && !uses(current, file);
            next.namespaces.contains_key(&gone.namespace) || gone.file.as_ref().is_some_and(opens)
        };
        let found = self.under_way().find(is_in_the_way);
        found.map(|gone| gone.namespace.clone())
    }

    fn under_way(&mut self) -> impl Iterator<Item = &Retired> {
        self.all.retain(|gone| !gone.task.is_finished());
        self.all.iter()
    }

    /// Waits for all, for a bounded time.
    pub(super) async fn end(self) {
        let tasks = self.all.into_iter().map(|gone| gone.task);
        if timeout(AT_THE_END, join_all(tasks)).await.is_err() {
            tracing::warn!("namespaces that are gone were not closed before the end of the server");
        }
    }
}
