//! Adds the commands that call the store, in the order of their locks.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::start::LockCommand;
use super::{Session, Wait};
use crate::api::proto::{ProclaimRequest, UpdateMetadataRequest};
use crate::locks::WaitControl;
use crate::name::LeaseKey;
use crate::session::{LockNumber, Order, Started};

/// When a wait of this length ends; absent if it is none.
pub(super) fn end_of(wait: prost_types::Duration, arrived: Instant) -> Option<Instant> {
    let wait = Duration::try_from(wait).ok().filter(|wait| !wait.is_zero());
    wait.and_then(|wait| arrived.checked_add(wait))
}

impl Session {
    /// Adds a command that calls.
    pub(super) fn add(&mut self, id: u64, command: LockCommand) {
        let order = match &command {
            LockCommand::AcquireAll(..) | LockCommand::ReleaseAll(_) => return self.add_several(id, command),
            LockCommand::Acquire(acquire) => {
                if let Some(wait) = acquire.request.wait() {
                    self.add_wait(id, wait);
                }
                let number = self.number(acquire.request.names());
                match self.waits.get(&id).is_some_and(|wait| wait.end.is_some()) {
                    true => Order::Acquire(number),
                    false => Order::Try(number),
                }
            }
            LockCommand::Renew(key, _) => Order::After(self.number_of_lease(key.as_ref().ok())),
            LockCommand::Release(key, _) => {
                if let Ok(key) = key {
                    self.keeper.detach(&key.secret);
                }
                Order::Release(self.number_of_lease(key.as_ref().ok()))
            }
            LockCommand::UpdateMetadata(UpdateMetadataRequest { lease_id, .. })
            | LockCommand::Proclaim(ProclaimRequest { lease_id, .. }) => {
                Order::After(self.number_of_lease(LeaseKey::parse(lease_id).ok().as_ref()))
            }
            LockCommand::GetLock(get) => Order::After(self.number((get.namespace.as_str(), get.name.as_str()))),
            LockCommand::CancelRequest(_, request) => {
                Order::After(self.number((request.namespace.as_str(), request.name.as_str())))
            }
            LockCommand::CheckToken(check) => {
                Order::After(self.number((check.namespace.as_str(), check.name.as_str())))
            }
        };
        let started = self.commands.add(id, order, command);
        self.added(id, started);
    }

    /// Adds a command on several locks.
    fn add_several(&mut self, id: u64, command: LockCommand) {
        let numbers = match &command {
            LockCommand::AcquireAll(request, _) => {
                if let Some(wait) = request.wait {
                    self.add_wait(id, wait);
                }
                let names = request
                    .locks
                    .iter()
                    .map(|lock| (request.namespace.as_str(), lock.name.as_str()));
                names.map(|names| self.number(names)).collect()
            }
            LockCommand::ReleaseAll(lease_ids) => {
                let keys: Vec<_> = lease_ids.iter().filter_map(|id| LeaseKey::parse(id).ok()).collect();
                keys.iter().for_each(|key| self.keeper.detach(&key.secret));
                keys.iter().map(|key| self.number_of_lease(Some(key))).collect()
            }
            _ => BTreeSet::new(),
        };
        let may_wait = self.waits.get(&id).is_some_and(|wait| wait.end.is_some());
        let started = self.commands.add_several(id, numbers, may_wait, command);
        self.added(id, started);
    }

    fn added(&mut self, id: u64, started: Option<Started<LockCommand>>) {
        if started.is_none() {
            let end = self.waits.get(&id).and_then(|wait| wait.end);
            self.delayed_until.extend(end.map(|end| (end, id)));
        }
        self.start_all(started);
    }

    /// Adds the wait of an Acquire, which begins now and is of this length.
    fn add_wait(&mut self, id: u64, wait: prost_types::Duration) {
        let arrived = Instant::now();
        let control = WaitControl {
            number: id,
            arrived,
            progress: self.progress.0.clone(),
            cancelled: CancellationToken::new(),
        };
        let end = end_of(wait, arrived);
        self.waiting += usize::from(end.is_some());
        self.waits.insert(id, Wait { control, end });
    }

    fn number(&self, lock: (&str, &str)) -> LockNumber {
        self.hasher.hash_one(lock)
    }

    /// The number of a lease's lock. Ids that are none have a number too: their commands fail.
    fn number_of_lease(&self, key: Option<&LeaseKey>) -> LockNumber {
        self.number(key.map_or(("", ""), |key| (key.lock.namespace.as_str(), key.lock.name.as_str())))
    }
}
