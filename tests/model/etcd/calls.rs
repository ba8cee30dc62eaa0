//! What the replicas decide, for their calls, by what they read.

use super::store::{Holder, KeySuffix, Lease, Request, Step, Waiter};
use super::{Flaw, Kind, State, World};

/// A call of a client, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Call {
    pub claim: u8,
    pub replica: u8,
    pub stage: Stage,
    /// The key suffix that its replica gave it for a new claim.
    pub own: Option<KeySuffix>,
    /// The key suffix of the claim that it has made, adopted or promoted, as far as it knows.
    pub at: Option<KeySuffix>,
    /// The revision at which its replica knows it to be queued, so that its undo need not read.
    pub queued: Option<u8>,
    /// A whole TTL has passed since the time that its lease counts from.
    pub stale: bool,
    /// At that time its lease did not outlive a TTL; only a flaw grants so.
    pub uncovered: bool,
    /// What was given up and may still come, each with the session that it was sent under.
    pub late: Vec<(Step, u8)>,
    /// The leases of what was given up.
    pub lost: Vec<u8>,
    /// When it left, another call had found its hold.
    pub adopted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// It reads the lock and the record of its request, and decides.
    Wants,
    /// It has read a record of its request that names this key suffix, and reads both.
    Looks {
        suffix: KeySuffix,
    },
    Sent((Step, u8)),
    Waiting,
    /// The answer is here, and not yet delivered.
    Granted {
        lease: u8,
    },
    Held {
        lease: u8,
    },
    Releasing {
        lease: u8,
    },
    /// It is over for its client, and what it did must be undone.
    ReleaseTarget,
    /// Its undo was answered.
    Left,
    Done,
}

impl Stage {
    pub fn step_mut(&mut self) -> Option<&mut (Step, u8)> {
        match self {
            Self::Sent(sent) => Some(sent),
            _ => None,
        }
    }
}

/// Takes a lease, used or new, for a grant to this call. A used one gets a keep-alive unless it had its last one just now.
fn lease(world: &World, state: &mut State, replica: u8, granted: usize) -> Option<u8> {
    let call = &mut state.calls[granted];
    (call.stale, call.uncovered) = (false, false);
    while let Some(used) = state.pools[usize::from(replica)].pop() {
        if state.store.is_alive(used) {
            let lease = &mut state.store.leases[usize::from(used)];
            match world.flaw {
                Flaw::NoKeepAlive => {}
                Flaw::KeepAliveTooLate if *lease == Lease::Fresh => {}
                _ => *lease = Lease::Kept,
            }
            call.uncovered = *lease != Lease::Kept;
            return Some(used);
        }
    }
    let new = state.store.leases.iter().position(|lease| *lease == Lease::Unborn)?;
    state.store.leases[new] = Lease::Kept;
    u8::try_from(new).ok()
}

/// The key suffix of a call for a new claim: the one that it has, or the first that is free in the present session.
fn suffix(state: &mut State, at: usize) -> KeySuffix {
    let replica = state.calls[at].replica;
    let session = state.store.sessions[usize::from(replica)];
    if let Some(own) = state.calls[at].own.filter(|own| own.session == session) {
        return own;
    }
    let used = &mut state.used[usize::from(replica)];
    let number = (0..).find(|number| !used.contains(number)).expect("there is one");
    used.push(number);
    used.sort_unstable();
    let suffix = KeySuffix {
        replica,
        session,
        number,
    };
    state.calls[at].own = Some(suffix);
    suffix
}

pub fn decide(world: &World, state: &State, at: usize) -> Option<State> {
    let (store, call) = (&state.store, &state.calls[at]);
    if store.is_marked(at as u8) {
        return Some(to(state, at, Stage::Done));
    }
    match store.request(call.claim) {
        Some(Request::Ended) => return Some(to(state, at, Stage::Done)),
        Some(Request::Waits { suffix, .. } | Request::Holds { suffix }) => {
            return Some(to(state, at, Stage::Looks { suffix }));
        }
        None => {}
    }
    let mut after = state.clone();
    let suffix = suffix(&mut after, at);
    if !fits(world, state, call.claim) || !store.waiters.is_empty() {
        return Some(sent(after, at, Step::Queue { suffix }));
    }
    let lease = lease(world, &mut after, call.replica, at)?;
    let seen = seen(world, state, call.claim);
    Some(sent(after, at, Step::Enter { suffix, lease, seen }))
}

fn seen(world: &World, state: &State, claim: u8) -> u8 {
    match world.kind(claim) {
        Kind::Semaphore => state.store.revision,
        Kind::Exclusive | Kind::Reader => 0,
    }
}

/// Reads the key suffix that the record of its request names, and that record again.
pub fn look(world: &World, state: &State, at: usize, suffix: KeySuffix) -> Option<State> {
    let (store, call, id) = (&state.store, &state.calls[at], at as u8);
    let now = store.request(call.claim);
    if store.is_marked(id) {
        return Some(to(state, at, Stage::Done));
    }
    if now.and_then(Request::suffix) != Some(suffix) && world.flaw != Flaw::TrustsTheRequest {
        return Some(to(state, at, Stage::Wants));
    }
    let ours = |claim| claim == call.claim || world.flaw == Flaw::TrustsTheSuffix;
    if let Some(waiter) = store.waiter(suffix).filter(|waiter| ours(waiter.claim)) {
        let modified = waiter.modified;
        return match next_in_line(world, state, waiter) {
            true => promote(world, state, at, waiter),
            false => Some(sent(state.clone(), at, Step::AdoptWaiter { suffix, modified })),
        };
    }
    if let Some(holder) = store.holder(suffix).filter(|holder| ours(holder.claim)) {
        let mut after = state.clone();
        after.calls[at].stale = !store.leases[usize::from(holder.lease)].is_counted_on();
        after.calls[at].at = Some(suffix);
        let modified = holder.modified;
        return Some(match holder.call == id || holder.adopted {
            true => to(&after, at, Stage::Granted { lease: holder.lease }),
            false => sent(after, at, Step::AdoptHolder { suffix, modified }),
        });
    }
    // The client is told that its hold expired.
    let mut after = to(state, at, Stage::Done);
    if !matches!(now, Some(Request::Holds { .. })) {
        after.wrong = Some("a hold was said to have expired that had not");
    }
    Some(after)
}

/// Whether a claim fits beside the holders.
fn fits(world: &World, state: &State, claim: u8) -> bool {
    let mixes = |other: &Holder| match (world.kind(claim), world.kind(other.claim)) {
        (Kind::Exclusive, _) | (_, Kind::Exclusive) => false,
        (one, other) => one == other,
    };
    let holders = state.store.holders.iter();
    holders.clone().all(mixes) && world.fit(holders.map(|holder| holder.claim).chain([claim]))
}

/// Whether a waiter is within the prefix.
pub fn next_in_line(world: &World, state: &State, waiter: &Waiter) -> bool {
    let (holders, waiters) = (state.store.holders.iter(), state.store.waiters.iter());
    let ahead = waiters.filter(|other| other.created < waiter.created);
    let claims = holders.map(|holder| holder.claim);
    world.fit(claims.chain(ahead.map(|other| other.claim)).chain([waiter.claim]))
}

fn promote(world: &World, state: &State, at: usize, waiter: &Waiter) -> Option<State> {
    let mut after = state.clone();
    let lease = lease(world, &mut after, state.calls[at].replica, at)?;
    let seen = seen(world, state, waiter.claim);
    let (suffix, modified) = (waiter.suffix, waiter.modified);
    Some(sent(
        after,
        at,
        Step::Promote {
            suffix,
            modified,
            lease,
            seen,
        },
    ))
}

/// A waiting call looks at its claim.
pub fn inspect(world: &World, state: &State, at: usize) -> Option<State> {
    let (store, call) = (&state.store, &state.calls[at]);
    let suffix = call.at?;
    if let Some(waiter) = store.waiter(suffix).filter(|waiter| waiter.call == at as u8) {
        return next_in_line(world, state, waiter).then(|| promote(world, state, at, waiter))?;
    }
    let handed = store.holder(suffix).filter(|holder| holder.call == at as u8);
    let Some(holder) = handed else {
        return Some(to(state, at, Stage::Done));
    };
    let mut after = state.clone();
    after.calls[at].stale = !store.leases[usize::from(holder.lease)].is_counted_on();
    Some(to(&after, at, Stage::Granted { lease: holder.lease }))
}

pub fn deliver(world: &World, state: &State, at: usize, lease: u8) -> State {
    let claim = usize::from(state.calls[at].claim);
    let is_over = state.over[claim] && world.is_retryable(state.calls[at].claim);
    if state.calls[at].stale || is_over {
        return to(state, at, Stage::Done);
    }
    let mut after = to(state, at, Stage::Held { lease });
    after.believes[claim] = Some(lease);
    after
}

pub fn give_back(state: &State, at: usize, lease: u8) -> State {
    let claim = usize::from(state.calls[at].claim);
    let mut after = to(state, at, Stage::Releasing { lease });
    after.believes[claim] = None;
    after.over[claim] = true;
    after
}

pub fn stop_counting(state: &State, at: usize) -> State {
    let mut after = to(state, at, Stage::Done);
    after.believes[usize::from(state.calls[at].claim)] = None;
    after
}

/// The holder that a lease names: the key suffix alone may be another claim's by now.
fn leased(world: &World, state: &State, at: usize, lease: u8) -> Option<Holder> {
    let call = &state.calls[at];
    let is_it =
        |holder: &&Holder| holder.claim == call.claim && holder.lease == lease || world.flaw == Flaw::ReleasesTheSuffix;
    call.at
        .and_then(|suffix| state.store.holder(suffix))
        .filter(is_it)
        .copied()
}

pub fn release(world: &World, state: &State, at: usize, lease: u8) -> State {
    match leased(world, state, at, lease) {
        Some(Holder { suffix, modified, .. }) => sent(state.clone(), at, Step::Release { suffix, modified }),
        None => to(state, at, Stage::Done),
    }
}

/// With the first waiter, where this replica serves it.
pub fn hand_over(world: &World, state: &State, at: usize, held: u8) -> Option<State> {
    let (store, call) = (&state.store, &state.calls[at]);
    let Holder { suffix, modified, .. } = leased(world, state, at, held)?;
    let first = store.waiters.first()?;
    let served = &state.calls[usize::from(first.call)];
    if store.holders.len() > 1 || served.replica != call.replica || served.stage != Stage::Waiting {
        return None;
    }
    let mut after = state.clone();
    let lease = lease(world, &mut after, call.replica, usize::from(first.call))?;
    Some(sent(
        after,
        at,
        Step::HandOver {
            suffix,
            modified,
            next: first.call,
            next_suffix: first.suffix,
            next_modified: first.modified,
            lease,
        },
    ))
}

/// Undoes a call: first a mark, if a step of it may still come, and then what is under its key suffixes.
pub fn undo(world: &World, state: &State, at: usize) -> State {
    let (store, call, id) = (&state.store, &state.calls[at], at as u8);
    let settled = store.is_marked(id) || !call.late.iter().any(|(step, _)| step.comes());
    if !settled && world.flaw != Flaw::NeverMarks {
        return sent(state.clone(), at, Step::Mark);
    }
    let suffixes = || call.own.into_iter().chain(call.at);
    let adopted_too = world.flaw == Flaw::UndoIgnoresAdoption;
    let any = world.flaw == Flaw::UndoIgnoresCall;
    let waiter = suffixes().find_map(|suffix| store.waiter(suffix).filter(|waiter| waiter.call == id || any));
    if let Some(Waiter { suffix, modified, .. }) = waiter.copied() {
        return sent(state.clone(), at, Step::UndoWaiter { suffix, modified });
    }
    let holder = suffixes().find_map(|suffix| store.holder(suffix).filter(|holder| holder.call == id));
    if let Some(Holder { suffix, modified, .. }) = holder.filter(|holder| !holder.adopted || adopted_too).copied() {
        return sent(state.clone(), at, Step::UndoHolder { suffix, modified });
    }
    let mut after = to(state, at, Stage::Left);
    after.calls[at].adopted = holder.is_some();
    after
}

/// Removes the waiting claim that its replica knows, whatever is in the store by now.
pub fn undo_unread(state: &State, at: usize) -> Option<State> {
    let (modified, suffix) = (state.calls[at].queued?, state.calls[at].at?);
    Some(sent(state.clone(), at, Step::UndoWaiter { suffix, modified }))
}

/// Once its undo was answered, and if no other call has found its hold, what it had on its way needs no lease.
pub fn revoke(world: &World, state: &State, at: usize) -> Option<State> {
    if state.calls[at].adopted && world.flaw != Flaw::RevokesAdopted {
        return None;
    }
    let mut after = state.clone();
    let lease = after.calls[at].lost.pop()?;
    after.store.end_lease(world, lease);
    Some(after)
}

pub fn to(state: &State, at: usize, stage: Stage) -> State {
    let mut after = state.clone();
    after.calls[at].stage = stage;
    after
}

fn sent(mut state: State, at: usize, step: Step) -> State {
    let session = state.store.sessions[usize::from(state.calls[at].replica)];
    state.calls[at].stage = Stage::Sent((step, session));
    state
}
