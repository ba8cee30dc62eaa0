//! A form of the protocol of the etcd backend that is NOT to be built: a grant names the next waiters of its server, in
//! order, and a release hands the lock on without a write of its own.
//!
//! The holder's key has the calls of the chain and its head, the index of the one that holds. The server that granted
//! it moves the head, for any number of releases in one write, and answers each release after that. The walk shows what
//! it costs to tell the next call before that write, and that nothing but the wait for it mends that.

use crate::explorer::{Model, Walked, walk};

/// The calls of the chain. Server A serves them, and granted the chain to the first; each client may turn to server B.
const CHAIN: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Form {
    /// When a call is told that it holds.
    tells: Tells,
    /// What server B does with a release of the head.
    elsewhere: Elsewhere,
    /// The server sends a keep-alive before it tells a call.
    keeps_alive: bool,
    /// A move of the head compares the holder's key.
    compares: bool,
    /// Server B is asked whether tokens are held.
    checks: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Tells {
    /// Once the release of the one before it has arrived.
    Ahead,
    /// Once the head is known to be at it.
    AfterTheWrite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Elsewhere {
    /// It moves the head to the next call.
    Moves,
    /// It ends the chain: those who were not told still wait in the queue.
    EndsTheChain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Lease {
    Fresh,
    Stale,
    Dead,
}

/// A client of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Waits,
    Holds,
    /// Its release has arrived at server A, and is not answered.
    Releasing,
    /// It has no answer to its release, or its server is gone.
    Unanswered,
    Done,
}

/// The holder's key: the index of the call that holds. None once another server's claim has the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Holder {
    head: usize,
    modified: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    form: Form,
    chain: Option<Holder>,
    lease: Lease,
    /// The claim of server B has the lock.
    other: bool,
    stages: [Stage; CHAIN],
    is_up: bool,
    /// The key as server A knows it.
    known: Holder,
    /// By call: server A has its release.
    released: [bool; CHAIN],
    /// Moves of the head that were sent: to which call, and judged by which revision.
    sent: Vec<(usize, u8)>,
    times: u8,
    wrong: Option<&'static str>,
}

#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "shown where something is wrong")]
enum Event {
    IsTold(usize),
    Releases(usize),
    GetsNoAnswer(usize),
    ReleasesElsewhere(usize),
    IsCheckedElsewhere(usize),
    SendsAMove(usize),
    MoveArrives(usize),
    SeesTheKey,
    ServerEnds,
    TimePasses,
    LeaseEnds,
    OtherIsGranted,
}

impl State {
    fn told(&self, at: usize) -> bool {
        self.stages[at] != Stage::Waits
    }

    fn move_head(&mut self, to: usize) {
        let modified = self.chain.map_or(0, |chain| chain.modified) + 1;
        self.chain = (to < CHAIN).then_some(Holder { head: to, modified });
    }

    fn tell(&self, at: usize) -> Option<Self> {
        let before = at == 0 || self.released[at - 1] || self.known.head >= at;
        let may = match self.form.tells {
            Tells::Ahead => before,
            Tells::AfterTheWrite => self.known.head == at,
        };
        // A keep-alive is answered only while the lease, and with it the key, is there.
        let alive = self.lease != Lease::Dead && self.chain.is_some() || !self.form.keeps_alive;
        if !(may && alive && self.is_up && self.stages[at] == Stage::Waits && (at == 0 || self.told(at - 1))) {
            return None;
        }
        let mut after = self.clone();
        if self.form.keeps_alive && self.lease != Lease::Dead {
            after.lease = Lease::Fresh;
        }
        after.stages[at] = Stage::Holds;
        Some(after)
    }

    fn release(&self, at: usize) -> Self {
        let mut after = self.clone();
        after.stages[at] = if self.is_up {
            Stage::Releasing
        } else {
            Stage::Unanswered
        };
        after.released[at] |= self.is_up;
        after
    }

    /// Server A moves the head behind all that have released.
    fn send(&self) -> Option<(usize, Self)> {
        let to = (self.known.head..CHAIN).find(|at| !self.released[*at]).unwrap_or(CHAIN);
        let next = (to, self.known.modified);
        if !self.is_up || to == self.known.head || self.sent.contains(&next) {
            return None;
        }
        let mut after = self.clone();
        after.sent.push(next);
        after.sent.sort_unstable();
        Some((to, after))
    }

    fn arrive(&self, place: usize) -> Self {
        let mut after = self.clone();
        let (to, judged_by) = after.sent.remove(place);
        let is_same = self.chain.is_some_and(|chain| chain.modified == judged_by);
        if is_same || (!self.form.compares && self.chain.is_some()) {
            after.move_head(to);
        }
        after
    }

    /// Server A sees the key by its answers and its watch, and answers the releases that are written.
    fn see(&self) -> Option<Self> {
        let mut after = self.clone();
        let gone = Holder {
            head: CHAIN,
            modified: u8::MAX,
        };
        after.known = self.chain.unwrap_or(gone);
        for at in 0..after.known.head {
            if after.stages[at] == Stage::Releasing {
                after.stages[at] = Stage::Done;
            }
        }
        (self.is_up && after.known != self.known).then_some(after)
    }

    fn release_elsewhere(&self, at: usize) -> Self {
        let mut after = self.clone();
        after.stages[at] = Stage::Done;
        // Its lease proves that all before it have ended.
        if self.chain.is_some_and(|chain| chain.head <= at) {
            match self.form.elsewhere {
                Elsewhere::Moves => {
                    after.move_head(at + 1);
                    if !self.is_up && self.stages.get(at + 1) == Some(&Stage::Waits) {
                        after.wrong = Some("a lock that was released is kept for a call whose server has ended");
                    }
                }
                Elsewhere::EndsTheChain => after.move_head(CHAIN),
            }
        }
        after
    }

    /// Server B answers whether the token of this call is held.
    fn check(&self, at: usize) -> Option<Self> {
        let held = self.chain.is_some_and(|chain| chain.head == at);
        let later = (at + 1..CHAIN).any(|later| self.told(later));
        let mut after = self.clone();
        after.wrong = Some("a token was said to be held after a later one was given");
        (held && later && self.form.checks).then_some(after)
    }

    fn end_server(&self) -> Self {
        let mut after = self.clone();
        after.is_up = false;
        for stage in &mut after.stages {
            if *stage == Stage::Releasing {
                *stage = Stage::Unanswered;
            }
        }
        after
    }
}

impl Model for State {
    type Event = Event;

    fn next(&self) -> Vec<(Event, Self)> {
        let mut next = Vec::new();
        let mut then = |what, after: Option<Self>| next.extend(after.map(|after| (what, after)));
        for at in 0..CHAIN {
            then(Event::IsTold(at), self.tell(at));
            then(Event::IsCheckedElsewhere(at), self.check(at));
            match self.stages[at] {
                Stage::Holds => then(Event::Releases(at), Some(self.release(at))),
                Stage::Releasing => {
                    let mut after = self.clone();
                    after.stages[at] = Stage::Unanswered;
                    then(Event::GetsNoAnswer(at), Some(after));
                }
                Stage::Unanswered => then(Event::ReleasesElsewhere(at), Some(self.release_elsewhere(at))),
                Stage::Waits | Stage::Done => {}
            }
        }
        if let Some((to, after)) = self.send() {
            then(Event::SendsAMove(to), Some(after));
        }
        for place in 0..self.sent.len() {
            then(Event::MoveArrives(self.sent[place].0), Some(self.arrive(place)));
        }
        then(Event::SeesTheKey, self.see());
        if self.is_up {
            then(Event::ServerEnds, Some(self.end_server()));
        }
        let believed = self.stages.contains(&Stage::Holds);
        if self.times > 0 && self.lease == Lease::Fresh && !believed {
            let mut after = self.clone();
            (after.lease, after.times) = (Lease::Stale, self.times - 1);
            then(Event::TimePasses, Some(after));
        }
        if self.lease == Lease::Stale {
            let mut after = self.clone();
            (after.lease, after.chain) = (Lease::Dead, None);
            then(Event::LeaseEnds, Some(after));
        }
        if self.chain.is_none() && !self.other {
            let mut after = self.clone();
            after.other = true;
            then(Event::OtherIsGranted, Some(after));
        }
        next
    }

    fn wrong(&self) -> Option<&'static str> {
        let believe = self.stages.iter().filter(|stage| **stage == Stage::Holds).count() + usize::from(self.other);
        if believe > 1 {
            Some("two believe that they hold")
        } else {
            self.wrong
        }
    }
}

fn explore(form: Form) -> Walked {
    let first = Holder { head: 0, modified: 1 };
    let start = State {
        form,
        chain: Some(first),
        lease: Lease::Fresh,
        other: false,
        stages: [Stage::Holds, Stage::Waits, Stage::Waits],
        is_up: true,
        known: first,
        released: [false; CHAIN],
        sent: Vec::new(),
        times: 2,
        wrong: None,
    };
    walk(start, 2_000_000)
}

/// What was proposed.
const AHEAD: Form = Form {
    tells: Tells::Ahead,
    elsewhere: Elsewhere::Moves,
    keeps_alive: true,
    compares: true,
    checks: false,
};

/// The form without a fault, in which each hand-over takes a write.
const WRITTEN: Form = Form {
    tells: Tells::AfterTheWrite,
    elsewhere: Elsewhere::EndsTheChain,
    checks: true,
    ..AHEAD
};

#[test]
fn a_call_told_ahead_of_the_write_makes_another_server_confirm_an_old_token() {
    explore(Form { checks: true, ..AHEAD }).is_noticed("after a later one was given");
}

#[test]
fn a_call_that_may_have_been_told_keeps_a_released_lock_after_its_server_has_ended() {
    explore(AHEAD).is_noticed("whose server has ended");
}

#[test]
fn a_chain_that_another_server_ends_is_taken_from_a_call_that_was_told_ahead() {
    let elsewhere = Elsewhere::EndsTheChain;
    explore(Form { elsewhere, ..AHEAD }).is_noticed("two believe");
}

#[test]
fn a_call_told_after_the_write_is_safe() {
    explore(WRITTEN).is_sound(100);
}

#[test]
fn a_call_told_without_a_keep_alive_is_noticed() {
    let keeps_alive = false;
    explore(Form { keeps_alive, ..WRITTEN }).is_noticed("two believe");
}

#[test]
fn a_head_that_is_moved_without_a_look_at_it_is_noticed() {
    let compares = false;
    explore(Form { compares, ..WRITTEN }).is_noticed("after a later one was given");
}
