//! Steps that share a request: all are judged before any of them is written.

use super::calls::Stage;
use super::conditions::holds;
use super::effects::{act, answered};
use super::events::Event;
use super::store::{KeySuffix, Step};
use super::{Flaw, State, World};

/// A key that a step writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Holder(KeySuffix),
    Waiter(KeySuffix),
    Request(u8),
}

/// A step that was sent: by its call, and its place among the steps that were given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sent {
    at: usize,
    step: Step,
    late: Option<usize>,
}

/// All requests of two steps that may arrive.
pub fn together(world: &World, state: &State) -> Vec<(Event, State)> {
    let mut sent = Vec::new();
    for (at, call) in state.calls.iter().enumerate() {
        let mut then = |step, session, late| {
            if holds(world, state, at, step, session) {
                sent.push(Sent { at, step, late });
            }
        };
        if let Stage::Sent((step, session)) = call.stage {
            then(step, session, None);
        }
        for (place, (step, session)) in call.late.iter().enumerate() {
            then(*step, *session, Some(place));
        }
    }
    let mut both = Vec::new();
    for (place, one) in sent.iter().enumerate() {
        for other in &sent[place + 1..] {
            if share(world, state, *one, *other) {
                let what = Event::GoTogether(one.at, one.step, other.at, other.step);
                both.push((what, arrive(world, state, &[*one, *other])));
            }
        }
    }
    both
}

fn arrive(world: &World, state: &State, request: &[Sent]) -> State {
    let mut after = state.clone();
    for one in request {
        if one.late.is_some() {
            let late = &mut after.calls[one.at].late;
            let place = late
                .iter()
                .position(|(step, _)| *step == one.step)
                .expect("it is there");
            late.remove(place);
        }
    }
    for one in request {
        act(world, state, &mut after, one.at, one.step);
        if one.late.is_none() {
            answered(world, state, &mut after, one.at, one.step, true);
        }
    }
    after
}

/// At most one grant of a lock, and no key that is written twice.
fn share(world: &World, state: &State, one: Sent, other: Sent) -> bool {
    let (keys, others) = (written(world, state, one), written(world, state, other));
    let grants = [one.step, other.step].iter().all(|step| step.lease().is_some());
    let revokes = [one.step, other.step]
        .iter()
        .any(|step| matches!(step, Step::Revoke { .. }));
    !revokes && !keys.iter().any(|key| others.contains(key)) && (!grants || world.flaw == Flaw::TwoGrantsShare)
}

/// Etcd refuses a request that writes a key twice.
fn written(world: &World, state: &State, Sent { at, step, .. }: Sent) -> Vec<Key> {
    let claim = state.calls[at].claim;
    let request = |claim| match world.is_retryable(claim) && world.flaw != Flaw::RequestsAreNotWritten {
        true => vec![Key::Request(claim)],
        false => Vec::new(),
    };
    let (keys, mut more) = match step {
        Step::Enter { suffix, .. } | Step::UndoHolder { suffix, .. } | Step::Release { suffix, .. } => {
            (vec![Key::Holder(suffix)], request(claim))
        }
        Step::AdoptHolder { suffix, .. } => (vec![Key::Holder(suffix)], Vec::new()),
        Step::Queue { suffix } | Step::AdoptWaiter { suffix, .. } | Step::UndoWaiter { suffix, .. } => {
            (vec![Key::Waiter(suffix)], request(claim))
        }
        Step::Promote { suffix, .. } => (vec![Key::Holder(suffix), Key::Waiter(suffix)], request(claim)),
        Step::Mark | Step::Revoke { .. } => (Vec::new(), Vec::new()),
        Step::HandOver {
            suffix,
            next,
            next_suffix,
            ..
        } => {
            let next = state.calls[usize::from(next)].claim;
            let keys = vec![Key::Holder(suffix), Key::Holder(next_suffix), Key::Waiter(next_suffix)];
            (keys, [request(claim), request(next)].concat())
        }
    };
    more.extend(keys);
    more
}
