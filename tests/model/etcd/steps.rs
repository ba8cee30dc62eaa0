//! What may happen next.

use super::store::{Lease, Step, Waiter};
use super::{Flaw, State, World};

/// A call of a client, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Call {
    pub claim: u8,
    pub replica: u8,
    pub stage: Stage,
    /// A whole TTL has passed since the sign of life that its lease counts from.
    pub stale: bool,
    /// What was given up and may still come, each with the session that it was sent under.
    pub late: Vec<(Step, u8)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// It reads the lock and decides.
    Wants,
    Sent((Step, u8)),
    Waiting,
    /// The answer is here, and not yet handed over.
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
    Leaving,
    /// Its leave was answered.
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

/// What happens: to which call, and with which step.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "shown where something is wrong")]
pub enum Event {
    Decides(usize),
    Arrives(usize, Step),
    ArrivesLate(usize, Step),
    IsGivenUp(usize, Step),
    Looks(usize),
    IsCancelled(usize),
    GetsItsAnswer(usize),
    EndsBeforeItsAnswer(usize),
    Releases(usize),
    CountsNoMore(usize),
    SendsItsRelease(usize),
    SendsItsReleaseWithTheNext(usize),
    Leaves(usize),
    TwoGoTogether,
    ATtlPasses(u8),
    LeaseEnds(u8),
    SessionEnds(u8),
}

/// All states that may follow.
pub fn next(world: &World, state: &State) -> Vec<(Event, State)> {
    let mut next = Vec::new();
    for at in 0..state.calls.len() {
        let call = &state.calls[at];
        let mut then = |what, after: Option<State>| next.extend(after.map(|after| (what, after)));
        match call.stage {
            Stage::Wants => then(Event::Decides(at), decide(world, state, at)),
            Stage::Sent((step, session)) => {
                then(Event::Arrives(at, step), Some(arrive(world, state, at, step, session)));
                then(Event::IsGivenUp(at, step), give_up(world, state, at, step, session));
            }
            Stage::Waiting => {
                then(Event::Looks(at), look(world, state, at));
                then(Event::IsCancelled(at), Some(to(state, at, Stage::Leaving)));
            }
            Stage::Granted { lease } => {
                then(Event::GetsItsAnswer(at), Some(deliver(state, at, lease)));
                then(Event::EndsBeforeItsAnswer(at), Some(to(state, at, Stage::Leaving)));
            }
            Stage::Held { lease } => {
                then(Event::Releases(at), Some(give_back(state, at, lease)));
                then(Event::CountsNoMore(at), Some(stop_counting(state, at)));
            }
            Stage::Releasing { lease } => {
                then(Event::SendsItsRelease(at), Some(release(state, at, lease)));
                then(
                    Event::SendsItsReleaseWithTheNext(at),
                    hand_over(world, state, at, lease),
                );
            }
            Stage::Leaving => then(Event::Leaves(at), Some(leave(world, state, at))),
            Stage::Left | Stage::Done => {}
        }
        for (place, (step, session)) in call.late.iter().enumerate() {
            let mut after = state.clone();
            after.calls[at].late.remove(place);
            if holds(world, &after, at, *step, *session) {
                act(world, &mut after, at, *step);
                next.push((Event::ArrivesLate(at, *step), after));
            }
        }
    }
    if world.flaw == Flaw::TwoGrantsInOneBatch {
        next.extend(together(world, state, |one, two| {
            matches!((one, two), (Step::Enter { .. }, Step::Enter { .. }))
        }));
    }
    next.extend(together(world, state, |tail, host| {
        let hosts = matches!(
            host,
            Step::TakeUp { .. } | Step::HandOver { .. } | Step::Release { .. } | Step::RemoveHolder { .. }
        );
        tail == Step::Queue && hosts
    }));
    if state.times > 0 {
        next.extend((0..state.store.leases.len()).filter_map(|lease| time(state, lease)));
    }
    for replica in 0..2_u8 {
        if state.ends > 0 {
            let mut after = state.clone();
            after.ends -= 1;
            after.store.end_session(replica);
            next.push((Event::SessionEnds(replica), after));
        }
    }
    next
}

fn to(state: &State, at: usize, stage: Stage) -> State {
    let mut after = state.clone();
    after.calls[at].stage = stage;
    after
}

fn sent(mut state: State, at: usize, step: Step) -> State {
    let session = state.store.sessions[usize::from(state.calls[at].replica)];
    state.calls[at].stage = Stage::Sent((step, session));
    state
}

/// Forgets what can have no effect any more: it was judged by a key that has changed since, or it
/// meets a mark.
pub fn forget(world: &World, state: &mut State) {
    for at in 0..state.calls.len() {
        let late = std::mem::take(&mut state.calls[at].late);
        let kept = late.into_iter().filter(|(step, session)| {
            let over = step.comes() && (state.store.is_marked(at as u8) && world.ends == 0);
            let claim = state.calls[at].claim;
            let changed = step.judged_by().is_some_and(|modified| {
                state
                    .store
                    .holder(claim)
                    .is_none_or(|holder| holder.modified != modified)
                    && state
                        .store
                        .waiter(claim)
                        .is_none_or(|waiter| waiter.modified != modified)
            });
            let past = *session != state.store.sessions[usize::from(state.calls[at].replica)]
                && step.comes()
                && world.flaw != Flaw::NoSession;
            !(over || changed || past)
        });
        state.calls[at].late = kept.collect();
    }
}

/// Takes a lease, used or new, and gives it a sign of life.
fn lease(world: &World, state: &mut State, replica: u8) -> Option<u8> {
    while let Some(used) = state.pools[usize::from(replica)].pop() {
        if state.store.is_alive(used) {
            if world.flaw != Flaw::NoSignOfLife {
                state.store.leases[usize::from(used)] = Lease::Fresh;
            }
            return Some(used);
        }
    }
    let new = state.store.leases.iter().position(|lease| *lease == Lease::Unborn)?;
    state.store.leases[new] = Lease::Fresh;
    u8::try_from(new).ok()
}

fn decide(world: &World, state: &State, at: usize) -> Option<State> {
    let (store, call, id) = (&state.store, &state.calls[at], at as u8);
    if store.is_marked(id) || state.given_back[usize::from(call.claim)] {
        return Some(to(state, at, Stage::Done));
    }
    if let Some(waiter) = store.waiter(call.claim) {
        return match next_in_line(world, state, waiter) {
            true => take_up(world, state, at, waiter.modified),
            false => Some(sent(
                state.clone(),
                at,
                Step::AdoptWaiter {
                    modified: waiter.modified,
                },
            )),
        };
    }
    if let Some(holder) = store.holder(call.claim) {
        let mut after = state.clone();
        after.calls[at].stale = store.leases[usize::from(holder.lease)] != Lease::Fresh;
        return Some(match holder.call == id || holder.adopted {
            true => to(&after, at, Stage::Granted { lease: holder.lease }),
            false => sent(
                after,
                at,
                Step::AdoptHolder {
                    modified: holder.modified,
                },
            ),
        });
    }
    let fits = taken(world, state) + world.permits_of(call.claim) <= world.limit && store.waiters.is_empty();
    let mut after = state.clone();
    if !fits {
        return Some(sent(after, at, Step::Queue));
    }
    let lease = lease(world, &mut after, call.replica)?;
    after.calls[at].stale = false;
    let seen = if world.is_exclusive() { 0 } else { store.revision };
    Some(sent(after, at, Step::Enter { lease, seen }))
}

/// How many permits the holders have.
fn taken(world: &World, state: &State) -> u8 {
    let holders = state.store.holders.iter();
    holders.map(|holder| world.permits_of(holder.claim)).sum()
}

/// Whether a waiter is within the prefix.
fn next_in_line(world: &World, state: &State, waiter: &Waiter) -> bool {
    let ahead = state
        .store
        .waiters
        .iter()
        .filter(|other| other.created < waiter.created)
        .map(|other| world.permits_of(other.claim));
    taken(world, state) + ahead.sum::<u8>() + world.permits_of(waiter.claim) <= world.limit
}

fn take_up(world: &World, state: &State, at: usize, modified: u8) -> Option<State> {
    let mut after = state.clone();
    let lease = lease(world, &mut after, state.calls[at].replica)?;
    after.calls[at].stale = false;
    let seen = if world.is_exclusive() { 0 } else { state.store.revision };
    Some(sent(after, at, Step::TakeUp { modified, lease, seen }))
}

fn look(world: &World, state: &State, at: usize) -> Option<State> {
    let call = &state.calls[at];
    if let Some(waiter) = state.store.waiter(call.claim).filter(|waiter| waiter.call == at as u8) {
        return next_in_line(world, state, waiter).then(|| take_up(world, state, at, waiter.modified))?;
    }
    let handed = state.store.holder(call.claim).filter(|holder| holder.call == at as u8);
    let Some(holder) = handed else {
        return Some(to(state, at, Stage::Done));
    };
    let mut after = state.clone();
    after.calls[at].stale = state.store.leases[usize::from(holder.lease)] != Lease::Fresh;
    Some(to(&after, at, Stage::Granted { lease: holder.lease }))
}

fn deliver(state: &State, at: usize, lease: u8) -> State {
    let claim = usize::from(state.calls[at].claim);
    if state.calls[at].stale || state.given_back[claim] {
        return to(state, at, Stage::Done);
    }
    let mut after = to(state, at, Stage::Held { lease });
    after.believes[claim] = Some(lease);
    after
}

fn give_back(state: &State, at: usize, lease: u8) -> State {
    let claim = usize::from(state.calls[at].claim);
    let mut after = to(state, at, Stage::Releasing { lease });
    after.believes[claim] = None;
    after.given_back[claim] = true;
    after
}

fn stop_counting(state: &State, at: usize) -> State {
    let mut after = to(state, at, Stage::Done);
    after.believes[usize::from(state.calls[at].claim)] = None;
    after
}

fn release(state: &State, at: usize, lease: u8) -> State {
    match state
        .store
        .holder(state.calls[at].claim)
        .filter(|holder| holder.lease == lease)
    {
        Some(holder) => sent(
            state.clone(),
            at,
            Step::Release {
                modified: holder.modified,
            },
        ),
        None => to(state, at, Stage::Done),
    }
}

/// With the first waiter, where this replica serves it.
fn hand_over(world: &World, state: &State, at: usize, held: u8) -> Option<State> {
    let (store, call) = (&state.store, &state.calls[at]);
    let holder = store.holder(call.claim).filter(|holder| holder.lease == held)?;
    let first = store.waiters.first()?;
    let served = &state.calls[usize::from(first.call)];
    if store.holders.len() > 1 || served.replica != call.replica || served.stage != Stage::Waiting {
        return None;
    }
    let mut after = state.clone();
    let lease = lease(world, &mut after, call.replica)?;
    after.calls[usize::from(first.call)].stale = false;
    Some(sent(
        after,
        at,
        Step::HandOver {
            modified: holder.modified,
            next: first.call,
            next_modified: first.modified,
            lease,
        },
    ))
}

fn leave(world: &World, state: &State, at: usize) -> State {
    let (store, id) = (&state.store, at as u8);
    let only_absent = world.flaw == Flaw::MarksOnlyAbsent;
    let step = if let Some(waiter) = store.waiter(state.calls[at].claim) {
        match waiter.call == id || world.flaw == Flaw::UndoIgnoresCall {
            true => Step::RemoveWaiter {
                modified: waiter.modified,
            },
            false if only_absent => return to(state, at, Stage::Left),
            false => Step::MarkWaiter {
                modified: waiter.modified,
            },
        }
    } else if let Some(holder) = store.holder(state.calls[at].claim) {
        let own = holder.call == id && !holder.adopted;
        match own || world.flaw == Flaw::UndoIgnoresAdoption {
            true => Step::RemoveHolder {
                modified: holder.modified,
            },
            false if only_absent => return to(state, at, Stage::Left),
            false => Step::MarkHolder {
                modified: holder.modified,
            },
        }
    } else {
        Step::MarkAbsent
    };
    sent(state.clone(), at, step)
}

/// Whether a transaction's conditions are met.
fn holds(world: &World, state: &State, at: usize, step: Step, session: u8) -> bool {
    let (store, call, id) = (&state.store, &state.calls[at], at as u8);
    let lives = session == store.sessions[usize::from(call.replica)] || world.flaw == Flaw::NoSession;
    if step.comes() && (!lives || store.is_marked(id)) || step.lease().is_some_and(|lease| !store.is_alive(lease)) {
        return false;
    }
    let holder = |modified| {
        store
            .holder(call.claim)
            .is_some_and(|holder| holder.modified == modified)
    };
    let waiter = |modified| {
        store
            .waiter(call.claim)
            .is_some_and(|waiter| waiter.modified == modified)
    };
    let absent = store.holder(call.claim).is_none() && store.waiter(call.claim).is_none();
    let whole = world.is_exclusive();
    let none_since = |seen| match whole {
        _ if world.flaw == Flaw::NoGuard => true,
        true => store.holders.is_empty(),
        false => store.holders.iter().all(|holder| holder.created <= seen),
    };
    match step {
        Step::Enter { seen, .. } => {
            let queue =
                store.waiters.iter().all(|waiter| !whole && waiter.created <= seen) || world.flaw == Flaw::NoGuard;
            absent && none_since(seen) && queue
        }
        Step::Queue | Step::MarkAbsent => absent,
        Step::TakeUp { modified, seen, .. } => waiter(modified) && none_since(seen),
        Step::AdoptWaiter { modified } | Step::RemoveWaiter { modified } | Step::MarkWaiter { modified } => {
            waiter(modified)
        }
        Step::AdoptHolder { modified }
        | Step::RemoveHolder { modified }
        | Step::MarkHolder { modified }
        | Step::Release { modified } => holder(modified),
        Step::Revoke { .. } => true,
        Step::HandOver {
            modified,
            next,
            next_modified,
            ..
        } => {
            let claim = state.calls[usize::from(next)].claim;
            let there = store
                .waiter(claim)
                .is_some_and(|waiter| waiter.modified == next_modified);
            // Nobody else can be beside an exclusive holder, so only the others ask for it.
            let alone = world.is_exclusive() || store.holders.len() == 1;
            holder(modified) && there && alone && lives && !store.is_marked(next)
        }
    }
}

/// What a transaction does whose conditions are met.
fn act(world: &World, state: &mut State, at: usize, step: Step) {
    let (claim, replica, id) = (state.calls[at].claim, state.calls[at].replica, at as u8);
    if step.comes() && state.calls[at].stage == Stage::Left {
        state.wrong = Some("a call that had left took effect");
    }
    let store = &mut state.store;
    if step
        .lease()
        .is_some_and(|lease| store.holders.iter().any(|holder| holder.lease == lease))
    {
        state.wrong = Some("two claims on one lease");
    }
    let (gone, granted) = match step {
        Step::TakeUp { .. } => (None, state.store.waiter(claim)),
        Step::HandOver { next, .. } => (Some(claim), state.store.waiter(state.calls[usize::from(next)].claim)),
        _ => (None, None),
    };
    if let Some(granted) = granted {
        let mut without = state.clone();
        without.store.holders.retain(|holder| Some(holder.claim) != gone);
        if !next_in_line(world, &without, granted) {
            state.wrong = Some("a waiter was overtaken");
        }
    }
    if let Step::RemoveWaiter { .. } = step
        && let Some(waiter) = state.store.waiter(claim)
        && waiter.call != id
        && state.calls[usize::from(waiter.call)].stage == Stage::Waiting
    {
        state.wrong = Some("a place was taken from a call that waits");
    }
    let store = &mut state.store;
    match step {
        Step::Enter { lease, .. } => store.hold(claim, id, lease),
        Step::Queue => store.queue(claim, id, replica),
        Step::AdoptWaiter { .. } => {
            store.revision += 1;
            let revision = store.revision;
            for waiter in store.waiters.iter_mut().filter(|waiter| waiter.claim == claim) {
                (waiter.call, waiter.replica, waiter.modified) = (id, replica, revision);
            }
        }
        Step::AdoptHolder { .. } => {
            store.revision += 1;
            let revision = store.revision;
            for holder in store.holders.iter_mut().filter(|holder| holder.claim == claim) {
                (holder.adopted, holder.modified) = (true, revision);
            }
        }
        Step::TakeUp { lease, .. } => {
            store.waiters.retain(|waiter| waiter.claim != claim);
            store.hold(claim, id, lease);
        }
        Step::RemoveWaiter { .. } => store.waiters.retain(|waiter| waiter.claim != claim),
        Step::RemoveHolder { .. } | Step::Release { .. } => store.holders.retain(|holder| holder.claim != claim),
        Step::MarkWaiter { .. } | Step::MarkHolder { .. } | Step::MarkAbsent => store.marks.push((id, replica)),
        Step::Revoke { lease } => store.end_lease(lease),
        Step::HandOver { next, lease, .. } => {
            store.holders.retain(|holder| holder.claim != claim);
            let claim = state.calls[usize::from(next)].claim;
            store.waiters.retain(|waiter| waiter.claim != claim);
            store.hold(claim, next, lease);
        }
    }
}

/// A transaction is judged, and its answer comes back.
fn arrive(world: &World, state: &State, at: usize, step: Step, session: u8) -> State {
    let mut after = state.clone();
    let met = holds(world, state, at, step, session);
    if met {
        act(world, &mut after, at, step);
    } else if let Some(lease) = step.lease() {
        keep(&mut after, at, lease);
    }
    answered(state, &mut after, at, step, met);
    after
}

fn keep(state: &mut State, at: usize, lease: u8) {
    let pool = &mut state.pools[usize::from(state.calls[at].replica)];
    if pool.is_empty() && state.store.is_alive(lease) {
        pool.push(lease);
    }
}

fn answered(before: &State, after: &mut State, at: usize, step: Step, met: bool) {
    let claim = after.calls[at].claim;
    let released = before.store.holder(claim).copied();
    let held = match step {
        Step::Release { .. } | Step::HandOver { .. } => released.map_or(0, |holder| holder.lease),
        _ => 0,
    };
    after.calls[at].stage = match step {
        Step::Enter { lease, .. } | Step::TakeUp { lease, .. } if met => Stage::Granted { lease },
        Step::AdoptHolder { .. } if met => {
            let lease = released.map_or(0, |holder| holder.lease);
            after.calls[at].stale |= after.store.leases[usize::from(lease)] != Lease::Fresh;
            Stage::Granted { lease }
        }
        Step::Queue | Step::AdoptWaiter { .. } if met => Stage::Waiting,
        Step::Enter { .. } | Step::Queue | Step::AdoptWaiter { .. } | Step::AdoptHolder { .. } => Stage::Wants,
        Step::TakeUp { .. } => Stage::Waiting,
        Step::Release { .. } | Step::HandOver { .. } if met => Stage::Done,
        // Whatever became of it: it looks again.
        Step::Release { .. } | Step::HandOver { .. } => match released {
            Some(holder) => Stage::Releasing { lease: holder.lease },
            None => Stage::Done,
        },
        _ if met => Stage::Left,
        _ => Stage::Leaving,
    };
    if !met {
        return;
    }
    if matches!(step, Step::Release { .. } | Step::HandOver { .. }) && released.is_some_and(|holder| !holder.adopted) {
        keep(after, at, held);
    }
    if let Step::HandOver { next, lease, .. } = step {
        let next = &mut after.calls[usize::from(next)];
        if next.stage == Stage::Waiting {
            next.stage = Stage::Granted { lease };
        }
    }
}

/// The answer is not waited for any more: the step may have arrived, or still come.
fn give_up(world: &World, state: &State, at: usize, step: Step, session: u8) -> Option<State> {
    let mut after = state.clone();
    after.losses = state.losses.checked_sub(1)?;
    after.calls[at].late.push((step, session));
    after.calls[at].late.sort_unstable();
    let held = |claim| state.store.holder(claim).map(|holder| holder.lease);
    after.calls[at].stage = match step {
        Step::Release { .. } | Step::HandOver { .. } => match held(state.calls[at].claim) {
            Some(lease) => Stage::Releasing { lease },
            None => Stage::Done,
        },
        _ => Stage::Leaving,
    };
    if let Some(lease) = step.lease() {
        match world.flaw {
            // The revocation may come later than the step itself.
            Flaw::RevokesAfterUnknown => after.calls[at].late.push((Step::Revoke { lease }, session)),
            Flaw::PoolsAfterUnknown => after.pools[usize::from(state.calls[at].replica)].push(lease),
            _ => {}
        }
    }
    Some(after)
}

/// Two steps in one request, judged together before either is written. A claim for the tail goes with
/// another step only where no other call is on it.
fn together(world: &World, state: &State, go: impl Fn(Step, Step) -> bool) -> Vec<(Event, State)> {
    let sent = |at: usize| match state.calls[at].stage {
        Stage::Sent((step, session)) if holds(world, state, at, step, session) => Some((at, step)),
        _ => None,
    };
    let sent: Vec<_> = (0..state.calls.len()).filter_map(sent).collect();
    let claims = |at: usize| {
        let claim = state.calls[at].claim;
        state.calls.iter().filter(|call| call.claim == claim).count()
    };
    let mut both = Vec::new();
    for (one, first) in &sent {
        for (two, second) in &sent {
            if one == two || !go(*first, *second) || (*first == Step::Queue && claims(*one) > 1) {
                continue;
            }
            let mut after = state.clone();
            for (at, step) in [(*one, *first), (*two, *second)] {
                act(world, &mut after, at, step);
                answered(state, &mut after, at, step, true);
            }
            both.push((Event::TwoGoTogether, after));
        }
    }
    both
}

/// Time passes for a lease.
fn time(state: &State, at: usize) -> Option<(Event, State)> {
    let lease = at as u8;
    let mut after = state.clone();
    after.times -= 1;
    match state.store.leases[at] {
        Lease::Fresh if !state.believes.contains(&Some(lease)) => {
            after.store.leases[at] = Lease::Stale;
            let handed = state.calls.iter().filter_map(|call| match call.stage {
                Stage::Sent((Step::HandOver { next, lease, .. }, _)) if lease == at as u8 => Some(next),
                _ => None,
            });
            for next in handed {
                after.calls[usize::from(next)].stale = true;
            }
            for call in &mut after.calls {
                let on = match call.stage {
                    Stage::Granted { lease } => Some(lease),
                    Stage::Sent((Step::HandOver { .. }, _)) => None,
                    Stage::Sent((step, _)) => step.lease(),
                    _ => None,
                };
                call.stale |= on == Some(lease);
            }
            Some((Event::ATtlPasses(lease), after))
        }
        Lease::Stale => {
            after.store.end_lease(lease);
            Some((Event::LeaseEnds(lease), after))
        }
        _ => None,
    }
}
