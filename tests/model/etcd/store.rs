//! What etcd keeps of one lock, and what its transactions do.

use super::steps::Call;

/// An etcd lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lease {
    Unborn,
    /// Whoever counts from its last sign of life may count on it.
    Fresh,
    /// A whole TTL has passed since: it may end at any time.
    Stale,
    Dead,
}

/// A key under `h/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder {
    pub claim: u8,
    pub call: u8,
    pub lease: u8,
    pub adopted: bool,
    pub created: u8,
    pub modified: u8,
}

/// A key under `q/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Waiter {
    pub claim: u8,
    pub call: u8,
    /// The replica on whose session it lives.
    pub replica: u8,
    pub created: u8,
    pub modified: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Store {
    pub revision: u8,
    pub holders: Vec<Holder>,
    /// By their place.
    pub waiters: Vec<Waiter>,
    /// The calls that have left, and the replica on whose session the mark lives.
    pub marks: Vec<(u8, u8)>,
    pub leases: Vec<Lease>,
    /// By replica, the number of its session.
    pub sessions: Vec<u8>,
}

/// A transaction: what it does, with what it was judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    Acquire {
        lease: u8,
        seen: u8,
    },
    Queue,
    AdoptWaiter {
        modified: u8,
    },
    AdoptHolder {
        modified: u8,
    },
    Promote {
        modified: u8,
        lease: u8,
        seen: u8,
    },
    /// Takes the own waiting claim or hold out.
    RemoveWaiter {
        modified: u8,
    },
    RemoveHolder {
        modified: u8,
    },
    /// Leaves a mark beside what another call has, or where there is nothing.
    MarkWaiter {
        modified: u8,
    },
    MarkHolder {
        modified: u8,
    },
    MarkAbsent,
    /// Ends a lease; only a flaw does.
    Revoke {
        lease: u8,
    },
    Release {
        modified: u8,
    },
    HandOver {
        modified: u8,
        next: u8,
        next_modified: u8,
        lease: u8,
    },
}

impl Step {
    pub fn lease(self) -> Option<u8> {
        match self {
            Self::Acquire { lease, .. } | Self::Promote { lease, .. } | Self::HandOver { lease, .. } => Some(lease),
            _ => None,
        }
    }

    /// Whether it may make or adopt a claim: what a mark keeps out.
    pub fn comes(self) -> bool {
        matches!(
            self,
            Self::Acquire { .. }
                | Self::Queue
                | Self::AdoptWaiter { .. }
                | Self::AdoptHolder { .. }
                | Self::Promote { .. }
        )
    }

    pub fn grants_at_once(self) -> bool {
        matches!(self, Self::Acquire { .. })
    }

    pub fn marks(self) -> bool {
        matches!(
            self,
            Self::MarkWaiter { .. } | Self::MarkHolder { .. } | Self::MarkAbsent
        )
    }

    /// The revision of the key that it was judged by.
    pub fn judged_by(mut self) -> Option<u8> {
        match self {
            Self::Acquire { .. } => None,
            _ => self.revisions().first().map(|revision| **revision),
        }
    }

    fn revisions(&mut self) -> Vec<&mut u8> {
        match self {
            Self::AdoptWaiter { modified }
            | Self::AdoptHolder { modified }
            | Self::RemoveWaiter { modified }
            | Self::RemoveHolder { modified }
            | Self::MarkWaiter { modified }
            | Self::MarkHolder { modified }
            | Self::Release { modified } => vec![modified],
            Self::Promote { modified, seen, .. } => vec![modified, seen],
            Self::HandOver {
                modified,
                next_modified,
                ..
            } => vec![modified, next_modified],
            Self::Acquire { seen, .. } => vec![seen],
            Self::Queue | Self::MarkAbsent | Self::Revoke { .. } => Vec::new(),
        }
    }
}

impl Store {
    pub fn holder(&self, claim: u8) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.claim == claim)
    }

    pub fn waiter(&self, claim: u8) -> Option<&Waiter> {
        self.waiters.iter().find(|waiter| waiter.claim == claim)
    }

    pub fn is_marked(&self, call: u8) -> bool {
        self.marks.iter().any(|(marked, _)| *marked == call)
    }

    pub fn is_alive(&self, lease: u8) -> bool {
        matches!(self.leases[usize::from(lease)], Lease::Fresh | Lease::Stale)
    }

    /// Ends a lease, with what is on it.
    pub fn end_lease(&mut self, lease: u8) {
        self.leases[usize::from(lease)] = Lease::Dead;
        self.holders.retain(|holder| holder.lease != lease);
    }

    /// Ends a session, with what is on it.
    pub fn end_session(&mut self, replica: u8) {
        self.sessions[usize::from(replica)] += 1;
        self.waiters.retain(|waiter| waiter.replica != replica);
        self.marks.retain(|(_, on)| *on != replica);
    }

    pub fn hold(&mut self, claim: u8, call: u8, lease: u8) {
        self.revision += 1;
        self.holders.push(Holder {
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

    pub fn queue(&mut self, claim: u8, call: u8, replica: u8) {
        self.revision += 1;
        self.waiters.push(Waiter {
            claim,
            call,
            replica,
            created: self.revision,
            modified: self.revision,
        });
    }

    /// Revisions matter only by their order: counts them anew, so that states which differ in
    /// nothing else are one.
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
