//! The conditions of each transaction.

use super::store::{KeySuffix, Request, Step};
use super::{Flaw, Kind, State, World};

/// A condition of a transaction. A flaw may leave one out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Condition {
    /// `session/<id>` is there. A put on the session's lease needs no such condition, for etcd refuses it.
    Session,
    /// `mark/<call>` is absent.
    Mark,
    /// `request/<id>` is absent.
    Request,
    /// The holders allow the claim.
    Holders,
    /// No waiter is there that was not seen.
    Waiters,
    /// The waiter's key is as it was read.
    Waiter,
    /// The holder's key is as it was read.
    Holder,
    /// The holder's key is the only one.
    Alone,
    /// The key of the next waiter is as it was read.
    Next,
}

/// The conditions of a step, each with whether it is met.
fn conditions(world: &World, state: &State, at: usize, step: Step, session: u8) -> Vec<(Condition, bool)> {
    use Condition::{Alone, Holder, Holders, Mark, Next, Request, Session, Waiter, Waiters};
    let (store, call, id) = (&state.store, &state.calls[at], at as u8);
    let lives = session == store.sessions[usize::from(call.replica)];
    let unmarked = (Mark, !store.is_marked(id));
    let unasked = (Request, store.request(call.claim).is_none());
    let waiter = |suffix: KeySuffix, modified| store.waiter(suffix).is_some_and(|waiter| waiter.modified == modified);
    let holder = |suffix: KeySuffix, modified| store.holder(suffix).is_some_and(|holder| holder.modified == modified);
    let guard = |seen| {
        let allows = |other: &super::store::Holder| match (world.kind(call.claim), world.kind(other.claim)) {
            (Kind::Reader, Kind::Reader) => true,
            (Kind::Semaphore, Kind::Semaphore) => other.created <= seen,
            _ => false,
        };
        (Holders, store.holders.iter().all(allows))
    };
    match step {
        Step::Enter { seen, .. } => {
            let semaphore = world.kind(call.claim) == Kind::Semaphore;
            let queue = store.waiters.iter().all(|waiter| semaphore && waiter.created <= seen);
            vec![(Session, lives), unmarked, unasked, guard(seen), (Waiters, queue)]
        }
        Step::Queue { .. } => vec![unmarked, unasked],
        Step::AdoptWaiter { suffix, modified } => vec![unmarked, (Waiter, waiter(suffix, modified))],
        Step::AdoptHolder { suffix, modified } => vec![(Session, lives), unmarked, (Holder, holder(suffix, modified))],
        Step::Promote {
            suffix, modified, seen, ..
        } => vec![
            (Session, lives),
            unmarked,
            (Waiter, waiter(suffix, modified)),
            guard(seen),
        ],
        Step::UndoWaiter { suffix, modified } => vec![(Waiter, waiter(suffix, modified))],
        Step::UndoHolder { suffix, modified } | Step::Release { suffix, modified } => {
            vec![(Holder, holder(suffix, modified))]
        }
        Step::Mark | Step::Revoke { .. } => Vec::new(),
        Step::HandOver {
            suffix,
            modified,
            next,
            next_suffix,
            next_modified,
            ..
        } => vec![
            (Session, lives),
            (Mark, !store.is_marked(next)),
            (Holder, holder(suffix, modified)),
            // Nobody else can be beside an exclusive holder, so only the others ask for it.
            (
                Alone,
                world.kind(call.claim) == Kind::Exclusive || store.holders.len() == 1,
            ),
            (Next, waiter(next_suffix, next_modified)),
        ],
    }
}

/// Whether etcd executes a step: the leases that it names live, and its conditions are met.
pub fn holds(world: &World, state: &State, at: usize, step: Step, session: u8) -> bool {
    let replica = state.calls[at].replica;
    let on_session = matches!(step, Step::Queue { .. } | Step::AdoptWaiter { .. } | Step::Mark);
    let lives = !on_session || session == state.store.sessions[usize::from(replica)];
    let alive = step.lease().is_none_or(|lease| state.store.is_alive(lease));
    let own = match step {
        Step::Promote { suffix, .. } => state.store.waiter(suffix).is_some_and(|waiter| waiter.call == at as u8),
        Step::HandOver { .. } => true,
        _ => false,
    };
    let unfenced = own && world.flaw == Flaw::NoFenceOfOwn;
    let needed = |condition| {
        let fence = matches!(condition, Condition::Session | Condition::Mark);
        world.flaw != Flaw::Without(step.kind(), condition) && !(fence && unfenced)
    };
    let mut all = conditions(world, state, at, step, session).into_iter();
    lives && alive && all.all(|(condition, met)| met || !needed(condition))
}

/// A transaction, whatever its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepKind {
    Enter,
    Queue,
    AdoptWaiter,
    AdoptHolder,
    Promote,
    UndoWaiter,
    UndoHolder,
    Mark,
    Release,
    HandOver,
    Revoke,
}

impl Step {
    pub fn kind(self) -> StepKind {
        match self {
            Self::Enter { .. } => StepKind::Enter,
            Self::Queue { .. } => StepKind::Queue,
            Self::AdoptWaiter { .. } => StepKind::AdoptWaiter,
            Self::AdoptHolder { .. } => StepKind::AdoptHolder,
            Self::Promote { .. } => StepKind::Promote,
            Self::UndoWaiter { .. } => StepKind::UndoWaiter,
            Self::UndoHolder { .. } => StepKind::UndoHolder,
            Self::Mark => StepKind::Mark,
            Self::Release { .. } => StepKind::Release,
            Self::HandOver { .. } => StepKind::HandOver,
            Self::Revoke { .. } => StepKind::Revoke,
        }
    }
}

/// The records of a claim, and the one that its request names.
pub fn misplaced(world: &World, state: &State) -> Option<&'static str> {
    let store = &state.store;
    for claim in 0..store.requests.len() as u8 {
        if !world.is_retryable(claim) {
            continue;
        }
        let waiting: Vec<_> = store.waiters.iter().filter(|waiter| waiter.claim == claim).collect();
        let holding: Vec<_> = store.holders.iter().filter(|holder| holder.claim == claim).collect();
        if waiting.len() + holding.len() > 1 {
            return Some("a request has two claims");
        }
        let waits = waiting.first().map(|waiter| Request::Waits {
            suffix: waiter.suffix,
            replica: waiter.replica,
        });
        let holds = holding.first().map(|holder| Request::Holds { suffix: holder.suffix });
        let request = store.request(claim);
        let named = match (waits.or(holds), request) {
            (None, Some(Request::Waits { .. })) => false,
            (None, _) => true,
            (claim, request) => claim == request,
        };
        if !named {
            return Some("a request does not name its claim");
        }
    }
    None
}
