//! The protocol of the record engine on one lock: servers that cache the lock's root, run verbs on a copy of it, and
//! commit the copy if the root still has the version that they have read and the lock's clock is within the guards.
//! Commits come late or never, answers are lost, servers die or are taken for dead, idle roots are removed, the store's
//! clock goes back, a server's estimate of it is ahead.
//!
//! The code is `core/src/backend/record`, and `core/src/queue` for the verbs:
//!
//! | step of the model | what it stands for |
//! | --- | --- |
//! | `Root::acquire`, `promote`, `step` | `LockState::acquire` and `adopt`, `promote`, `undo`, `release_hold`, `renew` |
//! | `Draft::run` | `draft::run`: `Step::end_expired`, `end_lost` (of a dead server), `verb`; `Step::cancel` leaves the mark |
//! | `State::send` | `Worker::take`, `draft`, `commit_of`; a write or a check as in `run_batch` |
//! | `State::apply`, `compare` | `RecordStore::commit`; of a commit that checks: the read of `Worker::check` |
//! | `State::stamp` | `LockRecord::resolve` |
//! | `State::arrive`, `lose`, `settle`, `send_again` | `Worker::settle` and `outcome` |
//! | `State::conclude` | `Worker::applied`, `check`, `refused`; `Draft::answer_releases` if it was overwritten |
//! | `State::answer` | `Draft::answer` |
//! | `Server::add_unsettled`, `adopt` | `Unsettled::add`, `found` |
//! | `Server::stands_still` | `Cached::stands_still` |
//! | `Event::Forgets` | `Worker::load`: a root that is not fresh is assumed to be absent |
//! | `Event::Promotes` | `local::compare`, `tell_next`, `tasks::hear` |
//! | `Event::Looks` | `Core::look` once `Liveness::is_dead` |
//! | `State::remove` | `tasks::sweep_some`, `RecordStore::remove` |
//!
//! Time is abstract: a lease lasts 2 ticks, a commit is late after 2, and a root idle after 3. A client counts on its
//! lease until first sending + TTL, which is the least that `sent + waited + ttl` may be. An end that a reader could see
//! counts as shown. Not in the model: shared and semaphore claims, re-entry, reservations (they only refuse), messages,
//! eligible claims without a waiting call, data that goes back, a second lock. Ended holds are remembered in the root:
//! a part that has them is immutable and named by the root, so it is the same. Since the root has all claims, no
//! renewal writes a part alone.

use crate::explorer::{Model, Running, Walked, walk};

mod engine;
mod events;
mod laws;
mod root;
mod store;
mod worlds;

use events::Event;
use store::State;

/// A way to break the protocol; the walk must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flaw {
    None,
    /// Rule 1. A version is the last one + 1, and 1 for a lock without a root.
    VersionsAreCounted,
    /// Rule 2. A first write does not ask that there is no root.
    FirstWriteIsBlind,
    /// Rule 3. A commit has no latest time.
    NoLatestTime,
    /// Rule 4. A batch that changes nothing is not written, although an earlier commit may still take effect.
    NoFenceWrite,
    /// Rule 5. A commit that expects no root counts as settled once a root was found.
    PresenceSettlesAbsence,
    /// Rule 6. A try takes another call's waiting claim out without a mark.
    TryLeavesNoMark,
    /// Rule 7. A read shows the end of a lease without committing it.
    ShowsUncommittedEnds,
    /// Rule 8. `waited` counts to the last sending of a commit.
    WaitedToTheLastSending,
    /// Rule 9. A server sends a commit before the last one was answered.
    TwoInFlight,
    /// A commit that was not answered counts as one without effect.
    UnknownIsFailed,
    /// A commit that was not answered counts as applied.
    UnknownIsApplied,
    /// A renewal whose commit was refused does not run again: its lease counts as gone.
    RefusedIsGone,
    /// An acquire that runs again does not look for the claim of its call.
    AcquireIsNotIdempotent,
    /// A commit that takes a lease for held is applied after the lease's end.
    NoNotAfter,
    /// A commit that takes a lease for ended is applied before the lease's end.
    NoNotBefore,
    /// A lease ends its TTL after the server's estimate of the lock's clock, not after the stamp of the commit.
    EndsAtTheEstimate,
    /// Verbs are answered when their commit is sent.
    AnsweredBeforeTheCommit,
    /// A batch that changes nothing is answered from the cache.
    ReadsTheCache,
    /// The lock's clock is the store's clock.
    ClockGoesBack,
    /// A token is the store's time, whatever the last one was.
    TokenIsTheTime,
    /// An idle root is removed without a floor of tokens.
    RemovalLeavesNoFloor,
    /// A first write does not compare the floor that its token was drawn above.
    FirstWriteIgnoresTheFloor,
    UndoIgnoresCall,
    UndoIgnoresAdoption,
    AdoptionIsNotWritten,
    ReleasesAnyToken,
    /// A lock's clock that stands still, because the store's clock went back, is left so by a batch that changes nothing.
    LeavesTheClock,
}

/// What may happen a limited number of times.
#[derive(Debug, Clone, Copy)]
pub enum Chance {
    /// An answer is lost.
    Loss,
    /// Time passes.
    Tick,
    Death,
    /// A cached root is too old: its server assumes that there is none.
    Forget,
    /// An idle root is removed.
    Removal,
    /// The store's clock goes back by 2.
    StepBack,
    Renewal,
    /// A server's estimate of the lock's clock is ahead by 1.
    FastEstimate,
    /// A living server is taken for dead.
    Misjudgement,
    /// A server is asked for the state of the lock.
    Read,
}

/// How many kinds of chances there are.
const CHANCES: usize = Chance::Read as usize + 1;

/// What takes part.
#[derive(Debug, Clone, Copy)]
pub struct World {
    pub flaw: Flaw,
    /// Each call: its claim, its server, whether it is a try.
    pub calls: &'static [(u8, u8, bool)],
    pub chances: [u8; CHANCES],
    /// Where a read shows that an unanswered commit was not applied yet, its verbs run again at once, as if a copy of it
    /// had been refused by its guards; otherwise the same bytes are sent again.
    pub anew: bool,
}

impl World {
    const fn of(calls: &'static [(u8, u8, bool)]) -> Self {
        Self {
            flaw: Flaw::None,
            calls,
            chances: [0; CHANCES],
            anew: false,
        }
    }

    const fn with(mut self, what: Chance, times: u8) -> Self {
        self.chances[what as usize] = times;
        self
    }

    const fn anew(self) -> Self {
        Self { anew: true, ..self }
    }

    fn has(&self, what: Chance) -> bool {
        self.chances[what as usize] > 0
    }

    fn claim(&self, call: u8) -> u8 {
        self.calls[usize::from(call)].0
    }

    fn server(&self, call: u8) -> u8 {
        self.calls[usize::from(call)].1
    }
}

impl Model for Running<World, State> {
    type Event = Event;

    fn next(&self) -> Vec<(Event, Self)> {
        let world = self.world;
        let next = events::next(&world, &self.state).into_iter();
        next.map(|(event, state)| (event, Self { world, state })).collect()
    }

    fn wrong(&self) -> Option<&'static str> {
        self.state.wrong(&self.world)
    }
}

fn explore(world: World) -> Walked {
    let state = State::new(&world);
    walk(Running { world, state }, 8_000_000)
}
