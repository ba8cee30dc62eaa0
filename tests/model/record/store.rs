//! The store: one root, its clock, and the commits on their way to it.

use super::engine::{Call, Server, Stage};
use super::root::{Root, TTL};
use super::{CHANCES, Chance, Flaw, World, laws};

/// A root that was not written for so long is removed.
const IDLE: u8 = 3;

/// A commit on its way. One that only checks is a read: it compares the version and the guards, and changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Commit {
    pub server: u8,
    /// 0: that there is no root.
    pub expected: u8,
    pub root: Root,
    pub not_before: u8,
    pub not_after: u8,
    /// By the store's clock.
    pub latest: u8,
    /// The floor that a first write knows.
    pub floor: u8,
    /// The time of the lock's clock at which the server has computed it.
    pub estimate: u8,
    pub checks: bool,
    /// It answers a read of the state.
    pub shows: bool,
    /// The server does not wait for its answer any more.
    pub unheard: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub root: Root,
    pub net: Vec<Commit>,
    pub servers: Vec<Server>,
    pub calls: Vec<Call>,
    pub time: u8,
    /// By how much the store's clock went back.
    pub back: u8,
    pub next_version: u8,
    pub last_token: u8,
    /// The tokens whose end was shown.
    pub ended: Vec<u8>,
    /// By claim: its client has given the lock back.
    pub over: [bool; 3],
    pub left: [u8; CHANCES],
    pub wrong: Option<&'static str>,
}

impl State {
    pub fn new(world: &World) -> Self {
        Self {
            servers: vec![Server::default(); 2],
            calls: vec![Call::default(); world.calls.len()],
            next_version: 1,
            left: world.chances,
            ..Self::default()
        }
    }

    pub fn may(&self, what: Chance) -> bool {
        self.left[what as usize] > 0
    }

    pub fn spend(&mut self, what: Chance) {
        self.left[what as usize] -= 1;
    }

    pub fn has_spent(&self, world: &World, what: Chance) -> bool {
        self.left[what as usize] < world.chances[what as usize]
    }

    pub fn call(&mut self, call: u8) -> &mut Call {
        &mut self.calls[usize::from(call)]
    }

    /// The store's clock.
    pub fn now(&self) -> u8 {
        self.time + 4 - self.back
    }

    /// The lock's clock.
    pub fn clock(&self, flaw: Flaw) -> u8 {
        if self.root.version == 0 || flaw == Flaw::ClockGoesBack {
            return self.now();
        }
        self.root.clock + self.now().saturating_sub(self.root.time)
    }

    pub fn show_end(&mut self, token: u8) {
        if token > 0 && !self.ended.contains(&token) {
            self.ended.push(token);
            self.ended.sort_unstable();
        }
    }

    /// A commit reaches the store. Returns whether it is applied.
    pub fn apply(&mut self, world: &World, commit: &Commit) -> bool {
        let (flaw, clock, now) = (world.flaw, self.clock(world.flaw), self.now());
        let is_first = commit.expected == 0;
        let is_expected = self.root.version == commit.expected || (is_first && flaw == Flaw::FirstWriteIsBlind);
        let is_compared = !commit.checks || flaw != Flaw::ReadsTheCache;
        if is_compared && (!is_expected || clock < commit.not_before || clock >= commit.not_after) {
            return false;
        }
        if commit.checks {
            if commit.shows {
                self.show(commit, clock);
            }
            return true;
        }
        let is_below = is_first && commit.floor < self.root.token && self.root.version == 0;
        if now > commit.latest || (is_below && flaw != Flaw::FirstWriteIgnoresTheFloor) {
            return false;
        }
        let mut root = commit.root.clone();
        (root.clock, root.time) = (clock, now);
        self.stamp(flaw, commit, &mut root);
        self.compare(world, &root);
        self.root = root;
        true
    }

    /// Decides what the commit left open.
    fn stamp(&mut self, flaw: Flaw, commit: &Commit, root: &mut Root) {
        let Some(holder) = &mut root.holder else { return };
        if std::mem::take(&mut holder.is_open) {
            let begin = match flaw {
                Flaw::EndsAtTheEstimate => commit.estimate,
                _ => root.clock,
            };
            holder.ends = holder.ends.max(begin + TTL);
        }
        if holder.token == 0 {
            holder.token = match flaw {
                Flaw::TokenIsTheTime => root.time,
                _ => root.time.max(root.token + 1),
            };
            root.token = holder.token;
            if holder.token <= self.last_token {
                self.wrong = Some(laws::TOKENS_RISE);
            }
            self.last_token = self.last_token.max(holder.token);
        }
    }

    pub fn may_remove(&self) -> bool {
        let root = &self.root;
        let is_empty = root.holder.is_none() && root.waiters.is_empty();
        root.version > 0 && is_empty && self.now() >= root.time + IDLE
    }

    /// Removes the idle root under a floor of tokens.
    pub fn remove(&mut self, flaw: Flaw) {
        let token = match flaw {
            Flaw::RemovalLeavesNoFloor => 0,
            _ => self.root.token,
        };
        self.root = Root {
            token,
            ..Root::default()
        };
    }

    /// Drops what can make no difference any more, and numbers the versions anew.
    pub fn normalise(&mut self, world: &World) {
        let flaw = world.flaw;
        let clock = self.clock(flaw);
        // Unless the clock goes back, whoever reads now commits the end and shows it.
        if !world.has(Chance::StepBack) && self.root.live(clock).is_none() {
            self.show_end_unless(None);
        }
        for call in &mut self.calls {
            if call.until <= self.time {
                call.until = 0;
            }
            if matches!(call.stage, Stage::Over | Stage::Left | Stage::Leaving) {
                (call.token, call.until, call.is_renewing) = (0, 0, false);
            }
        }
        if matches!(
            flaw,
            Flaw::VersionsAreCounted | Flaw::FirstWriteIsBlind | Flaw::ClockGoesBack
        ) {
            return;
        }
        let may_step_back = self.may(Chance::StepBack);
        let (version, now, servers) = (self.root.version, self.now(), &self.servers);
        self.net.retain(|commit| {
            let may_be_expected = commit.expected == version || commit.expected == 0;
            let is_in_time = may_step_back || (clock < commit.not_after && now <= commit.latest);
            servers[usize::from(commit.server)].waits_for(commit) || (may_be_expected && is_in_time && !commit.checks)
        });
        let flights = self.servers.iter_mut().filter_map(|server| server.flight.as_mut());
        for commit in self.net.iter_mut().chain(flights.map(|flight| &mut flight.commit)) {
            if commit.not_before <= clock && !may_step_back {
                commit.not_before = 0;
            }
            if flaw != Flaw::EndsAtTheEstimate {
                commit.estimate = 0;
            }
        }
        self.net.sort_by_key(|commit| (commit.server, commit.unheard));
        let flights = self
            .servers
            .iter()
            .flat_map(|server| &server.flight)
            .map(|flight| &flight.commit);
        let roots = self.net.iter().chain(flights).map(|commit| &commit.root);
        let caches = self.servers.iter().map(|server| &server.cache);
        let tokens: Vec<u8> = roots.chain(caches).chain([&self.root]).filter_map(Root::held).collect();
        self.ended.retain(|token| tokens.contains(token));
        self.renumber();
    }

    /// Versions are random: only which are equal matters.
    fn renumber(&mut self) {
        fn of(root: &mut Root) -> impl Iterator<Item = &mut u8> {
            std::iter::once(&mut root.version).chain(&mut root.log)
        }
        let mut each = |act: &mut dyn FnMut(&mut u8)| {
            of(&mut self.root).for_each(&mut *act);
            let flights = self.servers.iter_mut().filter_map(|server| server.flight.as_mut());
            for commit in self.net.iter_mut().chain(flights.map(|flight| &mut flight.commit)) {
                act(&mut commit.expected);
                of(&mut commit.root).for_each(&mut *act);
            }
            for server in &mut self.servers {
                of(&mut server.cache).chain(&mut server.unsettled).for_each(&mut *act);
            }
        };
        let mut used = vec![0];
        each(&mut |version| used.push(*version));
        used.sort_unstable();
        used.dedup();
        each(&mut |version| *version = used.partition_point(|smaller| smaller < version) as u8);
        self.next_version = used.len() as u8;
    }
}
