//! Steps that share a request: all are judged before any of them is written.

use super::steps::{Event, Stage};
use super::store::Step;
use super::transactions::{act, answered, holds};
use super::{Flaw, State, World};

/// Which steps on the lock a step may share a request with. The batches of the store allow no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Alone,
    Host,
    Sharer,
    End,
    Tail,
    Removal,
}

/// A key that a step writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Holder(u8),
    Waiter(u8),
    Mark(u8),
}

/// A step that was sent: by its call, and whether the answer is still waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sent {
    at: usize,
    step: Step,
    /// Its place among the steps that were given up.
    late: Option<usize>,
}

/// All requests of several steps that may arrive. Whether a claim has a request id makes no difference: a newcomer,
/// and a call that adopts a waiting claim, are appended beside any step that does not write the same key.
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
    let mut requests: Vec<Vec<Sent>> = vec![Vec::new()];
    for one in sent {
        let more = requests
            .iter()
            .filter(|others| others.iter().all(|other| share(world, state, one, *other)));
        let more: Vec<_> = more.map(|others| [others.as_slice(), &[one]].concat()).collect();
        requests.extend(more);
    }
    requests.retain(|request| request.len() > 1);
    requests
        .iter()
        .map(|request| (Event::GoTogether, arrive(world, state, request)))
        .collect()
}

fn arrive(world: &World, state: &State, request: &[Sent]) -> State {
    let mut after = state.clone();
    // From the last one, so that the places of the others stay.
    for one in request.iter().rev() {
        if let Some(place) = one.late {
            after.calls[one.at].late.remove(place);
        }
    }
    for one in request {
        act(world, &mut after, one.at, one.step);
        if one.late.is_none() {
            answered(world, state, &mut after, one.at, one.step, true);
        }
    }
    after
}

fn share(world: &World, state: &State, one: Sent, other: Sent) -> bool {
    let (keys, others) = (written(state, one), written(state, other));
    let (class, beside) = (class(world, one.step), class(world, other.step));
    let both = |first: fn(Step) -> bool, second: fn(Step) -> bool| {
        first(one.step) && second(other.step) || first(other.step) && second(one.step)
    };
    let flawed = match world.flaw {
        Flaw::TwoGrantsInOneBatch => both(Step::grants_at_once, Step::grants_at_once),
        Flaw::TailsBesideNewcomers => both(|step| step == Step::Queue, Step::grants_at_once),
        Flaw::MarksShare => both(Step::marks, |_| true),
        _ => false,
    };
    !keys.iter().any(|key| others.contains(key)) && (flawed || joins(class, beside) || joins(beside, class))
}

/// Etcd refuses a request that writes a key twice.
fn written(state: &State, Sent { at, step, .. }: Sent) -> Vec<Key> {
    let claim = state.calls[at].claim;
    match step {
        Step::Acquire { .. } | Step::AdoptHolder { .. } | Step::RemoveHolder { .. } | Step::Release { .. } => {
            vec![Key::Holder(claim)]
        }
        Step::Queue | Step::AdoptWaiter { .. } | Step::RemoveWaiter { .. } => vec![Key::Waiter(claim)],
        Step::Promote { .. } => vec![Key::Holder(claim), Key::Waiter(claim)],
        Step::MarkWaiter { .. } | Step::MarkHolder { .. } | Step::MarkAbsent => vec![Key::Mark(at as u8)],
        Step::Revoke { .. } => Vec::new(),
        Step::HandOver { next, .. } => {
            let next = state.calls[usize::from(next)].claim;
            vec![Key::Holder(claim), Key::Holder(next), Key::Waiter(next)]
        }
    }
}

fn class(world: &World, step: Step) -> Class {
    let whole = world.is_exclusive();
    match step {
        Step::Acquire { .. } if !whole => Class::Sharer,
        Step::Release { .. } | Step::RemoveHolder { .. } if !whole => Class::End,
        Step::Acquire { .. }
        | Step::AdoptHolder { .. }
        | Step::MarkWaiter { .. }
        | Step::MarkHolder { .. }
        | Step::MarkAbsent
        | Step::Revoke { .. } => Class::Alone,
        Step::Promote { .. } | Step::HandOver { .. } | Step::Release { .. } | Step::RemoveHolder { .. } => Class::Host,
        Step::Queue | Step::AdoptWaiter { .. } => Class::Tail,
        Step::RemoveWaiter { .. } => Class::Removal,
    }
}

fn joins(class: Class, other: Class) -> bool {
    use Class::{End, Host, Removal, Sharer, Tail};
    matches!(
        (class, other),
        (Removal, _) | (Tail, Tail | Host | End) | (End, End | Sharer)
    )
}
