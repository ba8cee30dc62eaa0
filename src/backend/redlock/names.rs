//! The names of the locks in use, as the nodes store them: read for lists, and dropped when unused.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::from_redis_value;
use tokio::time::sleep;

use super::nodes::{Reply, Request};
use super::{Core, scripts};
use crate::backend::BackendError;
use crate::backend::redis_server::failure::broken;
use crate::backend::redis_server::reply::{Values, lock_name, name_range};
use crate::name::LockName;

/// How often a replica makes the nodes drop unused names, how many names per page, and how many
/// pages in a row while many of them are unused.
const FORGET_INTERVAL: Duration = Duration::from_secs(15);
const PAGE: usize = 250;
const PAGES: usize = 200;

/// Names that may be in use, sorted.
#[derive(Debug, Default)]
pub struct Names {
    /// The names.
    pub names: BTreeSet<LockName>,
    /// The name up to which `names` is complete, if there are more.
    pub complete_to: Option<Vec<u8>>,
    /// How many unused names a node has dropped meanwhile.
    forgotten: usize,
}

impl Core {
    /// Reads up to `count` names after `after`.
    ///
    /// # Errors
    /// Too few nodes replied.
    pub async fn names(&self, prefix: &str, after: Option<&[u8]>, count: usize) -> Result<Names, BackendError> {
        let (from, to) = name_range(prefix, after);
        let nodes = &self.shared.nodes;
        let request = Request {
            script: &scripts::NAMES,
            base: Arc::clone(&self.base),
            lock: "".into(),
            args: Arc::new(vec![from, to, count.to_string().into_bytes()]),
            all: false,
            bound: None,
        };
        let (mut answers, mut answered) = (nodes.query(&request), 0);
        let mut all = Names::default();
        while let Some((_, reply)) = answers.next().await {
            let Reply::Status(_, values) = reply else { continue };
            answered += 1;
            let mut one = self.read(values)?;
            all.names.append(&mut one.names);
            all.forgotten = all.forgotten.max(one.forgotten);
            all.complete_to = match (all.complete_to, one.complete_to) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
            if answered >= nodes.majority() {
                answers.shorten_deadline(answers.sent.elapsed());
            }
        }
        if answered < nodes.majority() {
            return Err(nodes.no_majority(true));
        }
        all.names.extend(
            self.waiting
                .names(prefix)
                .into_iter()
                .filter(|name| after.is_none_or(|after| name.as_str().as_bytes() > after)),
        );
        if let Some(complete_to) = &all.complete_to {
            all.names
                .retain(|name| name.as_str().as_bytes() <= complete_to.as_slice());
        }
        Ok(all)
    }

    fn read(&self, mut values: Values) -> Result<Names, BackendError> {
        let complete_to: Vec<u8> = values.take()?;
        let mut found = Names {
            complete_to: (!complete_to.is_empty()).then_some(complete_to),
            forgotten: values.take()?,
            ..Names::default()
        };
        for name in values.rest() {
            let name: Vec<u8> = from_redis_value(name).map_err(broken)?;
            match lock_name(&name) {
                Ok(name) => drop(found.names.insert(name)),
                Err((text, problem)) => self.unreadable.note(&text, &problem),
            }
        }
        Ok(found)
    }
}

/// Makes the nodes drop unused names, until the namespace is closed. Lists do so too, but there may
/// be none.
pub async fn forget(core: Weak<Core>) {
    let mut after = None::<Vec<u8>>;
    loop {
        // The sleeping task does not keep the core alive.
        sleep(FORGET_INTERVAL).await;
        let Some(core) = core.upgrade() else { return };
        for _ in 0..PAGES {
            // Unavailable nodes keep their names until they are available again.
            let Ok(page) = core.names("", after.as_deref(), PAGE).await else {
                break;
            };
            after = page.complete_to;
            if after.is_none() || page.forgotten < PAGE / 4 {
                break;
            }
        }
    }
}
