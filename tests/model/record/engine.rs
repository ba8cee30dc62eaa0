//! The servers: a batch of verbs on the cached root, its commit, and how a commit is settled.

use super::root::{Draft, Outcome, Root, TTL, Verb};
use super::store::{Commit, State};
use super::{Chance, Flaw, World, laws};

/// A commit that comes later than so long after it was computed is refused. It is less than the time after which an idle
/// root is removed.
const LATEST: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Stage {
    #[default]
    Wants,
    /// An acquire or a promote is with the server.
    Asked,
    Waits,
    Holds,
    /// A release is with the server; the client counts on nothing.
    Releasing,
    /// Its client has gone; an undo is with the server.
    Leaving,
    /// Its undo was answered.
    Left,
    /// It ended in another way.
    Over,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Call {
    pub stage: Stage,
    pub token: u8,
    /// Its client counts on the lock before this time.
    pub until: u8,
    pub is_renewing: bool,
}

/// The commit of a batch that is not settled.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Flight {
    pub commit: Commit,
    pub batch: Vec<Verb>,
    pub outcomes: Vec<(Verb, Outcome)>,
    first_sent: u8,
    last_sent: u8,
    /// Whether the last sending will not be answered.
    pub is_lost: bool,
    /// Whether a read has shown since that it may still take effect: it is sent again.
    pub is_read: bool,
    /// Whether any will not be.
    pub is_unknown: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Server {
    pub is_dead: bool,
    pub cache: Root,
    pub queue: Vec<Verb>,
    pub flight: Option<Flight>,
    /// The version from which a commit of unknown outcome may still take effect.
    pub unsettled: Option<u8>,
    /// Whether one that expects no root may.
    pub is_absence_unsettled: bool,
    /// Whether it has found the store's clock before the stamp of the cached root.
    pub stands_still: bool,
}

/// What became of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settled {
    Applied,
    /// It took effect, and others have since.
    Overwritten,
    Refused,
}

impl Server {
    /// Whether the answer to this commit settles the flight.
    pub fn waits_for(&self, commit: &Commit) -> bool {
        let is_same = |flight: &Flight| flight.commit.root.version == commit.root.version;
        !commit.unheard && self.flight.as_ref().is_some_and(is_same)
    }

    /// Remembers that a commit which expects this version may still take effect.
    fn add_unsettled(&mut self, expected: u8) {
        match expected {
            0 => self.is_absence_unsettled = true,
            version => self.unsettled = Some(version),
        }
    }

    /// Takes over a root that was found.
    fn adopt(&mut self, root: Root, flaw: Flaw) {
        self.unsettled.take_if(|version| *version != root.version);
        self.is_absence_unsettled &= flaw != Flaw::PresenceSettlesAbsence || root.version == 0;
        self.cache = root;
    }
}

impl State {
    fn server(&mut self, at: u8) -> &mut Server {
        &mut self.servers[usize::from(at)]
    }

    /// Runs the verbs in a server's queue at this estimate of the lock's clock, and sends their commit. The acquires and
    /// promotes whose callers have left are dropped.
    pub fn send(&mut self, world: &World, at: u8, estimate: u8) {
        let flaw = world.flaw;
        let (now, time, version) = (self.now(), self.time, self.next_version);
        let mut batch = std::mem::take(&mut self.server(at).queue);
        batch.retain(|verb| match verb {
            Verb::Acquire(call) | Verb::Promote(call) => self.call(*call).stage == Stage::Asked,
            _ => true,
        });
        if batch.is_empty() {
            return;
        }
        let server = self.server(at);
        let mut draft = Draft::run(world, &server.cache, estimate, &batch);
        let expected = server.cache.version;
        draft.root.version = match flaw {
            Flaw::VersionsAreCounted => expected + 1,
            _ => version,
        };
        draft.root.add_to_log(draft.root.version);
        let is_unsettled = server.unsettled.is_some() || server.is_absence_unsettled;
        let stands_still = server.stands_still && flaw != Flaw::LeavesTheClock;
        let checks = !draft.changed && !stands_still && (!is_unsettled || flaw == Flaw::NoFenceWrite);
        let mut commit = Commit {
            server: at,
            expected,
            root: draft.root,
            not_before: draft.not_before,
            not_after: draft.not_after,
            latest: now + LATEST,
            floor: server.cache.token,
            estimate,
            checks,
            shows: checks && batch.contains(&Verb::Inspect),
            unheard: false,
        };
        match flaw {
            Flaw::NoNotBefore => commit.not_before = 0,
            Flaw::NoNotAfter => commit.not_after = u8::MAX,
            Flaw::NoLatestTime => commit.latest = u8::MAX,
            _ => {}
        }
        if !world.has(Chance::StepBack) {
            // Removals of other locks may have raised the floor that this server knows.
            commit.floor = u8::MAX;
        }
        server.flight = Some(Flight {
            commit: commit.clone(),
            batch,
            outcomes: draft.outcomes.clone(),
            first_sent: time,
            last_sent: time,
            is_lost: false,
            is_read: false,
            is_unknown: false,
        });
        self.net.push(commit);
        self.next_version += 1;
        if flaw == Flaw::AnsweredBeforeTheCommit {
            self.answer(world, &draft.outcomes, time, (self.last_token + 1, TTL));
        }
    }

    /// A commit reaches the store, and its answer the server, unless that is lost.
    pub fn arrive(&mut self, world: &World, place: usize, is_answered: bool) {
        let commit = self.net.remove(place);
        let at = commit.server;
        let is_applied = self.apply(world, &commit);
        match self.server(at).waits_for(&commit) {
            true if !is_answered => self.lose(at),
            true if is_applied => self.conclude(world, at, Settled::Applied),
            true => self.settle(world, at, false),
            false => {}
        }
    }

    /// The last sending of a server's commit will not be answered.
    pub fn lose(&mut self, at: u8) {
        let server = &mut self.servers[usize::from(at)];
        let heard = self.net.iter_mut().filter(|commit| server.waits_for(commit));
        heard.for_each(|commit| commit.unheard = true);
        if let Some(flight) = &mut server.flight {
            (flight.is_lost, flight.is_unknown) = (true, true);
        }
    }

    /// The root that a read found, or a refusal, says what became of a commit.
    pub fn settle(&mut self, world: &World, at: u8, is_read: bool) {
        let (root, flaw) = (self.root.clone(), world.flaw);
        let server = &mut self.servers[usize::from(at)];
        let Some(flight) = &mut server.flight else { return };
        let commit = &flight.commit;
        if flaw == Flaw::UnknownIsFailed && flight.is_unknown {
            for verb in server.flight.take().map(|flight| flight.batch).unwrap_or_default() {
                if let Verb::Acquire(call) | Verb::Promote(call) = verb {
                    self.call(call).stage = Stage::Left;
                }
            }
            return;
        }
        let is_applied = root.version == commit.root.version || (flaw == Flaw::UnknownIsApplied && flight.is_unknown);
        if is_applied && !commit.checks {
            return self.conclude(world, at, Settled::Applied);
        }
        if commit.checks || !flight.is_unknown {
            return self.conclude(world, at, Settled::Refused);
        }
        if root.log.contains(&commit.root.version) {
            return self.conclude(world, at, Settled::Overwritten);
        }
        let (expected, is_there) = (commit.expected, root.version == commit.expected);
        flight.is_read = is_there && is_read && !world.anew;
        let is_sent_again = flight.is_read;
        if is_there || expected == 0 {
            server.add_unsettled(expected);
        }
        if !is_sent_again {
            self.conclude(world, at, Settled::Refused);
        }
    }

    /// Sends the same bytes again.
    pub fn send_again(&mut self, at: u8) {
        if let Some(flight) = &mut self.servers[usize::from(at)].flight {
            (flight.last_sent, flight.is_lost, flight.is_read) = (self.time, false, false);
            self.net.push(flight.commit.clone());
        }
    }

    /// Answers the verbs of a commit that took effect. Those of any other one run again on the root that was found.
    fn conclude(&mut self, world: &World, at: u8, settled: Settled) {
        let (flaw, root, clock) = (world.flaw, self.root.clone(), self.clock(world.flaw));
        let stands_still = self.now() < root.time;
        let server = self.server(at);
        let Some(flight) = server.flight.take() else { return };
        let stood_still = std::mem::replace(&mut server.stands_still, stands_still);
        if settled != Settled::Applied {
            server.adopt(root, flaw);
            let is_ended = |verb: &Verb| match verb {
                Verb::Release { next: None, .. } => settled == Settled::Overwritten,
                Verb::Renew { .. } => flaw == Flaw::RefusedIsGone,
                _ => false,
            };
            let (ended, again): (Vec<Verb>, Vec<Verb>) = flight.batch.into_iter().partition(is_ended);
            server.queue.splice(..0, again);
            let ended: Vec<_> = ended.into_iter().map(|verb| (verb, Outcome::Gone)).collect();
            return self.answer(world, &ended, 0, (0, 0));
        }
        if flight.commit.checks && stood_still && stands_still {
            self.wrong = Some(laws::CLOCK_RUNS);
        }
        let server = self.server(at);
        // What a check has compared is what is cached.
        if !flight.commit.checks {
            (server.unsettled, server.is_absence_unsettled) = (None, false);
            server.cache = root;
        }
        if flaw == Flaw::AnsweredBeforeTheCommit {
            return;
        }
        let sent = match flaw {
            Flaw::WaitedToTheLastSending => flight.last_sent,
            _ => flight.first_sent,
        };
        let at = if flight.commit.checks { clock } else { self.root.clock };
        let holder = self.root.holder.as_ref();
        let granted = holder.map_or((0, 0), |holder| (holder.token, holder.ends.saturating_sub(at)));
        self.answer(world, &flight.outcomes, sent, granted);
    }

    /// Answers verbs whose commit was first sent at this time, and left the holder with this token and so much of its
    /// lease.
    fn answer(&mut self, world: &World, outcomes: &[(Verb, Outcome)], sent: u8, (token, left): (u8, u8)) {
        for &(verb, outcome) in outcomes {
            match verb {
                Verb::Acquire(call) | Verb::Promote(call) => {
                    let one = self.call(call);
                    if one.stage != Stage::Asked && one.stage != Stage::Waits {
                        continue;
                    }
                    one.stage = match outcome {
                        Outcome::Held(known) => {
                            let (token, ttl) = if known == 0 { (token, TTL) } else { (known, left) };
                            one.token = token;
                            one.until = one.until.max(sent + ttl);
                            Stage::Holds
                        }
                        Outcome::Waiting => Stage::Waits,
                        _ => Stage::Over,
                    };
                    if outcome == Outcome::Gone {
                        self.would_acquire_anew(world, call);
                    }
                }
                Verb::Undo(call) => self.call(call).stage = Stage::Left,
                Verb::Release { call, .. } => self.call(call).stage = Stage::Over,
                Verb::Renew { call, token } => self.answer_renewal(world, (call, token), outcome, sent),
                Verb::Inspect | Verb::Look { .. } => {}
            }
        }
    }

    fn answer_renewal(&mut self, world: &World, (call, token): (u8, u8), outcome: Outcome, sent: u8) {
        let (time, is_over) = (self.time, self.over[usize::from(world.claim(call))]);
        let one = self.call(call);
        one.is_renewing = false;
        if one.stage != Stage::Holds {
            return;
        }
        if let Outcome::Held(_) = outcome {
            one.until = one.until.max(sent + TTL);
            return;
        }
        one.stage = Stage::Over;
        if time < one.until && !is_over {
            self.wrong = Some(laws::LEASE_IS_CONFIRMED);
        }
        self.show_end(token);
    }
}
