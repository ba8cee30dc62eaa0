//! The names of the locks in use, as the nodes keep them: read by who lists, and forgotten in time.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use super::answer::Values;
use super::nodes::{Question, Reply};
use super::{Core, scripts};
use crate::backend::BackendError;
use crate::name::LockName;

/// How often a replica lets the nodes look for names that nobody uses any more, how many at once, and how
/// many times in a row where many of them are such.
const TIDY: Duration = Duration::from_secs(15);
const PAGE: usize = 250;
const PAGES: usize = 200;

/// Names that may be in use, in order.
#[derive(Debug, Default)]
pub struct Names {
    /// These.
    pub names: BTreeSet<LockName>,
    /// Up to which name that is all of them, where there are more.
    pub seen_to: Option<String>,
    /// How many a node has forgotten on the way.
    forgotten: usize,
}

impl Core {
    /// Looks at so many names after this one.
    ///
    /// # Errors
    /// Too few nodes answered.
    pub async fn names(&self, prefix: &str, after: Option<&str>, count: usize) -> Result<Names, BackendError> {
        let from = after
            .filter(|after| *after >= prefix)
            .map_or_else(|| format!("[{prefix}"), |after| format!("({after}"));
        // No UTF-8 text holds the byte 0xff.
        let to = [b"(", prefix.as_bytes(), &[0xff]].concat();
        let voters = &self.shared.voters;
        let question = Question {
            script: &scripts::NAMES,
            base: Arc::clone(&self.base),
            lock: "".into(),
            args: Arc::new(vec![from.into_bytes(), to, count.to_string().into_bytes()]),
            all: false,
            bound: None,
        };
        let (mut answers, mut answered) = (voters.ask(&question), 0);
        let mut all = Names::default();
        while let Some((_, said)) = answers.next().await {
            let Reply::Word(_, rest) = said else { continue };
            answered += 1;
            let mut one = self.read(rest)?;
            all.names.append(&mut one.names);
            all.forgotten = all.forgotten.max(one.forgotten);
            all.seen_to = match (all.seen_to, one.seen_to) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
            if answered >= voters.majority() {
                answers.shorten_deadline(answers.sent.elapsed());
            }
        }
        if answered < voters.majority() {
            return Err(voters.trouble(true));
        }
        all.names.extend(
            self.waiting
                .names(prefix)
                .into_iter()
                .filter(|name| after.is_none_or(|after| name.as_str() > after)),
        );
        if let Some(seen_to) = &all.seen_to {
            all.names.retain(|name| name.as_str() <= seen_to.as_str());
        }
        Ok(all)
    }

    fn read(&self, rest: Vec<Value>) -> Result<Names, BackendError> {
        let count = rest.len();
        let mut values = Values::of(rest);
        let seen_to: String = values.take()?;
        let mut found = Names {
            seen_to: (!seen_to.is_empty()).then_some(seen_to),
            forgotten: values.take()?,
            ..Names::default()
        };
        for _ in 2..count {
            let name = values.take::<String>()?;
            match LockName::new(&name) {
                Ok(name) => drop(found.names.insert(name)),
                Err(error) => self.unreadable.note(&name, &error),
            }
        }
        Ok(found)
    }
}

/// Lets the nodes forget the names that nobody uses any more, until the namespace is closed. Who lists does so
/// too, but nobody may.
pub async fn forget(core: Weak<Core>) {
    let mut after = None::<String>;
    loop {
        // The core is not kept alive by one who sleeps.
        sleep(TIDY).await;
        let Some(core) = core.upgrade() else { return };
        for _ in 0..PAGES {
            // Nodes that are away keep their names until they are back.
            let Ok(page) = core.names("", after.as_deref(), PAGE).await else {
                break;
            };
            after = page.seen_to;
            if after.is_none() || page.forgotten < PAGE / 4 {
                break;
            }
        }
    }
}
