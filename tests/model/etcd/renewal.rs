//! The lease of one holder on etcd: renewals, a change to a longer lease, and a re-entry, from several
//! replicas at once, while time passes.
//!
//! Time is counted in ticks. What a client counts on must never outlast the lease that the holder's
//! key is on.

use crate::explorer::{Model, Walked, walk};

/// How long each lease lives: the first one, and those that a change of lease brings.
const SPANS: [u8; 3] = [2, 3, 3];

/// A way to break the protocol; the walk must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Flaw {
    None,
    /// The proof that the key is on the lease comes before the sign of life.
    ChecksFirst,
    /// A new lease is not named in the record before the key moves to it.
    NotAnnounced,
    /// A renewal counts though the record names a lease by now that got no sign of life.
    CountsOnAnOldRecord,
    /// A record is written whatever has changed since it was read.
    WritesBlindly,
}

/// What is written at the holder's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Record {
    lease: u8,
    moving_to: Option<u8>,
    holds: u8,
    modified: u8,
}

/// The record of a holder that was just granted.
const FIRST: Record = Record {
    lease: 0,
    moving_to: None,
    holds: 1,
    modified: 1,
};

/// What a call wants of the holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Wish {
    /// More time on the same lease.
    Renew,
    /// A longer TTL: another lease.
    Lengthen {
        lease: u8,
    },
    /// One more hold.
    Reenter,
    Release,
}

/// Where a call is: what it does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Begins,
    KeepsAlive,
    Checks {
        alive: bool,
    },
    /// The same, in the wrong order.
    KeepsAliveAfter,
    Announces,
    KeepsTheNewAlive,
    Moves,
    /// Writes its hold, and gives a sign of life beside; which of them is done.
    Joins {
        written: bool,
        kept: bool,
    },
    Leaves,
    Done,
}

/// A call, and until when its client counts on the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Call {
    wish: Wish,
    stage: Stage,
    /// The record as its replica knows it.
    known: Record,
    /// How long ago it was sent.
    age: u8,
    counts: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    flaw: Flaw,
    holder: Option<Record>,
    /// What is left of each lease.
    leases: [u8; 3],
    calls: Vec<Call>,
    /// Writes that were given up and may still come: judged by that revision.
    late: Vec<(u8, Record)>,
    ticks: u8,
    losses: u8,
}

#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "shown where something is wrong")]
enum Event {
    Tick,
    Goes(usize, Stage),
    IsGivenUp(usize, Stage),
    ArrivesLate(Record),
}

impl State {
    fn keep_alive(&mut self, lease: u8) -> bool {
        let left = &mut self.leases[usize::from(lease)];
        let alive = *left > 0;
        if alive {
            *left = SPANS[usize::from(lease)];
        }
        alive
    }

    /// Writes a record, if the key is what it was and the lease lives.
    fn write(&mut self, judged_by: u8, record: Record) -> bool {
        let Some(now) = self.holder else { return false };
        let changed = now.modified != judged_by && self.flaw != Flaw::WritesBlindly;
        if changed || self.leases[usize::from(record.lease)] == 0 {
            return false;
        }
        let modified = now.modified + 1;
        self.holder = (record.holds > 0).then_some(Record { modified, ..record });
        true
    }

    fn tick(&self) -> Self {
        let mut after = self.clone();
        after.ticks -= 1;
        for lease in &mut after.leases {
            *lease = lease.saturating_sub(1);
        }
        after.holder = after
            .holder
            .filter(|holder| after.leases[usize::from(holder.lease)] > 0);
        for call in &mut after.calls {
            call.counts = call.counts.saturating_sub(1);
            if call.stage != Stage::Begins && call.stage != Stage::Done {
                call.age += 1;
            }
        }
        after
    }

    /// Forgets what makes no difference any more: what was judged by a key that has changed since, and
    /// what a call knew that is done.
    fn forget(mut self) -> Self {
        let modified = self.holder.map(|holder| holder.modified);
        let blindly = self.flaw == Flaw::WritesBlindly && modified.is_some();
        self.late
            .retain(|(judged_by, _)| blindly || Some(*judged_by) == modified);
        for call in self.calls.iter_mut().filter(|call| call.stage == Stage::Done) {
            (call.known, call.age) = (FIRST, 0);
        }
        self
    }

    /// Every lease that the record names had its sign of life, and the key is on the one that counts.
    fn is_proven(&self, known: Record, now: Record) -> bool {
        let named = now.moving_to.is_none_or(|moving| Some(moving) == known.moving_to);
        now.lease == known.lease && (named || self.flaw == Flaw::CountsOnAnOldRecord)
    }

    /// The write that a call is about to send.
    fn write_of(&self, at: usize) -> Option<(u8, Record)> {
        let Call { wish, stage, known, .. } = self.calls[at];
        let record = match (stage, wish) {
            (Stage::Announces, Wish::Lengthen { lease }) => Record {
                moving_to: Some(lease),
                ..known
            },
            (Stage::Moves, Wish::Lengthen { lease }) => Record {
                lease,
                moving_to: None,
                ..known
            },
            (Stage::Joins { written: false, .. }, _) => Record {
                holds: known.holds + 1,
                ..known
            },
            (Stage::Leaves, _) => Record {
                holds: known.holds - 1,
                ..known
            },
            _ => return None,
        };
        Some((known.modified, record))
    }

    /// The call goes one step further.
    fn go(&self, at: usize) -> Self {
        let mut after = self.clone();
        let Call { wish, known, .. } = self.calls[at];
        let write = self.write_of(at);
        let written = write.is_some_and(|(judged_by, record)| after.write(judged_by, record));
        let stage = match self.calls[at].stage {
            Stage::Begins => match wish {
                Wish::Renew | Wish::Lengthen { .. } if self.flaw == Flaw::ChecksFirst => Stage::Checks { alive: true },
                Wish::Renew | Wish::Lengthen { .. } => Stage::KeepsAlive,
                Wish::Reenter => Stage::Joins {
                    written: false,
                    kept: false,
                },
                Wish::Release => {
                    after.calls[at].counts = 0;
                    Stage::Leaves
                }
            },
            Stage::KeepsAlive => {
                if let Some(moving) = known.moving_to {
                    after.keep_alive(moving);
                }
                Stage::Checks {
                    alive: after.keep_alive(known.lease),
                }
            }
            Stage::Checks { alive } => match self.holder {
                None => Stage::Done,
                Some(now) if alive && self.is_proven(known, now) => {
                    after.calls[at].known = now;
                    match wish {
                        Wish::Lengthen { lease } => {
                            after.leases[usize::from(lease)] = SPANS[usize::from(lease)];
                            match self.flaw {
                                Flaw::NotAnnounced => Stage::KeepsTheNewAlive,
                                _ => Stage::Announces,
                            }
                        }
                        _ if self.flaw == Flaw::ChecksFirst => Stage::KeepsAliveAfter,
                        _ => after.answered(at, known.lease),
                    }
                }
                Some(now) => after.again(at, now),
            },
            Stage::KeepsAliveAfter => match after.keep_alive(known.lease) {
                true => after.answered(at, known.lease),
                false => Stage::Done,
            },
            Stage::Announces | Stage::Leaves if !written => after.inspect(at),
            Stage::Announces => {
                after.calls[at].known = after.holder.expect("it was written");
                Stage::KeepsTheNewAlive
            }
            Stage::KeepsTheNewAlive => match wish {
                Wish::Lengthen { lease } if after.keep_alive(lease) => Stage::Moves,
                _ => Stage::Done,
            },
            Stage::Moves => match (written, wish) {
                (true, Wish::Lengthen { lease }) => after.answered(at, lease),
                _ => Stage::Done,
            },
            Stage::Joins { written: before, kept } => match (before || written, kept) {
                (false, _) => after.inspect(at),
                (true, true) => after.answered(at, known.lease),
                (true, false) if !before => Stage::Joins { written: true, kept },
                (true, false) => match after.keep_alive(known.lease) {
                    true => after.answered(at, known.lease),
                    false => Stage::Done,
                },
            },
            Stage::Leaves | Stage::Done => Stage::Done,
        };
        after.calls[at].stage = stage;
        after
    }

    /// The sign of life of a re-entry comes before its write.
    fn keep_first(&self, at: usize) -> Option<Self> {
        let untouched = Stage::Joins {
            written: false,
            kept: false,
        };
        let mut after = self.clone();
        (self.calls[at].stage == untouched && after.keep_alive(self.calls[at].known.lease)).then(|| {
            after.calls[at].stage = Stage::Joins {
                written: false,
                kept: true,
            };
            after
        })
    }

    /// The client counts from when it sent the call.
    fn answered(&mut self, at: usize, lease: u8) -> Stage {
        let call = &mut self.calls[at];
        let left = SPANS[usize::from(lease)].saturating_sub(call.age);
        call.counts = call.counts.max(left);
        Stage::Done
    }

    /// It begins again from what is there now.
    fn again(&mut self, at: usize, now: Record) -> Stage {
        self.calls[at].known = now;
        Stage::Begins
    }

    fn inspect(&mut self, at: usize) -> Stage {
        match self.holder {
            Some(now) => self.again(at, now),
            None => Stage::Done,
        }
    }

    fn give_up(&self, at: usize) -> Option<Self> {
        let mut after = self.clone();
        after.losses = self.losses.checked_sub(1)?;
        after.late.push(self.write_of(at)?);
        after.calls[at].stage = Stage::Done;
        Some(after)
    }
}

impl Model for State {
    type Event = Event;

    fn next(&self) -> Vec<(Event, Self)> {
        let mut next = Vec::new();
        if self.ticks > 0 {
            next.push((Event::Tick, self.tick()));
        }
        for (at, call) in self.calls.iter().enumerate() {
            if call.stage == Stage::Done {
                continue;
            }
            next.push((Event::Goes(at, call.stage), self.go(at)));
            next.extend(self.keep_first(at).map(|after| (Event::Goes(at, call.stage), after)));
            next.extend(self.give_up(at).map(|after| (Event::IsGivenUp(at, call.stage), after)));
        }
        for (place, (judged_by, record)) in self.late.iter().enumerate() {
            let mut after = self.clone();
            after.late.remove(place);
            after.write(*judged_by, *record);
            next.push((Event::ArrivesLate(*record), after));
        }
        next.into_iter().map(|(what, after)| (what, after.forget())).collect()
    }

    fn wrong(&self) -> Option<&'static str> {
        let left = self.holder.map_or(0, |holder| self.leases[usize::from(holder.lease)]);
        let outlasted = self.calls.iter().any(|call| call.counts > left);
        outlasted.then_some("a client counts on more than its lease has")
    }
}

/// A holder with one hold, whose client counts on its lease, and these calls on it.
fn explore(flaw: Flaw, wishes: &[Wish]) -> Walked {
    let call = |(at, wish): (usize, &Wish)| Call {
        wish: *wish,
        stage: Stage::Begins,
        known: FIRST,
        age: 0,
        counts: if at == 0 { SPANS[0] } else { 0 },
    };
    let state = State {
        flaw,
        holder: Some(FIRST),
        leases: [SPANS[0], 0, 0],
        calls: wishes.iter().enumerate().map(call).collect(),
        late: Vec::new(),
        ticks: if cfg!(feature = "soak") { 6 } else { 5 },
        losses: if cfg!(feature = "soak") { 2 } else { 1 },
    };
    walk(state, 4_000_000)
}

const CHANGED: &[Wish] = &[Wish::Renew, Wish::Lengthen { lease: 1 }, Wish::Renew];

// G1
#[test]
fn renewals_beside_a_change_of_lease_are_safe() {
    explore(Flaw::None, CHANGED).is_sound(1_000);
}

#[test]
fn two_changes_of_lease_are_safe() {
    explore(Flaw::None, &[Wish::Lengthen { lease: 1 }, Wish::Lengthen { lease: 2 }]).is_sound(1_000);
}

#[test]
fn a_reentry_beside_a_change_of_lease_is_safe() {
    explore(Flaw::None, &[Wish::Renew, Wish::Lengthen { lease: 1 }, Wish::Reenter]).is_sound(1_000);
}

#[test]
fn reentries_beside_the_release_of_the_other_hold_are_safe() {
    explore(Flaw::None, &[Wish::Release, Wish::Reenter, Wish::Reenter]).is_sound(1_000);
}

#[test]
fn a_check_before_the_sign_of_life_is_noticed() {
    explore(Flaw::ChecksFirst, CHANGED).is_noticed("counts on more");
}

#[test]
fn a_lease_that_is_not_announced_is_noticed() {
    explore(Flaw::NotAnnounced, CHANGED).is_noticed("counts on more");
}

#[test]
fn a_renewal_that_counts_on_an_old_record_is_noticed() {
    explore(Flaw::CountsOnAnOldRecord, CHANGED).is_noticed("counts on more");
}

#[test]
fn a_release_that_overwrites_a_reentry_is_noticed() {
    explore(Flaw::WritesBlindly, &[Wish::Release, Wish::Reenter]).is_noticed("counts on more");
}
