//! The ended holds that a lock remembers: the newest in the root, older ones in immutable parts of 32.
//!
//! The root says which parts exist. A server loads those that it lacks before it decides a verb that must know of an end,
//! and keeps them in its cache. Parts are deleted with a later commit: by the namespace's limit, and by their age.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use crate::backend::FINISHED_KEPT;
use crate::claim::Cause;
use crate::name::{ClaimId, FencingToken, Secret};

/// How many ends a part holds. The root has fewer when the verbs of a batch begin.
pub const PART: usize = 32;
/// How many parts a commit deletes at most, so that no step of the store takes long.
const DELETED: u64 = 256;
/// The ages of parts are known this coarsely, in seconds, so that the root stays small.
const BUCKET: u64 = 5;

/// A hold that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub secret: Secret,
    /// Its id, if a retry may look for it.
    pub id: Option<ClaimId>,
    pub token: FencingToken,
    pub cause: Cause,
    /// When, on the lock's clock as the server estimated it.
    pub at: Duration,
}

/// By what an end is looked for.
#[derive(Debug, Clone, Copy)]
pub enum Sought<'a> {
    Secret(&'a Secret),
    Id(&'a ClaimId),
    Token(FencingToken),
}

impl Ended {
    fn is(&self, sought: Sought<'_>) -> bool {
        match sought {
            Sought::Secret(secret) => self.secret == *secret,
            Sought::Id(id) => self.id.as_ref() == Some(id),
            Sought::Token(token) => self.token == token,
        }
    }
}

/// The ends of one lock as its root says them.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    /// The newest, oldest first.
    pub inline: VecDeque<Ended>,
    /// The numbers of the parts that exist.
    pub parts: Range<u64>,
    /// The ages of parts, oldest first: those below this number are at least as old as this time in units of [`BUCKET`].
    pub ages: VecDeque<(u64, u64)>,
    /// How many ends are remembered.
    pub limit: u32,
    /// The newest parts, as long as they are not written.
    pub moved: Vec<(u64, Vec<Ended>)>,
}

/// The end that was looked for lies perhaps in a part that this server has not loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingParts;

impl Ends {
    /// Forgets ends whose time has passed or that are beyond the limit, and moves ends into parts while the root has too
    /// many. Runs before the verbs of a batch, when every token is known. Returns the parts that are deleted.
    pub fn tidy(&mut self, now: Duration) -> Range<u64> {
        let oldest = now.saturating_sub(FINISHED_KEPT);
        let first = self.parts.start;
        let last = first + DELETED;
        while self.inline.front().is_some_and(|ended| ended.at <= oldest) {
            self.inline.pop_front();
        }
        while self.inline.len() >= PART {
            let part: Vec<_> = self.inline.drain(..PART).collect();
            let bucket = part.iter().map(|ended| ended.at).max().unwrap_or(now).as_secs() / BUCKET;
            self.moved.push((self.parts.end, part));
            self.parts.end += 1;
            match self.ages.back_mut() {
                Some((below, last)) if *last >= bucket => *below = self.parts.end,
                _ => self.ages.push_back((self.parts.end, bucket)),
            }
        }
        while let Some((below, bucket)) = self.ages.front().copied() {
            if Duration::from_secs((bucket + 1) * BUCKET) > oldest && below > self.parts.start {
                break;
            }
            self.parts.start = self.parts.start.max(below.min(last));
            if self.parts.start < below {
                break;
            }
            self.ages.pop_front();
        }
        while !self.parts.is_empty() && self.parts.start < last && self.len() - PART >= self.limit as usize {
            self.parts.start += 1;
        }
        let existing = &self.parts;
        self.moved.retain(|(number, _)| existing.contains(number));
        first..self.parts.start
    }

    /// Remembers an end.
    pub fn remember(&mut self, ended: Ended, limit: u32) {
        self.inline.push_back(ended);
        self.limit = limit;
        while self.inline.len() > limit as usize {
            self.inline.pop_front();
        }
    }

    /// How a hold ended, while that is remembered.
    pub fn find<'a>(
        &'a self,
        parts: &'a Parts,
        sought: Sought<'_>,
        now: Duration,
    ) -> Result<Option<&'a Ended>, MissingParts> {
        let is_kept = |ended: &&Ended| ended.at + FINISHED_KEPT > now;
        if let Some(found) = self.inline.iter().rev().find(|ended| ended.is(sought)) {
            return Ok(Some(found).filter(is_kept));
        }
        let mut moved = self.moved.iter().flat_map(|(_, part)| part).rev();
        if let Some(found) = moved.find(|ended| ended.is(sought)) {
            return Ok(Some(found).filter(is_kept));
        }
        let written = self.parts.start..self.parts.end - self.moved.len() as u64;
        if written.is_empty() {
            return Ok(None);
        }
        if !parts.missing(&written).is_empty() {
            return Err(MissingParts);
        }
        let found = parts.find(sought, self.parts.start).filter(|(number, index, _)| {
            let newer = self.inline.len() + PART * (self.parts.end - 1 - number) as usize + (PART - 1 - index);
            newer < self.limit as usize
        });
        Ok(found.map(|(_, _, ended)| ended).filter(is_kept))
    }

    fn len(&self) -> usize {
        self.inline.len() + PART * (self.parts.end - self.parts.start) as usize
    }
}

/// The parts of one lock that this server has loaded or written.
#[derive(Debug, Default)]
pub struct Parts {
    loaded: BTreeMap<u64, Vec<Ended>>,
    by_secret: HashMap<Secret, (u64, usize)>,
    by_id: HashMap<ClaimId, (u64, usize)>,
    /// The newest part, until it is loaded again.
    doubted: Option<(u64, Vec<Ended>)>,
}

impl Parts {
    /// The store's data may have gone back: the parts stay only if the newest is what it was. Each follows from those
    /// before it.
    pub fn recheck(&mut self) {
        let newest = self.loaded.last_key_value().map(|(number, _)| *number);
        self.doubted = newest.map(|number| (number, self.remove(number)));
    }

    /// Which of these parts are not loaded: the shortest range that has them all.
    pub fn missing(&self, existing: &Range<u64>) -> Range<u64> {
        let mut from = existing.start;
        // Mostly the newest are missing. What is loaded has no gap but those of other servers' parts.
        while from < existing.end && self.loaded.contains_key(&from) {
            from += 1;
        }
        from..existing.end
    }

    /// Adds a part.
    pub fn insert(&mut self, number: u64, part: Vec<Ended>) {
        let doubted = self.doubted.take_if(|(doubted, _)| *doubted == number);
        if doubted.is_some_and(|(_, before)| before != part) {
            *self = Self::default();
        }
        let newest = |known: Option<&(u64, usize)>, at: (u64, usize)| known.is_none_or(|known| *known < at);
        for (index, ended) in part.iter().enumerate() {
            let at = (number, index);
            if newest(self.by_secret.get(&ended.secret), at) {
                self.by_secret.insert(ended.secret, at);
            }
            if let Some(id) = ended.id
                && newest(self.by_id.get(&id), at)
            {
                self.by_id.insert(id, at);
            }
        }
        self.loaded.insert(number, part);
    }

    /// Counts those of these parts that were not found as empty: a later commit has deleted them.
    pub fn fill(&mut self, sought: Range<u64>) {
        for number in sought {
            self.loaded.entry(number).or_default();
        }
    }

    /// Drops the parts that do not exist any more.
    pub fn retain(&mut self, existing: &Range<u64>) {
        let before = self.loaded.range(..existing.start);
        let gone: Vec<u64> = before
            .chain(self.loaded.range(existing.end..))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) -> Vec<Ended> {
        let part = self.loaded.remove(&number).unwrap_or_default();
        for ended in &part {
            if self.by_secret.get(&ended.secret).is_some_and(|(of, _)| *of == number) {
                self.by_secret.remove(&ended.secret);
            }
            if let Some(id) = ended.id
                && self.by_id.get(&id).is_some_and(|(of, _)| *of == number)
            {
                self.by_id.remove(&id);
            }
        }
        part
    }

    fn find(&self, sought: Sought<'_>, first: u64) -> Option<(u64, usize, &Ended)> {
        let (number, index) = match sought {
            Sought::Secret(secret) => *self.by_secret.get(secret)?,
            Sought::Id(id) => *self.by_id.get(id)?,
            // Rare: an operator asks.
            Sought::Token(_) => {
                let mut all = self
                    .loaded
                    .iter()
                    .flat_map(|(number, part)| part.iter().enumerate().map(move |at| (*number, at)));
                let (number, (index, _)) = all.find(|(_, (_, ended))| ended.is(sought))?;
                (number, index)
            }
        };
        if number < first {
            return None;
        }
        Some((number, index, self.loaded.get(&number)?.get(index)?))
    }
}
