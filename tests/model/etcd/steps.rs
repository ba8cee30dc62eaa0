//! What may happen next.

use super::deciding::{
    decide, deliver, give_back, hand_over, inspect, leave_settled, leave_unread, release, remove, revoke,
    stop_counting, to,
};
use super::requests::together;
use super::store::{Lease, Step};
use super::transactions::{act, arrive, give_up, holds};
use super::{Flaw, State, World};

/// A call of a client, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Call {
    pub claim: u8,
    pub replica: u8,
    pub stage: Stage,
    /// The revision at which its replica knows it to be queued, so that its undo need not read.
    pub queued: Option<u8>,
    /// A whole TTL has passed since the sign of life that its lease counts from.
    pub stale: bool,
    /// What was given up and may still come, each with the session that it was sent under.
    pub late: Vec<(Step, u8)>,
    /// The leases of what was given up.
    pub lost: Vec<u8>,
    /// When it left, another call had found its hold.
    pub adopted: bool,
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
    ReleaseTarget,
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
    LeavesUnread(usize),
    LeavesWithoutAMark(usize),
    Revokes(usize),
    GoTogether,
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
                then(Event::Looks(at), inspect(world, state, at));
                then(Event::IsCancelled(at), Some(to(state, at, Stage::ReleaseTarget)));
            }
            Stage::Granted { lease } => {
                then(Event::GetsItsAnswer(at), Some(deliver(state, at, lease)));
                then(
                    Event::EndsBeforeItsAnswer(at),
                    Some(to(state, at, Stage::ReleaseTarget)),
                );
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
            Stage::ReleaseTarget => {
                then(Event::Leaves(at), Some(remove(world, state, at)));
                then(Event::LeavesUnread(at), leave_unread(state, at));
                then(Event::LeavesWithoutAMark(at), leave_settled(world, state, at));
            }
            Stage::Left => then(Event::Revokes(at), revoke(world, state, at)),
            Stage::Done => {}
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
    next.extend(together(world, state));
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
