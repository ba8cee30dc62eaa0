//! The protocol of the tree engine on one lock: calls of two replicas, a claim and its retries, and others;
//! steps that come late or never, answers that are lost, sessions that end or are given up, replicas that crash.
//!
//! `src/backend/tree/protocol.md` has the nodes, the steps, their conditions, and the mutants that show why. Here the `l`
//! of a lock has holders `h` and waiters `q`, one path for each call. A step is answered, or its answer is lost, or it takes
//! effect late or never.
//!
//! Time is abstract. A client is sure of a version of its `h` until it says that its time is over. A replica that saw a
//! version for a whole TTL began after that was written, so all that rests on it or on an older one has ended by then:
//! that is what `Elapses` asks for. Reads are of the present state; what was read is used in a later step. Where a step
//! is sent again with what is read anew until it is refused no more (release, renewal, undo, expiry, adoption of a
//! holder), read and step are one, unless `reads_apart` asks for both.

use std::cell::Cell;

use crate::explorer::{Model, Walked, walk};

mod calls;
mod clients;
mod effects;
mod events;
mod laws;
mod lease;
mod mutants;
mod settle;
mod state;
mod tokens;
mod worlds;

use events::Event;
use state::State;

/// A way to break the protocol; the walk must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A step of unknown outcome is settled by a look alone: the fence is not raised.
    RaisesNoFence,
    /// The look that settles comes before the fence is raised.
    LooksFirst,
    /// Steps do not check the fence.
    StepsIgnoreTheFence,
    /// The removal of a call that does not wait is not fenced.
    TriesIgnoreTheFence,
    /// A new session leaves the old fence.
    OldFenceStays,
    /// An expiry deletes whatever version is there.
    ExpiryIgnoresTheVersion,
    /// One timer, whatever version is there.
    WatchesAnyVersion,
    /// Only the replica that granted a lease watches over it.
    OnlyOwnLeasesExpire,
    /// A renewal creates its node anew.
    RenewalCreates,
    /// An undo removes its own holder though a retry has found it.
    UndoIgnoresAdoption,
    /// An undo reads the mark of the adoption, and removes without the version.
    UndoIgnoresTheVersion,
    /// An undo removes whatever its claim holds.
    UndoRemovesAny,
    /// One path for each claim, not for each call.
    OnePathForEachClaim,
    /// A call that acquires again uses its path again.
    UsesItsPathAgain,
    /// An empty lock is taken by its version.
    TakesAnEmptyLockByItsVersion,
    /// Claims that fit join the holders without a place in the queue.
    JoinsWithoutQueueing,
    /// A waiter is promoted by a list from before its own place.
    JudgesByAnEarlierList,
    /// No node of the request keeps its calls apart.
    NoRequestNode,
    /// An adopted waiter goes to the tail.
    AdoptionLosesThePlace,
    /// A retry that finds a holder is answered a TTL without a write.
    AdoptsWithoutRenewing,
    /// Two steps that grant share a `multi`.
    TwoGrantsShare,
    /// A watch is set without a look whether its node is there.
    WatchesBlindly,
    /// The list that is judged is not the one that sets the watch.
    JudgesAnotherList,
    /// A call whose grant was not answered grants itself anew though a retry has found the holder.
    GrantsAgainOverAnAdoption,
    /// A promotion does not name its own waiter.
    PromotesAnyWaiter,
    /// A waiter is moved to a new session though it has gone meanwhile.
    MovesAnyWaiter,
    /// A waiter is judged by its own limit, whatever smaller ones are ahead.
    IgnoresSmallerLimits,
    /// A waiter behind several holders watches one of them.
    WatchesOneHolder,
    /// Harmless: a release promotes its next though its own holder is gone.
    #[cfg_attr(not(feature = "soak"), allow(dead_code, reason = "shown in a long run"))]
    NextNeedsNoHolder,
    /// Harmless: the call that a release promotes does not count that as a step of its own.
    #[cfg_attr(not(feature = "soak"), allow(dead_code, reason = "shown in a long run"))]
    NextIsNotItsStep,
}

/// The permits of a claim, and the limit that it allows.
pub type Share = (u8, u8);
pub const EXCLUSIVE: Share = (9, 9);
pub const SHARED: Share = (1, 9);

/// What takes part.
#[derive(Debug, Clone, Copy)]
pub struct World {
    pub flaws: &'static [Flaw],
    /// Each call: its claim, its replica.
    pub calls: &'static [(u8, u8)],
    pub shares: [Share; state::CLAIMS],
    /// Bit by claim: it has a request id. Bit by call: it does not wait.
    pub request_ids: u8,
    pub tries: u8,
    /// How often it may happen.
    pub crashes: u8,
    pub session_ends: u8,
    pub session_switches: u8,
    pub forced: u8,
    pub renewals: u8,
    pub release_retries: u8,
    /// Waiters are woken by watches, not by every change.
    pub watches: bool,
    pub batches: bool,
    /// A client asks again before its first call has ended.
    pub hedges: bool,
    pub reads_apart: bool,
    /// A call whose grant was not answered grants itself anew: its token may be one from before the connection was fenced.
    pub grants_again: bool,
}

impl World {
    pub fn has(&self, flaw: Flaw) -> bool {
        self.flaws.contains(&flaw)
    }
}

/// What happened on the way, so that a world shows that it can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    AdoptedAHolder,
    AdoptedAWaiter,
    AdoptedAndPromoted,
    ReleasedWithNext,
    TookEffectLate,
    WasFenced,
    Expired,
    ExpiryMetANewerVersion,
    Renewed,
    UndidAHolder,
    UndoMetAnAdoption,
    TookAnEmptyLock,
    MovedAWaiter,
    RemovedATry,
    GrantedAgain,
    Batched,
    UnknownReleasePromoted,
}

/// The protocol in one world.
pub struct Protocol {
    world: World,
    /// A read and the step that is judged by it are two events: a version that changes in between is what these flaws
    /// are about.
    reads_apart: bool,
    reached: Cell<u32>,
}

impl Protocol {
    fn new(world: World) -> Self {
        const APART: [Flaw; 6] = [
            Flaw::AdoptsWithoutRenewing,
            Flaw::OnePathForEachClaim,
            Flaw::UndoIgnoresTheVersion,
            Flaw::UndoRemovesAny,
            Flaw::ExpiryIgnoresTheVersion,
            Flaw::WatchesAnyVersion,
        ];
        Self {
            world,
            reads_apart: world.reads_apart || APART.iter().any(|flaw| world.has(*flaw)),
            reached: Cell::new(0),
        }
    }

    fn reach(&self, what: Reached) {
        self.reached.set(self.reached.get() | 1 << what as u32);
    }
}

#[derive(Clone)]
struct Running<'p> {
    protocol: &'p Protocol,
    state: State,
}

impl std::hash::Hash for Running<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.state.hash(state);
    }
}

impl Model for Running<'_> {
    type Event = Event;

    fn next(&self) -> Vec<(Event, Self)> {
        let protocol = self.protocol;
        let happens = |event: Event| {
            let state = protocol.next(&self.state, event)?;
            Some((event, Self { protocol, state }))
        };
        protocol.events(&self.state).into_iter().filter_map(happens).collect()
    }

    fn wrong(&self) -> Option<&'static str> {
        self.protocol.wrong(&self.state)
    }
}

/// What a walk through a world found.
struct Explored {
    walked: Walked,
    reached: u32,
}

impl Explored {
    /// All is well, in more states than this, and all of this happened.
    fn is_sound(&self, more_than: usize, reached: &[Reached]) {
        self.walked.is_sound(more_than);
        for what in reached {
            assert!(self.reached >> *what as u32 & 1 == 1, "it never happened: {what:?}");
        }
    }

    fn is_noticed(&self, by: &str) {
        self.walked.is_noticed(by);
    }
}

fn explore(world: World) -> Explored {
    explore_at_most(world, 20_000_000)
}

fn explore_at_most(world: World, most: usize) -> Explored {
    let protocol = Protocol::new(world);
    let start = Running {
        protocol: &protocol,
        state: protocol.begin(),
    };
    Explored {
        walked: walk(start, most),
        reached: protocol.reached.get(),
    }
}

/// Walks through so many states of a world that has more.
#[cfg(feature = "soak")]
fn explore_nearest(world: World, most: usize) {
    let walked = explore_at_most(world, most).walked;
    assert!(matches!(walked, Walked::Endless), "{walked:#?}");
}
