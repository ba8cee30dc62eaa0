//! One look at the locks in use.

use std::time::SystemTime;

use fencepost::api::proto::{NamespaceHealth, NamespaceInfo};
use fencepost_client::{Client, Error};

use super::super::listing::Names;
use super::super::output::with_causes;
use super::figures::{LockFigures, Longest, NamespaceFigures};

/// How many pages of a namespace are read: 100,000 locks, unless the server is configured to send smaller ones.
const PAGES_AT_MOST: usize = 100;

/// What one look has found.
#[derive(Debug, Default)]
pub struct Sample {
    /// Those with the most waiters first, then those with the most holders.
    pub namespaces: Vec<NamespaceFigures>,
    /// The locks with waiters, those with the longest queues first.
    pub queues: Vec<LockFigures>,
    /// The locks with holders, those whose first holder has held for longest first.
    pub holds: Vec<LockFigures>,
}

impl Sample {
    /// Reads the locks of the namespaces whose names have the text `filter`, and keeps `rows` of each kind.
    ///
    /// # Errors
    /// [`Error`]: no server answers, or the namespaces cannot be listed. A namespace whose locks cannot be listed is no
    /// error: its figures say why.
    pub async fn take(client: &Client, names: Option<&Names>, filter: &str, rows: usize) -> Result<Self, Error> {
        let mut queues = Longest::new(rows, |lock: &LockFigures| u64::from(lock.waiters));
        let mut holds = Longest::new(rows, |lock: &LockFigures| lock.held_for.unwrap_or_default());
        let mut namespaces = Vec::new();
        for info in infos(client, names).await? {
            let prefix = names.map_or("", |names| &names.prefix);
            let mut figures = NamespaceFigures::of(info);
            let done = read(client, &mut figures, prefix, filter, |lock| {
                if lock.waiters > 0 {
                    queues.add(lock.clone());
                }
                if lock.held_for.is_some() {
                    holds.add(lock);
                }
            });
            match done.await {
                Err(error @ Error::Unreachable { .. }) => return Err(error),
                Err(error) => figures.problem = Some(with_causes(&error)),
                Ok(()) => {}
            }
            namespaces.push(figures);
        }
        namespaces.sort_by_key(|figures| std::cmp::Reverse((figures.waiters, figures.holders)));
        Ok(Self {
            namespaces,
            queues: queues.sorted(),
            holds: holds.sorted(),
        })
    }
}

/// The namespaces to look at. One that is named and that is not there is the server's error.
async fn infos(client: &Client, names: Option<&Names>) -> Result<Vec<NamespaceInfo>, Error> {
    let mut infos = client.namespaces().await?;
    if let Some(names) = names {
        infos.retain(|info| info.name == names.namespace);
        if infos.is_empty() {
            client.list(&names.namespace, &names.prefix, "").await?;
        }
    }
    Ok(infos)
}

/// Reads the locks of a namespace, unless its store does not serve.
async fn read(
    client: &Client,
    figures: &mut NamespaceFigures,
    prefix: &str,
    filter: &str,
    mut found: impl FnMut(LockFigures),
) -> Result<(), Error> {
    if figures.info.health() == NamespaceHealth::Unavailable {
        return Ok(());
    }
    let mut token = String::new();
    for _ in 0..PAGES_AT_MOST {
        let page = client.list_in_large_pages(&figures.info.name, prefix, &token).await?;
        let now = SystemTime::now();
        for lock in page.locks.into_iter().filter(|lock| lock.name.contains(filter)) {
            let lock = LockFigures::of(&figures.info.name, lock, now);
            figures.add(&lock);
            found(lock);
        }
        token = page.next_page_token;
        if token.is_empty() {
            return Ok(());
        }
    }
    figures.is_partial = true;
    Ok(())
}
