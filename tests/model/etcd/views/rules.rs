//! The claims of a lock as the store keeps them, and who of them may hold.

use self::Kind::{Exclusive, Reader, Semaphore};

/// A way to break the protocol; the walk must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flaw {
    None,
    /// A claim that the view does not have yet is judged as the last one in it.
    JudgesWhatItDoesNotSee,
    /// A waiter is judged by its id, not by the key that the view showed.
    ComparesOnlyTheClaim,
    /// A semaphore claim passes the holders that the view has not seen.
    PassesNewHolders,
    /// A newcomer that finds the queue empty in the view takes the lock without asking for it.
    EntersByTheView,
    /// A reader does not ask for semaphore claims that it has not seen.
    ReadsBesideSemaphores,
    /// A semaphore claim does not ask for readers.
    PassesReaders,
    /// A reader that finds no holder but readers passes the waiters.
    ReadsBeforeWaiters,
    /// The prefix of a view mixes readers and semaphore claims.
    MixesModes,
    /// A claim is judged by its own limit, whatever smaller ones are ahead.
    IgnoresSmallerLimits,
}

/// How a claim shares the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Exclusive,
    Semaphore,
    Reader,
}

/// The permits of a claim, and its limit.
pub type Share = (u8, u8);

/// What takes part.
#[derive(Debug, Clone, Copy)]
pub struct World {
    pub flaw: Flaw,
    /// How many permits of which limit each claim takes, the replica that serves it, and how it shares.
    pub claims: &'static [(Share, u8, Kind)],
    /// How often a waiter may leave and come again.
    pub leaves: u8,
}

/// A key of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub claim: u8,
    pub created: u8,
}

/// The keys of the lock, by their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Queue {
    pub revision: u8,
    pub holders: Vec<Key>,
    pub waiters: Vec<Key>,
}

impl Queue {
    pub fn holder(&self, claim: u8) -> Option<Key> {
        self.holders.iter().copied().find(|key| key.claim == claim)
    }

    pub fn waiter(&self, claim: u8) -> Option<Key> {
        self.waiters.iter().copied().find(|key| key.claim == claim)
    }

    pub fn write(&mut self) -> u8 {
        self.revision += 1;
        self.revision
    }

    pub fn hold(&mut self, claim: u8) -> Key {
        let created = self.write();
        let key = Key { claim, created };
        self.waiters.retain(|key| key.claim != claim);
        self.holders.push(key);
        key
    }
}

impl World {
    pub fn replica(&self, claim: u8) -> usize {
        usize::from(self.claims[usize::from(claim)].1)
    }

    /// Whether these claims fit in the smallest of their limits.
    pub fn fit(&self, claims: impl Iterator<Item = u8>) -> bool {
        let (used, limit) = claims.fold((0, u8::MAX), |(used, limit), claim| {
            let (permits, of) = self.claims[usize::from(claim)].0;
            (used + permits, limit.min(of))
        });
        used <= limit
    }

    /// The same as a replica judges it for the last of these claims.
    fn judges(&self, claims: impl Iterator<Item = u8> + Clone) -> bool {
        if self.flaw != Flaw::IgnoresSmallerLimits {
            return self.fit(claims);
        }
        let used = claims.clone().map(|claim| self.claims[usize::from(claim)].0.0);
        let limit = claims.last().map(|claim| self.claims[usize::from(claim)].0.1);
        limit.is_none_or(|limit| used.sum::<u8>() <= limit)
    }

    pub fn kind(&self, claim: u8) -> Kind {
        self.claims[usize::from(claim)].2
    }

    pub fn reads(&self, claim: u8) -> bool {
        self.kind(claim) == Reader
    }

    /// Whether claims of both kinds that share are among them.
    pub fn are_mixed(&self, claims: impl Iterator<Item = u8>) -> bool {
        let (mut readers, mut semaphores) = (false, false);
        for claim in claims {
            readers |= self.reads(claim);
            semaphores |= self.kind(claim) == Semaphore;
        }
        readers && semaphores
    }

    /// Whether a claim may hold beside all that are in this queue.
    pub fn admits(&self, queue: &Queue, claim: u8) -> bool {
        let all = || {
            queue
                .holders
                .iter()
                .chain(&queue.waiters)
                .map(|key| key.claim)
                .chain([claim])
        };
        self.judges(all()) && !self.are_mixed(all())
    }

    /// The waiters within the prefix, once this holder is gone.
    pub fn next_without<'a>(&'a self, queue: &'a Queue, gone: Option<u8>) -> impl Iterator<Item = Key> + 'a {
        let ahead = queue.holders.iter().filter(move |key| Some(key.claim) != gone);
        let mut within: Vec<u8> = ahead.map(|key| key.claim).collect();
        queue.waiters.iter().copied().take_while(move |key| {
            within.push(key.claim);
            let fit = self.judges(within.iter().copied());
            let mixed = self.flaw != Flaw::MixesModes && self.are_mixed(within.iter().copied());
            fit && !mixed
        })
    }

    /// Whether the holders let this claim in, which was judged at this revision.
    pub fn is_guarded(&self, store: &Queue, claim: u8, seen: u8) -> bool {
        let none = |kind| store.holders.iter().all(|key| self.kind(key.claim) != kind);
        let none_made_after = || {
            let apart = |key: &&Key| !matches!(self.kind(key.claim), Reader);
            store.holders.iter().filter(apart).all(|key| key.created <= seen)
        };
        match self.kind(claim) {
            Exclusive => store.holders.is_empty(),
            Semaphore => {
                let passes = self.flaw == Flaw::PassesNewHolders;
                let readers = self.flaw == Flaw::PassesReaders || none(Reader);
                none(Exclusive) && readers && (passes || none_made_after())
            }
            Reader => {
                let passes = self.flaw == Flaw::ReadsBesideSemaphores;
                none(Exclusive) && (passes || none_made_after())
            }
        }
    }
}
