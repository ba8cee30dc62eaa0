//! The receivers of the ends of leases.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::{LeaseEnded, LeaseIds};
use crate::claim::Cause;
use crate::name::{FencingToken, Secret};

/// The watches of a ledger. Each is told once.
#[derive(Debug, Default)]
pub struct Watches {
    by_lease: BTreeMap<(Secret, u64), Watch>,
    by_token: BTreeSet<(FencingToken, Secret, u64)>,
    last_number: u64,
    /// The leases with a watch that is only looked at.
    undelivered: HashMap<Secret, Undelivered>,
}

#[derive(Debug)]
struct Watch {
    ids: LeaseIds,
    /// Absent for a watch that is only looked at.
    to: Option<UnboundedSender<LeaseEnded>>,
}

/// A lease that was not delivered yet.
#[derive(Debug, Default)]
struct Undelivered {
    watches: usize,
    /// When it ends, if it was renewed meanwhile.
    renewed_until: Option<Instant>,
}

impl Watches {
    /// Adds a watch of a lease, which is told if there is somebody to tell. Returns its number.
    pub fn add(&mut self, secret: Secret, ids: LeaseIds, to: Option<UnboundedSender<LeaseEnded>>) -> u64 {
        self.last_number += 1;
        if to.is_none() {
            self.undelivered.entry(secret).or_default().watches += 1;
        }
        self.by_lease.insert((secret, self.last_number), Watch { ids, to });
        self.by_token.insert((ids.token, secret, self.last_number));
        self.last_number
    }

    /// Removes a watch.
    pub fn remove(&mut self, secret: Secret, number: u64) {
        self.take(secret, number);
    }

    /// When an undelivered lease ends whose grant was until then; absent if its end was seen since this watch began.
    pub fn end(&self, secret: Secret, number: u64, granted_until: Instant) -> Option<Instant> {
        let is_held = self.by_lease.contains_key(&(secret, number));
        let renewed_until = self.undelivered.get(&secret).and_then(|lease| lease.renewed_until);
        is_held.then(|| renewed_until.unwrap_or(granted_until))
    }

    /// Notes that a lease was renewed.
    pub fn renewed(&mut self, secret: Secret, end: Instant) {
        if let Some(lease) = self.undelivered.get_mut(&secret) {
            lease.renewed_until = Some(end);
        }
    }

    /// Whether there is no watch.
    pub fn is_empty(&self) -> bool {
        self.by_lease.is_empty()
    }

    /// Tells who watches a lease with these ids, or any, that it has ended.
    pub fn ended(&mut self, secret: Secret, ids: Option<LeaseIds>, cause: Option<Cause>) {
        let of_lease = self.by_lease.range((secret, 0)..=(secret, u64::MAX));
        let told: Vec<u64> = of_lease
            .filter(|(_, watch)| ids.is_none_or(|ids| watch.ids == ids))
            .map(|((_, number), _)| *number)
            .collect();
        for number in told {
            self.tell(secret, number, cause);
        }
    }

    /// Tells who watches a lease of the claim with this token that it was forced. Another lock may have the same token.
    pub fn forced(&mut self, lock: u64, token: FencingToken) {
        let [first, last] = [0, u8::MAX].map(|byte| Secret::from_bytes([byte; 16]));
        let of_token = self.by_token.range((token, first, 0)..=(token, last, u64::MAX));
        let told: Vec<(Secret, u64)> = of_token.map(|(_, secret, number)| (*secret, *number)).collect();
        for (secret, number) in told {
            let watch = self.by_lease.get(&(secret, number));
            if watch.is_some_and(|watch| watch.ids.lock == lock) {
                self.tell(secret, number, Some(Cause::Forced));
            }
        }
    }

    fn tell(&mut self, secret: Secret, number: u64, cause: Option<Cause>) {
        if let Some(to) = self.take(secret, number).and_then(|watch| watch.to) {
            // It fails only where nobody is interested any more.
            let _ = to.send(LeaseEnded { secret, cause });
        }
    }

    fn take(&mut self, secret: Secret, number: u64) -> Option<Watch> {
        let watch = self.by_lease.remove(&(secret, number))?;
        self.by_token.remove(&(watch.ids.token, secret, number));
        if watch.to.is_none()
            && let Some(lease) = self.undelivered.get_mut(&secret)
        {
            lease.watches -= 1;
            if lease.watches == 0 {
                self.undelivered.remove(&secret);
            }
        }
        Some(watch)
    }
}
