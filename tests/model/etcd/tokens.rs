//! The tokens of one lock on etcd: a base that replicas raise, and a store that is put back to an old copy
//! under them.
//!
//! Every write takes a tick of the one wall clock that all replicas read: revisions never rise faster.

use crate::explorer::{Model, Walked, walk};

/// A way to break the protocol; the walk must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Flaw {
    None,
    /// A connection that was opened anew proves nothing.
    KeepsItsBase,
    /// A connection that was opened anew proves something, but grants do not wait for that.
    GrantsBeforeTheProof,
    /// The base is not raised to the time of day.
    NeverRaises,
    /// The base is written whatever has changed since it was read.
    RaisesBlindly,
    /// A grant does not compare the base.
    ComparesNoBase,
    /// Leases are used again though the store may have put keys on them back.
    KeepsItsPool,
}

/// What etcd keeps of the lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Store {
    revision: u8,
    base: u8,
    /// The revision of the base's last change.
    based: u8,
    /// The lease of the holder.
    holder: Option<u8>,
}

/// A base that was read and is to be raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Raise {
    to: u8,
    based: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Replica {
    /// What it adds to the revision of a grant, once it is proven.
    base: Option<u8>,
    /// Its connection is another one than the base was proven over.
    reconnected: bool,
    raise: Option<Raise>,
    /// A lease that it may use again.
    pooled: Option<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Tokens {
    flaw: Flaw,
    store: Store,
    copy: Option<Store>,
    time: u8,
    replicas: [Replica; 2],
    /// The largest token that was answered.
    last: u8,
    /// How many leases were made.
    leases: u8,
    /// How often the store may still be put back.
    restores: u8,
    wrong: Option<&'static str>,
}

#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "shown where something is wrong")]
enum Event {
    ReadsTheBase(usize),
    RaisesTheBase(usize),
    Grants(usize),
    Releases(usize),
    TheHolderExpires,
    ATickPasses,
    IsCopied,
    IsPutBack,
}

/// When the clock stands still, for a walk must end.
const END: u8 = if cfg!(feature = "soak") { 12 } else { 9 };

impl Tokens {
    fn begin(flaw: Flaw) -> Self {
        Self {
            flaw,
            store: Store::default(),
            copy: None,
            time: 1,
            replicas: [Replica::default(); 2],
            last: 0,
            leases: 0,
            restores: 1,
            wrong: None,
        }
    }

    fn write(&mut self) {
        self.store.revision += 1;
        self.time += 1;
    }

    fn read_base(&self, at: usize) -> Option<Self> {
        let mut after = self.clone();
        let replica = &mut after.replicas[at];
        let due = replica.base.is_none() || (replica.reconnected && self.flaw != Flaw::KeepsItsBase);
        if !due || replica.raise.is_some() {
            return None;
        }
        if self.flaw != Flaw::KeepsItsPool {
            replica.pooled = None;
        }
        let floor = self.time.saturating_sub(self.store.revision);
        if floor <= self.store.base || self.flaw == Flaw::NeverRaises {
            replica.prove(self.store.base);
        } else {
            replica.raise = Some(Raise {
                to: floor,
                based: self.store.based,
            });
        }
        Some(after)
    }

    fn raise_base(&self, at: usize) -> Option<Self> {
        let raise = self.replicas[at].raise?;
        let mut after = self.clone();
        after.replicas[at].raise = None;
        if self.store.based == raise.based || self.flaw == Flaw::RaisesBlindly {
            after.write();
            after.store.base = raise.to;
            after.store.based = after.store.revision;
            after.replicas[at].prove(raise.to);
        }
        Some(after)
    }

    fn grant(&self, at: usize) -> Option<Self> {
        let mut after = self.clone();
        let replica = self.replicas[at];
        let base = replica.base?;
        let passes = matches!(self.flaw, Flaw::KeepsItsBase | Flaw::GrantsBeforeTheProof);
        if replica.reconnected && !passes {
            return None;
        }
        if self.store.holder.is_some() {
            return None;
        }
        if base != self.store.base && self.flaw != Flaw::ComparesNoBase {
            // The answer says which one it is.
            after.replicas[at].base = Some(self.store.base);
            return Some(after);
        }
        let lease = after.replicas[at].pooled.take().unwrap_or(self.leases);
        after.leases = after.leases.max(lease + 1);
        after.write();
        after.store.holder = Some(lease);
        let token = base + after.store.revision;
        if token <= self.last {
            after.wrong = Some("a token fell");
        }
        after.last = token;
        Some(after)
    }

    fn release(&self, at: usize) -> Option<Self> {
        let mut after = self.clone();
        let lease = after.store.holder.take()?;
        // Whichever replica had the answer: it keeps the lease.
        after.replicas[at].pooled = Some(lease);
        after.write();
        Some(after)
    }

    fn put_back(&self) -> Option<Self> {
        let mut after = self.clone();
        after.restores = self.restores.checked_sub(1)?;
        after.store = self.copy?;
        for replica in &mut after.replicas {
            replica.reconnected = true;
            // What was on its way is lost with the connection.
            replica.raise = None;
        }
        Some(after)
    }
}

impl Replica {
    fn prove(&mut self, base: u8) {
        self.base = Some(base);
        self.reconnected = false;
    }
}

impl Model for Tokens {
    type Event = Event;

    fn next(&self) -> Vec<(Event, Self)> {
        let mut next = Vec::new();
        if self.time >= END {
            return next;
        }
        let mut then = |what, after: Option<Self>| next.extend(after.map(|after| (what, after)));
        for at in 0..self.replicas.len() {
            then(Event::ReadsTheBase(at), self.read_base(at));
            then(Event::RaisesTheBase(at), self.raise_base(at));
            then(Event::Grants(at), self.grant(at));
            then(Event::Releases(at), self.release(at));
        }
        let mut expired = self.clone();
        if expired.store.holder.take().is_some() {
            expired.write();
            then(Event::TheHolderExpires, Some(expired));
        }
        let mut later = self.clone();
        later.time += 1;
        then(Event::ATickPasses, Some(later));
        if self.restores > 0 {
            let mut copied = self.clone();
            copied.copy = Some(self.store);
            then(Event::IsCopied, Some(copied));
        }
        then(Event::IsPutBack, self.put_back());
        next
    }

    fn wrong(&self) -> Option<&'static str> {
        let pooled = |replica: &Replica| !replica.reconnected && replica.pooled.is_some();
        let shared = self
            .replicas
            .iter()
            .any(|replica| pooled(replica) && replica.pooled == self.store.holder);
        self.wrong
            .or(shared.then_some("a lease is to be used again that a key is on"))
    }
}

fn explore(flaw: Flaw) -> Walked {
    walk(Tokens::begin(flaw), 8_000_000)
}

// G88, G109
#[test]
fn tokens_rise_over_an_old_copy_put_back_under_two_replicas() {
    explore(Flaw::None).is_sound(10_000);
}

#[test]
fn a_base_that_outlives_its_connection_is_noticed() {
    explore(Flaw::KeepsItsBase).is_noticed("a token fell");
}

#[test]
fn a_grant_before_the_base_was_proven_again_is_noticed() {
    explore(Flaw::GrantsBeforeTheProof).is_noticed("a token fell");
}

#[test]
fn a_base_that_is_never_raised_is_noticed() {
    explore(Flaw::NeverRaises).is_noticed("a token fell");
}

#[test]
fn a_base_that_is_raised_blindly_is_noticed() {
    explore(Flaw::RaisesBlindly).is_noticed("a token fell");
}

#[test]
fn a_grant_that_compares_no_base_is_noticed() {
    explore(Flaw::ComparesNoBase).is_noticed("a token fell");
}

#[test]
fn a_pool_that_outlives_its_connection_is_noticed() {
    explore(Flaw::KeepsItsPool).is_noticed("used again");
}
