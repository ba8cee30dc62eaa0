//! What etcd keeps of one lock, and what its transactions do.

use super::World;
use super::calls::Call;

/// An etcd lease of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lease {
    Unborn,
    /// It was just kept alive, so it outlives a TTL that begins now.
    Kept,
    /// It outlives a TTL that began while it was just kept alive, and none that begins now.
    Fresh,
    /// A whole TTL has passed since that time: it may end at any time.
    Stale,
    Dead,
}

impl Lease {
    /// Whether a client may still count on it.
    pub fn is_counted_on(self) -> bool {
        matches!(self, Self::Kept | Self::Fresh)
    }
}

/// The last segment of a claim's keys: `<session>-<number>`. The session is that of the replica whose call made the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeySuffix {
    pub replica: u8,
    pub session: u8,
    pub number: u8,
}

/// The key `h/<kind>/<suffix>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder {
    pub suffix: KeySuffix,
    pub claim: u8,
    pub call: u8,
    pub lease: u8,
    pub adopted: bool,
    pub created: u8,
    pub modified: u8,
}

/// The key `q/<suffix>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Waiter {
    pub suffix: KeySuffix,
    pub claim: u8,
    pub call: u8,
    /// The replica on whose session it lives.
    pub replica: u8,
    pub created: u8,
    pub modified: u8,
}

/// The key `request/<id>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Request {
    /// On the session of this replica.
    Waits { suffix: KeySuffix, replica: u8 },
    /// On a lease that outlives that of the holder. If the holder is gone, it expired.
    Holds { suffix: KeySuffix },
    /// On a bucket.
    Ended,
}

impl Request {
    pub fn suffix(self) -> Option<KeySuffix> {
        match self {
            Self::Waits { suffix, .. } | Self::Holds { suffix } => Some(suffix),
            Self::Ended => None,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Store {
    pub revision: u8,
    pub holders: Vec<Holder>,
    /// By their place.
    pub waiters: Vec<Waiter>,
    /// By claim.
    pub requests: Vec<Option<Request>>,
    /// The cancelled calls, and the replica on whose session the mark lives.
    pub marks: Vec<(u8, u8)>,
    pub leases: Vec<Lease>,
    /// By replica, the number of its session.
    pub sessions: Vec<u8>,
}

/// A transaction: the keys that it names, and what it was judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Grants a new claim.
    Enter {
        suffix: KeySuffix,
        lease: u8,
        seen: u8,
    },
    /// Appends a new claim to the queue.
    Queue {
        suffix: KeySuffix,
    },
    AdoptWaiter {
        suffix: KeySuffix,
        modified: u8,
    },
    AdoptHolder {
        suffix: KeySuffix,
        modified: u8,
    },
    Promote {
        suffix: KeySuffix,
        modified: u8,
        lease: u8,
        seen: u8,
    },
    /// The undo of a call whose claim waits, or holds.
    UndoWaiter {
        suffix: KeySuffix,
        modified: u8,
    },
    UndoHolder {
        suffix: KeySuffix,
        modified: u8,
    },
    Mark,
    Release {
        suffix: KeySuffix,
        modified: u8,
    },
    HandOver {
        suffix: KeySuffix,
        modified: u8,
        next: u8,
        next_suffix: KeySuffix,
        next_modified: u8,
        lease: u8,
    },
    /// Ends a lease; only a flaw sends it.
    Revoke {
        lease: u8,
    },
}

impl Step {
    pub fn lease(self) -> Option<u8> {
        match self {
            Self::Enter { lease, .. } | Self::Promote { lease, .. } | Self::HandOver { lease, .. } => Some(lease),
            _ => None,
        }
    }

    /// Whether a cancel mark keeps it from taking effect.
    pub fn comes(self) -> bool {
        matches!(
            self,
            Self::Enter { .. }
                | Self::Queue { .. }
                | Self::AdoptWaiter { .. }
                | Self::AdoptHolder { .. }
                | Self::Promote { .. }
        )
    }

    pub fn makes(self) -> Option<KeySuffix> {
        match self {
            Self::Enter { suffix, .. } | Self::Queue { suffix } => Some(suffix),
            _ => None,
        }
    }

    pub fn suffix(self) -> Option<KeySuffix> {
        match self {
            Self::Enter { suffix, .. }
            | Self::Queue { suffix }
            | Self::AdoptWaiter { suffix, .. }
            | Self::AdoptHolder { suffix, .. }
            | Self::Promote { suffix, .. }
            | Self::UndoWaiter { suffix, .. }
            | Self::UndoHolder { suffix, .. }
            | Self::Release { suffix, .. }
            | Self::HandOver { suffix, .. } => Some(suffix),
            Self::Mark | Self::Revoke { .. } => None,
        }
    }

    /// The revision of the key that it was judged by.
    pub fn judged_by(mut self) -> Option<u8> {
        match self {
            Self::Enter { .. } => None,
            _ => self.revisions().first().map(|revision| **revision),
        }
    }

    fn revisions(&mut self) -> Vec<&mut u8> {
        match self {
            Self::AdoptWaiter { modified, .. }
            | Self::AdoptHolder { modified, .. }
            | Self::UndoWaiter { modified, .. }
            | Self::UndoHolder { modified, .. }
            | Self::Release { modified, .. } => vec![modified],
            Self::Promote { modified, seen, .. } => vec![modified, seen],
            Self::HandOver {
                modified,
                next_modified,
                ..
            } => vec![modified, next_modified],
            Self::Enter { seen, .. } => vec![seen],
            Self::Queue { .. } | Self::Mark | Self::Revoke { .. } => Vec::new(),
        }
    }
}

impl Store {
    pub fn holder(&self, suffix: KeySuffix) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.suffix == suffix)
    }

    pub fn waiter(&self, suffix: KeySuffix) -> Option<&Waiter> {
        self.waiters.iter().find(|waiter| waiter.suffix == suffix)
    }

    pub fn is_empty_at(&self, suffix: KeySuffix) -> bool {
        self.holder(suffix).is_none() && self.waiter(suffix).is_none()
    }

    pub fn request(&self, claim: u8) -> Option<Request> {
        self.requests[usize::from(claim)]
    }

    /// Writes the record of a request, of a claim that has one.
    pub fn put_request(&mut self, world: &World, claim: u8, request: Option<Request>) {
        if world.is_retryable(claim) {
            self.requests[usize::from(claim)] = request;
        }
    }

    pub fn is_marked(&self, call: u8) -> bool {
        self.marks.iter().any(|(marked, _)| *marked == call)
    }

    pub fn is_alive(&self, lease: u8) -> bool {
        let lease = self.leases[usize::from(lease)];
        lease.is_counted_on() || lease == Lease::Stale
    }

    /// Ends a lease, with what is on it.
    pub fn end_lease(&mut self, world: &World, lease: u8) {
        self.leases[usize::from(lease)] = Lease::Dead;
        let gone: Vec<u8> = self
            .holders
            .iter()
            .filter(|holder| holder.lease == lease)
            .map(|holder| holder.claim)
            .collect();
        self.holders.retain(|holder| holder.lease != lease);
        for claim in gone {
            // Where no ends are remembered, the record of the request is on the holder's own lease.
            if !world.remembers {
                self.put_request(world, claim, None);
            }
        }
    }

    /// Ends a session, with what is on it.
    pub fn end_session(&mut self, replica: u8) {
        self.sessions[usize::from(replica)] += 1;
        self.waiters.retain(|waiter| waiter.replica != replica);
        self.marks.retain(|(_, on)| *on != replica);
        for request in &mut self.requests {
            if matches!(request, Some(Request::Waits { replica: on, .. }) if *on == replica) {
                *request = None;
            }
        }
    }

    pub fn hold(&mut self, suffix: KeySuffix, claim: u8, call: u8, lease: u8) {
        self.revision += 1;
        self.holders.push(Holder {
            suffix,
            claim,
            call,
            lease,
            adopted: false,
            created: self.revision,
            modified: self.revision,
        });
        self.holders
            .sort_unstable_by_key(|holder| (holder.created, holder.claim));
    }

    pub fn queue(&mut self, suffix: KeySuffix, claim: u8, call: u8, replica: u8) {
        self.revision += 1;
        self.waiters.push(Waiter {
            suffix,
            claim,
            call,
            replica,
            created: self.revision,
            modified: self.revision,
        });
    }

    /// Revisions matter only by their order: counts them anew, so that states which differ in nothing else are one.
    pub fn renumber(&mut self, calls: &mut [Call]) {
        let mut all: Vec<&mut u8> = Vec::new();
        for holder in &mut self.holders {
            all.extend([&mut holder.created, &mut holder.modified]);
        }
        for waiter in &mut self.waiters {
            all.extend([&mut waiter.created, &mut waiter.modified]);
        }
        for call in calls {
            all.extend(&mut call.queued);
            for (step, _) in call.stage.step_mut().into_iter().chain(call.late.iter_mut()) {
                all.extend(step.revisions());
            }
        }
        let mut known: Vec<u8> = all.iter().map(|revision| **revision).collect();
        known.sort_unstable();
        known.dedup();
        for revision in all {
            let rank = known.binary_search(revision).expect("it is among them");
            *revision = u8::try_from(rank).expect("few") + 1;
        }
        self.revision = u8::try_from(known.len()).expect("few") + 1;
        self.marks.sort_unstable();
        self.marks.dedup();
    }
}
