//! The leases that a stream keeps: when to ask for the next beat, what to renew, and what to tell the client.
//!
//! A client of KeepAlive names all its leases in each beat: a lease is kept from the first beat that names it to the
//! first one that does not. A client of Session attaches and detaches leases, and each beat is about all that are
//! attached. Leases are known by their secrets.
//!
//! A beat confirms only renewals that were sent after it, of leases that no command is renewing: the client counts
//! from the sending of the beat.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use self::lease::KeptLease;
pub use self::message::{Message, NamedBy, NotRenewed};
pub use self::moment::Moment;
use crate::error::Error;
use crate::name::Secret;

mod by_commands;
mod lease;
mod message;
mod moment;
#[cfg(test)]
mod tests;

/// A beat is due after this part of the shortest TTL, and it is answered within the same time: one more beat fits into
/// the TTL.
const BEATS_IN_TTL: u32 = 3;
/// The interval while the TTL of a lease is not known yet. It doubles with each beat that does not show the TTL.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
/// How often it doubles.
const DOUBLINGS: u32 = 3;
/// The interval for a client without leases.
const IDLE_INTERVAL: Duration = Duration::from_secs(3);
/// When to look again at a lease whose store did not answer.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The shortest time between two looks at a lease: a store may round its remaining time down.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);

/// The leases that a client keeps.
#[derive(Debug)]
pub struct KeptLeases {
    leases: HashMap<Secret, KeptLease>,
    /// Whether a client without leases is asked too, because only its beats name leases.
    asks_idle: bool,
    /// Whether the client was asked since the last beat.
    is_asked: bool,
    beat: Option<Beat>,
    /// How many leases were attached so far, and until the last keep_alive arrived that no beat has begun for.
    attached: u64,
    awaited: Option<u64>,
    /// The leases that such a keep_alive was about, and that were detached since.
    left: HashMap<Secret, NotRenewed>,
    /// How many beats in a row did not show the TTL of some lease.
    unknown: u32,
    /// When the client is asked for the next beat; absent while a beat is processed, or after it was asked.
    ask_at: Option<Instant>,
    /// No lease ends before; with thousands of leases it is not looked up at each step.
    look_at: Option<Instant>,
    messages: VecDeque<Message>,
}

/// A beat that is processed.
#[derive(Debug)]
struct Beat {
    number: u64,
    began: Moment,
    answer_by: Instant,
    /// The leases in the client's order; absent for those that cannot be kept.
    order: Vec<Option<Secret>>,
    /// How many leases have no outcome yet.
    open: usize,
    /// Those of its leases that were lost or detached since it was sent. One that was attached again since is named once.
    lost: HashMap<Secret, NotRenewed>,
}

impl KeptLeases {
    /// The leases of a client that names them in each beat. It is asked for them at once.
    pub fn named() -> Self {
        let messages = VecDeque::from([Message::Ask]);
        Self {
            asks_idle: true,
            is_asked: true,
            messages,
            ..Self::attached()
        }
    }

    /// The leases that a client attaches.
    pub fn attached() -> Self {
        Self {
            leases: HashMap::new(),
            asks_idle: false,
            is_asked: false,
            beat: None,
            attached: 0,
            awaited: None,
            left: HashMap::new(),
            unknown: 0,
            ask_at: None,
            look_at: None,
            messages: VecDeque::new(),
        }
    }

    /// Records that a beat of the client was refused: it is asked again soon.
    pub fn refused(&mut self, now: Instant) {
        self.is_asked = false;
        self.ask_before(now + FIRST_INTERVAL);
    }

    /// A client without leases need not answer the last ask, so it is asked again when it has some.
    fn forget_ask_without_leases(&mut self) {
        if self.leases.is_empty() && !self.asks_idle {
            (self.ask_at, self.is_asked) = (None, false);
        }
    }

    /// Begins a beat with all attached leases, and returns the leases to renew as [`Self::begin`].
    pub fn begin_attached(&mut self, number: u64, now: Moment) -> Vec<Secret> {
        let order = self.leases.keys().copied().map(Some).collect();
        self.start_beat(number, order, now)
    }

    /// Begins a beat with all leases of the client, each once: its id with its secret, or with the reason why it cannot
    /// be kept. Returns the leases to renew, those first that the beat before did not renew. No other beat may be in
    /// progress.
    pub fn begin(&mut self, number: u64, named: Vec<(String, Result<Secret, Error>)>, now: Moment) -> Vec<Secret> {
        let mut before = std::mem::take(&mut self.leases);
        let mut order = Vec::with_capacity(named.len());
        for (lease_id, secret) in named {
            order.push(secret.as_ref().ok().copied());
            match secret {
                Ok(secret) => {
                    let lease = before.remove(&secret).unwrap_or_else(|| KeptLease::new(lease_id));
                    self.leases.insert(secret, lease);
                }
                Err(error) => self.messages.push_back(Message::Lost { lease_id, error }),
            }
        }
        self.start_beat(number, order, now)
    }

    fn start_beat(&mut self, number: u64, order: Vec<Option<Secret>>, now: Moment) -> Vec<Secret> {
        let (mut renewed, mut others) = (Vec::new(), Vec::new());
        for secret in order.iter().flatten() {
            let Some(lease) = self.leases.get_mut(secret) else {
                continue;
            };
            (lease.error, lease.is_in_beat, lease.is_to_renew_again) = (None, true, false);
            let was_renewed = lease.outcome.take().is_some_and(|ttl| !ttl.is_zero());
            if lease.renewal.is_none() {
                let list = if was_renewed { &mut renewed } else { &mut others };
                list.push(*secret);
            }
        }
        let limits = self
            .leases
            .values()
            .map(|lease| lease.interval().unwrap_or(FIRST_INTERVAL));
        self.beat = Some(Beat {
            number,
            began: now,
            answer_by: now.timer + limits.min().unwrap_or_default(),
            order,
            open: self.leases.len(),
            lost: std::mem::take(&mut self.left),
        });
        if let Some(beat) = &mut self.beat {
            // What was attached again is renewed now, after the keep_alive.
            beat.lost.retain(|secret, _| !self.leases.contains_key(secret));
        }
        self.awaited = None;
        (self.ask_at, self.is_asked) = (None, false);
        self.finish_if_complete();
        others.append(&mut renewed);
        others
    }

    /// Whether there is no lease.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Asks for a beat now, whatever is due.
    pub fn ask(&mut self) {
        let is_awaited = self.beat.is_none() && !self.leases.is_empty();
        (self.ask_at, self.is_asked) = (None, is_awaited);
        self.messages.push_back(Message::Ask);
    }

    /// Whether a beat is in progress.
    pub fn is_beating(&self) -> bool {
        self.beat.is_some()
    }

    /// Records that a renewal is sent now.
    pub fn sent(&mut self, secret: &Secret, now: Moment) {
        if let Some(lease) = self.leases.get_mut(secret) {
            lease.renewal = Some(now);
        }
    }

    /// Records the success of the renewal that was sent then. One that was sent before the beat confirms the rest of its
    /// time: the client counts from the sending of the beat.
    pub fn renewed(&mut self, secret: &Secret, ttl: Duration, sent: Instant) {
        let began = self.beat.as_ref().map(|beat| beat.began);
        let Some(lease) = self.leases.get_mut(secret) else {
            return;
        };
        // An earlier renewal, of a lease that was not named for a while, confirms nothing.
        let Some(renewal) = lease.renewal.take_if(|renewal| renewal.timer == sent) else {
            return;
        };
        // The store may have renewed it before the command, or with the TTL from before it.
        if began.is_some() && lease.renew_commands > 0 && lease.outcome.is_none() {
            lease.is_to_renew_again = true;
            return;
        }
        lease.ttl = Some(ttl);
        lease.end = Some(sent + ttl);
        let earlier = began.map(|began| began.since(renewal));
        self.look_before(sent + ttl);
        self.settle(secret, ttl.saturating_sub(earlier.unwrap_or_default()));
    }

    /// Records that a lease was found held for `left` longer, without a renewal.
    pub fn found(&mut self, secret: &Secret, left: Duration, now: Instant) {
        if let Some(lease) = self.leases.get_mut(secret) {
            let end = now + left.max(BETWEEN_LOOKS);
            lease.end = Some(end);
            self.look_before(end);
        }
    }

    /// Records that the outcome of the renewal that was sent then is unknown because of this error.
    pub fn unanswered(&mut self, secret: &Secret, sent: Instant, error: Error) {
        if let Some(lease) = self.leases.get_mut(secret)
            && lease.renewal.take_if(|renewal| renewal.timer == sent).is_some()
        {
            lease.error = Some(error);
            self.settle(secret, Duration::ZERO);
        }
    }

    /// Records a look whose outcome is unknown.
    pub fn not_found_out(&mut self, secret: &Secret, now: Instant) {
        self.found(secret, LOOK_AGAIN, now);
    }

    /// Records that a lease is not kept any more.
    pub fn lost(&mut self, secret: &Secret, error: Error) {
        let Some(lease) = self.leases.remove(secret) else {
            return;
        };
        let lease_id = lease.lease_id.clone();
        // Only its own leases: others may come and go without number while a store is slow.
        if let Some(beat) = self.beat.as_mut().filter(|_| lease.is_in_beat) {
            let not_renewed = NotRenewed {
                lease_id: lease_id.clone(),
                error: Some(error.clone()),
            };
            beat.lost.insert(*secret, not_renewed);
        }
        self.messages.push_back(Message::Lost { lease_id, error });
        self.leave_beat(&lease);
        self.forget_ask_without_leases();
    }

    /// Takes a lease that is not kept any more out of the beat.
    fn leave_beat(&mut self, lease: &KeptLease) {
        if let Some(beat) = self.beat.as_mut().filter(|_| lease.outcome.is_none()) {
            beat.open -= 1;
            self.finish_if_complete();
        }
    }

    /// When [`Self::wake`] has something to do, if nothing else happens.
    pub fn next_wake(&self) -> Option<Instant> {
        if let Some(beat) = &self.beat {
            return Some(beat.answer_by);
        }
        self.look_at.into_iter().chain(self.ask_at).min()
    }

    fn look_before(&mut self, end: Instant) {
        self.look_at = Some(self.look_at.map_or(end, |at| at.min(end)));
    }

    fn next_end(&self) -> Option<Instant> {
        self.leases.values().filter_map(|lease| lease.end).min()
    }

    /// Asks for the next beat when it is due, and answers a beat that takes too long. Returns the leases whose time is
    /// over: whether they have ended must be looked at.
    pub fn wake(&mut self, now: Instant) -> Vec<Secret> {
        if self.beat.as_ref().is_some_and(|beat| beat.answer_by <= now) {
            self.finish();
        }
        if self.beat.is_some() {
            return Vec::new();
        }
        if self.ask_at.is_some_and(|at| at <= now) {
            self.ask_at = None;
            if self.asks_idle || !self.leases.is_empty() {
                self.is_asked = true;
                self.messages.push_back(Message::Ask);
            }
        }
        if self.look_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let over = self.leases.iter_mut().filter_map(|(secret, lease)| {
            lease.end.take_if(|end| *end <= now)?;
            Some(*secret)
        });
        let over = over.collect();
        self.look_at = self.next_end();
        over
    }

    /// Discards the beat and the messages.
    pub fn end(&mut self) {
        self.beat = None;
        self.messages.clear();
    }

    /// The next message for the client.
    pub fn message(&mut self) -> Option<Message> {
        self.messages.pop_front()
    }

    /// Records what the beat says of a lease.
    fn settle(&mut self, secret: &Secret, ttl: Duration) {
        let (Some(beat), Some(lease)) = (&mut self.beat, self.leases.get_mut(secret)) else {
            return;
        };
        if lease.outcome.replace(ttl).is_none() {
            beat.open -= 1;
            self.finish_if_complete();
        }
    }

    fn finish_if_complete(&mut self) {
        if self.beat.as_ref().is_some_and(|beat| beat.open == 0) {
            self.finish();
        }
    }

    /// Answers the beat.
    fn finish(&mut self) {
        let Some(beat) = self.beat.take() else { return };
        let kept = |secret: &Option<Secret>| secret.and_then(|secret| self.leases.get(&secret));
        let ttls = beat.order.iter().map(|secret| kept(secret)?.outcome);
        let ttls = ttls.map(Option::unwrap_or_default).collect();
        let mut lost = beat.lost;
        let others = beat
            .order
            .iter()
            .filter_map(|secret| Some((secret.as_ref()?, kept(secret)?)));
        for (secret, lease) in others.filter(|(_, lease)| !lease.is_renewed()) {
            lost.entry(*secret).or_insert_with(|| NotRenewed {
                lease_id: lease.lease_id.clone(),
                error: lease.error.clone(),
            });
        }
        let not_renewed = lost.into_values().collect();
        if self.asks_idle || !self.leases.is_empty() {
            self.ask_at = Some(beat.began.timer + self.interval());
        }
        self.look_at = self.next_end();
        let waited = self.leases.values_mut();
        waited.for_each(|lease| lease.is_to_renew_again = false);
        let renewed = self.leases.values_mut().filter(|lease| lease.is_renewed());
        let new_ttls = renewed.filter_map(KeptLease::tell_ttl).collect();
        let beat = beat.number;
        self.messages.push_back(Message::Kept {
            beat,
            ttls,
            not_renewed,
            new_ttls,
        });
    }

    /// Asks at this time, unless the client is asked earlier or a beat is in progress.
    fn ask_before(&mut self, at: Instant) {
        if self.beat.is_none() && !self.is_asked {
            self.ask_at = Some(self.ask_at.map_or(at, |earlier| earlier.min(at)));
        }
    }

    /// From one beat to the next.
    fn interval(&mut self) -> Duration {
        let is_unknown = self.leases.values().any(|lease| lease.ttl.is_none());
        let unknown = is_unknown.then_some(FIRST_INTERVAL * 2_u32.pow(self.unknown.min(DOUBLINGS)));
        self.unknown = if is_unknown { self.unknown + 1 } else { 0 };
        let known = self.leases.values().filter_map(KeptLease::interval);
        known.chain(unknown).min().unwrap_or(IDLE_INTERVAL)
    }
}
