//! What a server knows of the database that it used last.

use std::time::Duration;

use tokio::time::Instant;

use super::dialect::{Quarantine, Stored};
use super::origin::Origin;

/// What a server knows of the database that it used last.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known {
    /// Which one it is.
    pub origin: Origin,
    /// Whether each standby that may be promoted has what was committed there, as this server saw since it started.
    pub all_confirm: bool,
    /// When the quarantine began.
    pub quarantine: Option<Noted>,
    /// How often this was noted: what was read while another connection noted something may be older than that.
    pub notes: u64,
}

/// When a quarantine began.
#[derive(Debug, Clone, Copy)]
pub struct Noted {
    /// By the database's clock.
    pub since: i64,
    /// When this server noted it.
    pub at: Instant,
    /// How long it lasted then.
    pub passed: Duration,
}

/// What becomes of a connection that has entered the store.
#[derive(Debug)]
pub enum Verdict {
    /// It is used.
    Accepted,
    /// Another database was used since, which is no older.
    Replaced,
    /// It enters once more, because another connection has noted this in the meantime.
    Again(Known),
}

impl Known {
    /// Notes what a connection read that entered with what was known before, unless the database is older than the one that
    /// was used last, or something else was noted in the meantime.
    pub fn accept(&mut self, before: &Self, stored: &Stored) -> Verdict {
        let of = stored.origin;
        let is_stale = self.origin != before.origin && self.origin != of;
        if is_stale || of.system == self.origin.system && of.timeline < self.origin.timeline {
            return Verdict::Replaced;
        }
        if self.notes != before.notes {
            return Verdict::Again(*self);
        }
        self.origin = of;
        self.all_confirm = stored.all_confirm;
        self.note(stored.quarantine);
        Verdict::Accepted
    }

    /// Notes the quarantine of this database as it was read after so many notes, unless another connection has noted
    /// something since. False if the database was replaced by another one.
    pub fn note_check(&mut self, of: Origin, quarantine: Quarantine, notes: u64) -> bool {
        let since = quarantine.map(|(since, _)| since);
        // What is as it was makes no connection enter once more.
        if self.origin == of && self.notes == notes && self.quarantine.map(|known| known.since) != since {
            self.note(quarantine);
        }
        self.origin == of
    }

    /// Notes that an operator ended the quarantine of this database.
    pub fn note_admitted(&mut self, of: Origin) {
        if self.origin == of {
            self.note(None);
        }
    }

    fn note(&mut self, quarantine: Quarantine) {
        self.notes += 1;
        let began = |(since, now): (i64, i64)| Noted {
            since,
            at: Instant::now(),
            passed: Duration::from_micros(u64::try_from(now - since).unwrap_or_default()),
        };
        let same = |known: &Noted| quarantine.is_some_and(|(since, _)| known.since == since);
        self.quarantine = self.quarantine.filter(same).or_else(|| quarantine.map(began));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(timeline: i64) -> Origin {
        Origin {
            system: 1,
            timeline,
            tables: 1,
        }
    }

    fn stored(all_confirm: bool, quarantine: Quarantine) -> Stored {
        Stored {
            format: 1,
            origin: origin(1),
            quarantine,
            all_confirm,
            terms: None,
        }
    }

    // G198
    #[test]
    fn of_two_connections_that_enter_at_once_none_notes_what_it_read_before_the_other() {
        // One read that some standbys do not confirm, or that there is no quarantine, as the other one changed it.
        let quarantine = Some((1, 2));
        for (older, newer) in [
            (stored(false, None), stored(true, None)),
            (stored(true, None), stored(false, None)),
            (stored(true, None), stored(true, quarantine)),
        ] {
            let mut known = Known::default();
            let before = known;
            assert!(matches!(known.accept(&before, &newer), Verdict::Accepted));
            let Verdict::Again(before) = known.accept(&before, &older) else {
                panic!("what it read may be older");
            };
            let since = |noted: Option<Noted>| noted.map(|noted| noted.since);
            assert_eq!(known.all_confirm, newer.all_confirm);
            assert_eq!(since(known.quarantine), newer.quarantine.map(|(since, _)| since));
            assert!(matches!(known.accept(&before, &newer), Verdict::Accepted));
        }
    }

    // G198
    #[test]
    fn a_check_that_began_before_a_quarantine_was_noted_does_not_end_it() {
        let mut known = Known::default();
        let before = known;
        assert!(matches!(
            known.accept(&before, &stored(true, Some((1, 2)))),
            Verdict::Accepted
        ));
        assert!(known.note_check(origin(1), None, before.notes));
        assert!(known.quarantine.is_some());
        assert!(known.note_check(origin(1), None, known.notes));
        assert!(known.quarantine.is_none());
        // The next one changes nothing for those who enter meanwhile.
        let before = known;
        assert!(known.note_check(origin(1), None, known.notes));
        assert!(matches!(known.accept(&before, &stored(true, None)), Verdict::Accepted));
    }

    // G136
    #[test]
    fn a_connection_to_a_database_that_was_replaced_since_is_not_used() {
        let mut known = Known::default();
        let before = known;
        let promoted = Stored {
            origin: origin(2),
            ..stored(true, None)
        };
        assert!(matches!(known.accept(&before, &promoted), Verdict::Accepted));
        assert!(matches!(known.accept(&before, &stored(true, None)), Verdict::Replaced));
        let now = known;
        assert!(matches!(known.accept(&now, &stored(true, None)), Verdict::Replaced));
        assert!(!known.note_check(origin(1), None, known.notes));
    }
}
