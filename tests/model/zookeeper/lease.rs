//! The life of one lease in discrete time: a client, two replicas that renew for it, and who watches over it.
//!
//! The holder's node has a version and a TTL. A renewal reads the node and writes it at the version that was read; its
//! replica writes the longer of what is asked and what may still be promised: the TTL that it read, less the time since it
//! first saw that version. A replica that has seen a version for its whole TTL deletes the node at that version. An update
//! of metadata writes a version that goes on with what is left of the TTL that was read: a replica that has seen that TTL
//! counts on from then. Reads may be stale, steps and answers late. Times are ages, so time has no end.

use crate::explorer::{Model, Walked, walk};

const SHORT: u8 = 1;
const LONG: u8 = 3;
const VERSIONS: usize = 4;
/// What is this old does not age any more.
const OLD: u8 = LONG + 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Flaw {
    None,
    /// A shorter renewal shortens the lease.
    Shortens,
    /// One timer, whatever version is there.
    KeepsItsTimer,
    /// The node is deleted at any version.
    IgnoresTheVersion,
    /// A TTL counts from when its read was sent, not from when it was answered.
    CountsFromTheSending,
    /// A retry that finds the holder is answered the TTL that it read, without a write.
    RetryDoesNotWrite,
    /// A renewal goes on with the TTL that it read, as an update does.
    RenewalGoesOn,
    /// An update goes on with the TTL that its replica saw first, whatever version it writes over.
    UpdateGoesOnFromTheFirst,
}

/// What writes the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Kind {
    #[default]
    Renewal,
    /// A retry that renews.
    Retry,
    /// An update of metadata, which is answered no TTL.
    Update,
}

/// A write of the node, for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Renewal {
    /// At which replica; none is under way otherwise.
    at: Option<u8>,
    kind: Kind,
    /// How long ago its client sent it, and which TTL it asked for.
    age: u8,
    asked: u8,
    has_read: bool,
    version: u8,
    ttl: u8,
    is_written: bool,
}

/// The version that a replica watches: since when, and its TTL; and how long ago it asked for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Timer {
    version: Option<u8>,
    /// The version that its TTL began with.
    begun: u8,
    age: u8,
    ttl: u8,
    asked: Option<u8>,
}

impl Timer {
    /// What is left of the TTL that began with this version, if it watches that.
    fn left(&self, begun: u8) -> Option<u8> {
        let watches = self.version.is_some() && self.begun == begun;
        watches.then(|| self.ttl.saturating_sub(self.age))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Lease {
    flaw: Flaw,
    is_there: bool,
    version: u8,
    ttls: [u8; VERSIONS],
    /// By version: the one that its TTL began with.
    begun: [u8; VERSIONS],
    /// For how long the client is still sure.
    sure: u8,
    renewals: [Renewal; 2],
    timers: [Timer; 2],
    /// By replica: the version at which it deletes the node.
    expires: [Option<u8>; 2],
    /// How many renewals, retries and updates may still begin.
    more_renewals: u8,
    more_retries: u8,
    more_updates: u8,
}

#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "shown where something is wrong")]
enum Event {
    TimePasses,
    Renews(usize, u8, u8),
    Retries(usize),
    Updates(usize, u8),
    Reads(usize),
    Writes(usize),
    IsAnswered(usize),
    AsksForAVersion(usize),
    SeesAVersion(usize, u8),
    Elapses(usize),
    Expires(usize),
}

impl Lease {
    /// Granted just now by the first replica, for long.
    fn begin(flaw: Flaw, [renewals, retries, updates]: [u8; 3]) -> Self {
        let mut ttls = [0; VERSIONS];
        ttls[0] = LONG;
        let granted = Timer {
            version: Some(0),
            ttl: LONG,
            ..Timer::default()
        };
        Self {
            flaw,
            is_there: true,
            version: 0,
            ttls,
            begun: [0; VERSIONS],
            sure: LONG,
            renewals: [Renewal::default(); 2],
            timers: [granted, Timer::default()],
            expires: [None; 2],
            more_renewals: renewals,
            more_retries: retries,
            more_updates: updates,
        }
    }

    fn events(&self) -> Vec<Event> {
        let mut events = vec![Event::TimePasses];
        for at in 0..2 {
            let renewal = &self.renewals[at];
            let is_turn = at == 0 || self.renewals[0].at.is_some();
            match renewal {
                Renewal { at: None, .. } => {
                    if is_turn && self.more_renewals > 0 {
                        let ask = |replica| [SHORT, LONG].map(|ttl| Event::Renews(at, replica, ttl));
                        events.extend((0..2).flat_map(ask));
                    }
                    events.extend((is_turn && self.more_retries > 0).then_some(Event::Retries(at)));
                    if is_turn && self.more_updates > 0 {
                        events.extend((0..2).map(|replica| Event::Updates(at, replica)));
                    }
                }
                Renewal { has_read: false, .. } => events.push(Event::Reads(at)),
                Renewal { is_written: false, .. } => events.push(Event::Writes(at)),
                _ => events.push(Event::IsAnswered(at)),
            }
            self.events_of_timer(at, &mut events);
        }
        events
    }

    fn events_of_timer(&self, at: usize, events: &mut Vec<Event>) {
        let timer = &self.timers[at];
        let asks_first = self.flaw == Flaw::CountsFromTheSending;
        if asks_first && timer.asked.is_none() {
            events.push(Event::AsksForAVersion(at));
        }
        if !asks_first || timer.asked.is_some() {
            let newer = (0..=self.version).filter(|version| timer.version.is_none_or(|seen| seen < *version));
            events.extend(newer.map(|version| Event::SeesAVersion(at, version)));
        }
        if timer.version.is_some() && timer.age >= timer.ttl && self.expires[at].is_none() {
            events.push(Event::Elapses(at));
        }
        events.extend(self.expires[at].map(|_| Event::Expires(at)));
    }

    fn pass_time(&mut self) {
        let older = |age: &mut u8| *age = (*age + 1).min(OLD);
        self.sure = self.sure.saturating_sub(1);
        let renewals = self.renewals.iter_mut().filter(|renewal| renewal.at.is_some());
        renewals.for_each(|renewal| older(&mut renewal.age));
        for timer in &mut self.timers {
            if timer.version.is_some() {
                older(&mut timer.age);
            }
            timer.asked.iter_mut().for_each(older);
        }
    }

    fn read(&mut self, at: usize) {
        let (version, ttl) = (self.version, self.ttls[usize::from(self.version)]);
        let renewal = &mut self.renewals[at];
        let timer = self.timers[usize::from(renewal.at.expect("it is under way"))];
        let begun = self.begun[usize::from(version)];
        let left = timer.left(begun).map_or(ttl, |left| left.min(ttl));
        renewal.has_read = true;
        renewal.version = version;
        renewal.ttl = match self.flaw {
            Flaw::Shortens => renewal.asked.max(1),
            _ => renewal.asked.max(left),
        };
        if renewal.kind == Kind::Retry && self.flaw == Flaw::RetryDoesNotWrite {
            renewal.ttl = ttl;
            renewal.is_written = true;
        }
        if renewal.kind == Kind::Update && left == 0 {
            // It is over.
            *renewal = Renewal::default();
        }
    }

    fn write(&mut self, at: usize) -> Option<()> {
        if self.version != self.renewals[at].version {
            self.renewals[at].has_read = false;
            return Some(());
        }
        let place = usize::from(self.version) + 1;
        let renewal = self.renewals[at];
        *self.ttls.get_mut(place)? = renewal.ttl;
        let goes_on = renewal.kind == Kind::Update || self.flaw == Flaw::RenewalGoesOn;
        self.begun[place] = match goes_on {
            true if self.flaw == Flaw::UpdateGoesOnFromTheFirst => 0,
            true => self.begun[usize::from(self.version)],
            false => self.version + 1,
        };
        self.version += 1;
        self.renewals[at].is_written = true;
        Some(())
    }

    fn answer(&mut self, at: usize) {
        let renewal = std::mem::take(&mut self.renewals[at]);
        let replica = usize::from(renewal.at.expect("it is under way"));
        if renewal.kind != Kind::Update {
            // Counted from its sending, and never less than what was promised before.
            self.sure = self.sure.max(renewal.ttl.saturating_sub(renewal.age));
        }
        let wrote = !(renewal.kind == Kind::Retry && self.flaw == Flaw::RetryDoesNotWrite);
        let written = renewal.version + 1;
        if wrote && self.timers[replica].version.is_none_or(|seen| seen < written) {
            self.see(replica, written);
        }
    }

    fn see(&mut self, at: usize, version: u8) {
        let (ttl, begun) = (self.ttls[usize::from(version)], self.begun[usize::from(version)]);
        let timer = &mut self.timers[at];
        let since = timer.asked.take().filter(|_| self.flaw == Flaw::CountsFromTheSending);
        let is_newer = timer
            .version
            .is_none_or(|seen| seen < version && self.flaw != Flaw::KeepsItsTimer);
        if is_newer {
            let goes_on = timer.left(begun).is_some_and(|left| left <= ttl);
            let (age, ttl) = match goes_on {
                true => (timer.age, timer.ttl),
                false => (since.unwrap_or(0), ttl),
            };
            *timer = Timer {
                version: Some(version),
                begun,
                age,
                ttl,
                asked: None,
            };
        }
    }

    fn elapse(&mut self, at: usize) {
        let timer = std::mem::take(&mut self.timers[at]);
        let keeps = self.flaw == Flaw::KeepsItsTimer;
        self.expires[at] = if keeps { Some(self.version) } else { timer.version };
    }

    fn expire(&mut self, at: usize) {
        let version = self.expires[at].take();
        if version == Some(self.version) || self.flaw == Flaw::IgnoresTheVersion {
            self.is_there = false;
        }
    }

    fn happens(&mut self, event: Event) -> Option<()> {
        match event {
            Event::TimePasses => self.pass_time(),
            Event::Renews(at, replica, asked) => {
                self.more_renewals -= 1;
                self.renewals[at] = Renewal {
                    at: Some(replica),
                    asked,
                    ..Renewal::default()
                };
            }
            Event::Retries(at) => {
                self.more_retries -= 1;
                self.renewals[at] = Renewal {
                    at: Some(1),
                    kind: Kind::Retry,
                    ..Renewal::default()
                };
            }
            Event::Updates(at, replica) => {
                self.more_updates -= 1;
                self.renewals[at] = Renewal {
                    at: Some(replica),
                    kind: Kind::Update,
                    ..Renewal::default()
                };
            }
            Event::Reads(at) => self.read(at),
            Event::Writes(at) => self.write(at)?,
            Event::IsAnswered(at) => self.answer(at),
            Event::AsksForAVersion(at) => self.timers[at].asked = Some(0),
            Event::SeesAVersion(at, version) => self.see(at, version),
            Event::Elapses(at) => self.elapse(at),
            Event::Expires(at) => self.expire(at),
        }
        Some(())
    }

    /// TTLs of versions that nobody asks for any more.
    fn forget(&mut self) {
        for version in 0..self.version {
            let may_be_seen = self
                .timers
                .iter()
                .any(|timer| timer.version.is_none_or(|seen| seen < version));
            let is_read = |renewal: &Renewal| renewal.at.is_some() && renewal.version == version;
            if !may_be_seen && !self.renewals.iter().any(is_read) {
                self.ttls[usize::from(version)] = 0;
                self.begun[usize::from(version)] = 0;
            }
        }
    }
}

impl Model for Lease {
    type Event = Event;

    fn next(&self) -> Vec<(Event, Self)> {
        if !self.is_there {
            // Nothing brings it back.
            return Vec::new();
        }
        let after = |event| {
            let mut after = *self;
            after.happens(event)?;
            after.forget();
            Some((event, after))
        };
        self.events().into_iter().filter_map(after).collect()
    }

    fn wrong(&self) -> Option<&'static str> {
        let is_lost = !self.is_there && self.sure > 0;
        is_lost.then_some("a client is sure of a lease that is gone")
    }
}

/// With so many renewals, retries and updates.
fn explore(flaw: Flaw, counts: [u8; 3]) -> Walked {
    walk(Lease::begin(flaw, counts), 40_000_000)
}

const GONE: &str = "sure of a lease that is gone";

#[test]
fn a_lease_that_two_replicas_renew_for_longer_and_shorter_lasts() {
    let renewals = if cfg!(feature = "soak") { 2 } else { 1 };
    explore(Flaw::None, [renewals, 0, 0]).is_sound(10_000);
}

#[test]
fn a_lease_that_is_renewed_and_found_by_a_retry_lasts() {
    let renewals = u8::from(cfg!(feature = "soak"));
    explore(Flaw::None, [renewals, 1, 0]).is_sound(10_000);
}

#[test]
fn a_lease_that_is_renewed_and_updated_lasts() {
    let renewals = u8::from(cfg!(feature = "soak"));
    explore(Flaw::None, [renewals, 0, 1]).is_sound(1_000);
}

#[test]
fn a_renewal_that_goes_on_with_the_ttl_before_is_noticed() {
    explore(Flaw::RenewalGoesOn, [2, 0, 0]).is_noticed(GONE);
}

#[test]
fn an_update_that_goes_on_with_the_first_ttl_is_noticed() {
    explore(Flaw::UpdateGoesOnFromTheFirst, [1, 0, 1]).is_noticed(GONE);
}

#[test]
fn a_ttl_that_counts_from_the_sending_of_its_read_is_noticed() {
    explore(Flaw::CountsFromTheSending, [2, 0, 0]).is_noticed(GONE);
}

#[test]
fn a_shorter_renewal_that_shortens_is_noticed() {
    explore(Flaw::Shortens, [2, 0, 0]).is_noticed(GONE);
}

#[test]
fn one_timer_whatever_the_version_is_noticed() {
    explore(Flaw::KeepsItsTimer, [2, 0, 0]).is_noticed(GONE);
}

#[test]
fn an_expiry_at_any_version_is_noticed() {
    explore(Flaw::IgnoresTheVersion, [2, 0, 0]).is_noticed(GONE);
}

#[test]
fn a_retry_that_is_answered_what_it_read_is_noticed() {
    explore(Flaw::RetryDoesNotWrite, [2, 1, 0]).is_noticed(GONE);
}
