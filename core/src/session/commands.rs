//! The commands of a session that are in flight, and which of them may start.
//!
//! Commands on one lock take effect in the order in which they were sent: a command starts when those before it on its
//! lock have taken effect. An Acquire has taken effect when it was answered or is in the queue, so that a Release
//! behind a waiting Acquire is not delayed. A Release already starts when the Acquires before it are sequenced: their
//! store executes what begins later after them. Releases of one lock start together, because their order makes no
//! difference. Acquires of one lock that may wait start together, because every store keeps the order of those of one
//! replica. One that does not wait starts alone, because no store orders it among others. Commands on different locks
//! never wait for each other.
//!
//! How stores keep this order: the embedded store and the record engine execute steps in the order in which they
//! begin. ZooKeeper executes what one session sends in its order, and no step is sent before an earlier append of its
//! lock. An etcd transaction with a Release has the appends that wait for a step before it, and a Release waits for
//! appends in flight. Without this, a Release on a hot lock would wait at each hand-off for the answer to the Acquire
//! before it. A sequenced Acquire that the store refuses, because another step or a retry was first, is sent again and
//! then takes effect after the Release.
//!
//! A command on several locks starts when those before it on each of them have taken effect. Those behind it wait for its
//! answer if it does not wait itself. If it may wait, they do not: it takes its locks one after the other, and one of them may
//! be held until a command behind it.
//!
//! Renew, Release and keep_alive have a limit of their own, of the same size as that of the other commands; cancel,
//! attach, detach and close have none, because they end at once. So a thousand waits cannot keep a session from
//! releasing what they wait for.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};

#[cfg(test)]
mod tests;

/// The number of a lock within a session. Two locks of one number only wait for each other.
pub type LockNumber = u64;

/// How a command is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// An Acquire of this lock that may wait.
    Acquire(LockNumber),
    /// An Acquire of this lock that does not wait.
    Try(LockNumber),
    /// A Release of a lease of this lock.
    Release(LockNumber),
    /// Another command on this lock.
    After(LockNumber),
}

impl Order {
    fn lock(self) -> LockNumber {
        let (Self::Acquire(lock) | Self::Try(lock) | Self::Release(lock) | Self::After(lock)) = self;
        lock
    }

    fn is_acquire(self) -> bool {
        matches!(self, Self::Acquire(_) | Self::Try(_))
    }

    /// Whether it is an Acquire that may wait.
    fn may_wait(self) -> bool {
        matches!(self, Self::Acquire(_))
    }
}

/// A command that may start now: its id, and what it does.
#[derive(Debug, PartialEq, Eq)]
pub struct Started<C> {
    /// The client's id of the command.
    pub id: u64,
    /// What it does.
    pub command: C,
}

/// The commands in flight: those that have no result yet.
#[derive(Debug)]
pub struct Commands<C> {
    in_flight: HashMap<u64, InFlight>,
    locks: HashMap<LockNumber, LockCommands<C>>,
    several: HashMap<u64, Several<C>>,
}

/// A command on several locks.
#[derive(Debug)]
struct Several<C> {
    locks: BTreeSet<LockNumber>,
    /// Those on which commands before it have not taken effect.
    behind: BTreeSet<LockNumber>,
    may_wait: bool,
    /// Absent once it has started.
    command: Option<C>,
}

#[derive(Debug)]
struct InFlight {
    order: Order,
    stage: Stage,
}

/// How far a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It waits until commands before it have taken effect.
    Ordered,
    Started,
    /// A Release that starts now takes effect after it.
    Sequenced,
    /// It has taken effect, and has no result yet.
    Enqueued,
}

/// The commands on one lock that have not taken effect.
#[derive(Debug)]
struct LockCommands<C> {
    /// How many Acquires that may wait have started and are not sequenced.
    unsequenced: usize,
    /// How many are sequenced.
    sequenced: usize,
    /// How many Releases have started.
    releases: usize,
    /// How many other commands have started.
    others: usize,
    ordered: VecDeque<(Order, Ordered<C>)>,
}

/// A command that has not started.
#[derive(Debug)]
enum Ordered<C> {
    One(Started<C>),
    /// One on several locks, by its id.
    Several(u64),
}

impl<C> Ordered<C> {
    fn id(&self) -> u64 {
        match self {
            Self::One(started) => started.id,
            Self::Several(id) => *id,
        }
    }
}

impl<C> LockCommands<C> {
    fn new() -> Self {
        Self {
            unsequenced: 0,
            sequenced: 0,
            releases: 0,
            others: 0,
            ordered: VecDeque::new(),
        }
    }

    /// Whether a command may start beside those that have started.
    fn admits(&self, order: Order) -> bool {
        let is_free = match order {
            Order::Acquire(_) => self.releases == 0,
            Order::Release(_) => self.unsequenced == 0,
            Order::Try(_) | Order::After(_) => self.unsequenced + self.sequenced + self.releases == 0,
        };
        self.others == 0 && is_free
    }

    fn start(&mut self, order: Order) {
        *self.started(order, false) += 1;
    }

    /// A command that has started takes effect.
    fn leave(&mut self, order: Order, is_sequenced: bool) {
        *self.started(order, is_sequenced) -= 1;
    }

    /// How many commands of this kind have started.
    fn started(&mut self, order: Order, is_sequenced: bool) -> &mut usize {
        match (order, is_sequenced) {
            (Order::Acquire(_), false) => &mut self.unsequenced,
            (Order::Acquire(_), true) => &mut self.sequenced,
            (Order::Release(_), _) => &mut self.releases,
            (Order::Try(_) | Order::After(_), _) => &mut self.others,
        }
    }

    fn is_idle(&self) -> bool {
        self.unsequenced + self.sequenced + self.releases + self.others == 0 && self.ordered.is_empty()
    }

    /// Removes the first of the commands that wait for their order, if it may start.
    fn pop(&mut self) -> Option<(Order, Ordered<C>)> {
        let (order, _) = self.ordered.front()?;
        if !self.admits(*order) {
            return None;
        }
        self.ordered.pop_front()
    }
}

impl<C> Default for Commands<C> {
    fn default() -> Self {
        Self {
            in_flight: HashMap::new(),
            locks: HashMap::new(),
            several: HashMap::new(),
        }
    }
}

impl<C> Commands<C> {
    /// How many are in flight.
    pub fn len(&self) -> usize {
        self.in_flight.len() + self.several.len()
    }

    /// Whether none is in flight.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the command of this id is in flight.
    pub fn contains(&self, id: u64) -> bool {
        self.in_flight.contains_key(&id) || self.several.contains_key(&id)
    }

    /// Adds a command, whose id is not that of another one in flight. Returns it if it may start now.
    pub fn add(&mut self, id: u64, order: Order, command: C) -> Option<Started<C>> {
        let lock = self.locks.entry(order.lock()).or_insert_with(LockCommands::new);
        let started = Started { id, command };
        let may_start = lock.ordered.is_empty() && lock.admits(order);
        let stage = if may_start { Stage::Started } else { Stage::Ordered };
        self.in_flight.insert(id, InFlight { order, stage });
        if may_start {
            lock.start(order);
            return Some(started);
        }
        lock.ordered.push_back((order, Ordered::One(started)));
        None
    }

    /// The same for a command on several locks, which may wait.
    pub fn add_several(
        &mut self,
        id: u64,
        locks: BTreeSet<LockNumber>,
        may_wait: bool,
        command: C,
    ) -> Option<Started<C>> {
        let mut behind = BTreeSet::new();
        for number in &locks {
            let lock = self.locks.entry(*number).or_insert_with(LockCommands::new);
            let order = Order::After(*number);
            if !lock.ordered.is_empty() || !lock.admits(order) {
                lock.ordered.push_back((order, Ordered::Several(id)));
                behind.insert(*number);
            } else if !may_wait {
                lock.start(order);
            }
            if lock.is_idle() {
                self.locks.remove(number);
            }
        }
        let (started, command) = match behind.is_empty() {
            true => (Some(Started { id, command }), None),
            false => (None, Some(command)),
        };
        let several = Several {
            locks,
            behind,
            may_wait,
            command,
        };
        self.several.insert(id, several);
        started
    }

    /// Records that the store executes what begins from now on after this Acquire, and returns the Release that may start
    /// now.
    pub fn sequenced(&mut self, id: u64) -> Vec<Started<C>> {
        match self.in_flight.get_mut(&id) {
            Some(command) if command.stage == Stage::Started && command.order.may_wait() => {
                command.stage = Stage::Sequenced;
                let number = command.order.lock();
                if let Some(lock) = self.locks.get_mut(&number) {
                    lock.unsequenced -= 1;
                    lock.sequenced += 1;
                }
                self.start_next(number)
            }
            _ => Vec::new(),
        }
    }

    /// Records that a command has taken effect, and returns those that may start now.
    pub fn enqueued(&mut self, id: u64) -> Vec<Started<C>> {
        match self.in_flight.get_mut(&id) {
            Some(command) if matches!(command.stage, Stage::Started | Stage::Sequenced) => {
                let is_sequenced = command.stage == Stage::Sequenced;
                command.stage = Stage::Enqueued;
                let order = command.order;
                if let Some(lock) = self.locks.get_mut(&order.lock()) {
                    lock.leave(order, is_sequenced);
                }
                self.start_next(order.lock())
            }
            _ => Vec::new(),
        }
    }

    /// Records that a command has its result, and returns those that may start now.
    pub fn ended(&mut self, id: u64) -> Vec<Started<C>> {
        if let Some(several) = self.several.remove(&id) {
            return self.leave_several(id, &several);
        }
        let next = self.enqueued(id);
        self.in_flight.remove(&id);
        next
    }

    /// Takes a command out that has not started, with those that may start now.
    pub fn take(&mut self, id: u64) -> Option<(C, Vec<Started<C>>)> {
        if let Some(command) = self.several.get_mut(&id).and_then(|several| several.command.take()) {
            return Some((command, self.ended(id)));
        }
        let command = self
            .in_flight
            .get(&id)
            .filter(|command| command.stage == Stage::Ordered)?;
        let number = command.order.lock();
        let lock = self.locks.get_mut(&number)?;
        let at = lock.ordered.iter().position(|(_, ordered)| ordered.id() == id)?;
        let Some((_, Ordered::One(taken))) = lock.ordered.remove(at) else {
            return None;
        };
        self.in_flight.remove(&id);
        Some((taken.command, self.start_next(number)))
    }

    /// A command on several locks has ended. Returns those that may start now.
    fn leave_several(&mut self, id: u64, several: &Several<C>) -> Vec<Started<C>> {
        let mut next = Vec::new();
        for number in &several.locks {
            if let Some(lock) = self.locks.get_mut(number) {
                if several.behind.contains(number) {
                    lock.ordered.retain(|(_, ordered)| ordered.id() != id);
                } else if !several.may_wait {
                    lock.leave(Order::After(*number), false);
                }
            }
            next.extend(self.start_next(*number));
        }
        next
    }

    /// Takes out the commands that wait behind this one, which is in flight, up to the first that is to go on.
    pub fn take_behind(&mut self, id: u64, goes_on: impl Fn(u64) -> bool) -> Vec<Started<C>> {
        let number = self.in_flight.get(&id).map(|command| command.order.lock());
        let Some(lock) = number.and_then(|number| self.locks.get_mut(&number)) else {
            return Vec::new();
        };
        let stays = |ordered: &Ordered<C>| matches!(ordered, Ordered::Several(_)) || goes_on(ordered.id());
        let first = lock.ordered.iter().position(|(_, ordered)| stays(ordered));
        let taken = lock.ordered.drain(..first.unwrap_or(lock.ordered.len()));
        let taken: Vec<_> = taken
            .filter_map(|(_, ordered)| match ordered {
                Ordered::One(started) => Some(started),
                Ordered::Several(_) => None,
            })
            .collect();
        for Started { id, .. } in &taken {
            self.in_flight.remove(id);
        }
        taken
    }

    /// The Acquires that have not started, and the commands on several locks that may wait.
    pub fn held_up_acquires(&self) -> Vec<u64> {
        let held_up = |command: &InFlight| command.order.is_acquire() && command.stage == Stage::Ordered;
        let all = self.in_flight.iter().filter(|(_, command)| held_up(command));
        let several = self.several.iter();
        let several = several.filter(|(_, several)| several.may_wait && several.command.is_some());
        all.map(|(id, _)| *id).chain(several.map(|(id, _)| *id)).collect()
    }

    /// Starts the next commands of a lock, and forgets a lock without any.
    fn start_next(&mut self, lock: LockNumber) -> Vec<Started<C>> {
        let Entry::Occupied(mut entry) = self.locks.entry(lock) else {
            return Vec::new();
        };
        let mut next = Vec::new();
        while let Some((order, ordered)) = entry.get_mut().pop() {
            let started = match ordered {
                Ordered::One(started) => started,
                Ordered::Several(id) => {
                    let Some(several) = self.several.get_mut(&id) else {
                        continue;
                    };
                    several.behind.remove(&lock);
                    if !several.may_wait {
                        entry.get_mut().start(order);
                    }
                    let command = several.command.take_if(|_| several.behind.is_empty());
                    next.extend(command.map(|command| Started { id, command }));
                    continue;
                }
            };
            entry.get_mut().start(order);
            if let Some(command) = self.in_flight.get_mut(&started.id) {
                command.stage = Stage::Started;
            }
            next.push(started);
        }
        if entry.get().is_idle() {
            entry.remove();
        }
        next
    }
}
