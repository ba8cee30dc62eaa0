//! What is worth a line of the log among the changes of a store's health.
//!
//! An outage is told by its first reason, which may be that a connection was closed, and then by each other one. A store
//! that fails and serves in turns, as on a full disk, gets fewer lines the longer it does: the pause between two lines
//! grows from 1 s to 1 min, and each line says how often the health has changed since the last.

use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use tokio::time::Instant;

use super::Health;
use crate::backoff::Backoff;

/// The longest pause between two lines. After so long without a line, the next change is told at once.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The pauses between two lines.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), LONGEST_PAUSE);
/// How many reasons of one outage are told.
const REASONS: usize = 8;

/// See the module.
#[derive(Debug)]
pub struct HealthNews {
    health: Health,
    told: Option<Discriminant<Health>>,
    /// The reasons of the present outage that were told.
    reasons: Vec<String>,
    /// How often the health has changed since the last line.
    changes: u32,
    pauses: Backoff,
    told_at: Instant,
    /// When the next line may be written.
    next: Instant,
}

impl HealthNews {
    /// The news of a store that has this health at first. That it serves is no news, and that it does not is after 1 s.
    pub fn new(health: &Health) -> Self {
        let mut pauses = PAUSES;
        let now = Instant::now();
        Self {
            health: health.clone(),
            told: (*health == Health::Serving).then(|| discriminant(health)),
            reasons: Vec::new(),
            changes: 0,
            next: now + pauses.pause(),
            pauses: PAUSES,
            told_at: now,
        }
    }

    /// Notes the health.
    pub fn update(&mut self, health: &Health) {
        if discriminant(health) != discriminant(&self.health) {
            self.changes += 1;
        }
        self.health.clone_from(health);
    }

    /// When there is something to tell.
    pub fn due(&self) -> Option<Instant> {
        let is_new = match &self.health {
            Health::Unavailable { reason } => self.reasons.len() < REASONS && !self.reasons.contains(reason),
            Health::Serving | Health::Quarantined { .. } => false,
        };
        (is_new || self.told != Some(discriminant(&self.health))).then_some(self.next)
    }

    /// What is to be told now, and how often the health has changed since the last line, if more than once.
    pub fn take(&mut self) -> Option<(&Health, Option<u32>)> {
        let now = Instant::now();
        self.due().filter(|due| *due <= now)?;
        let told = self.told.replace(discriminant(&self.health));
        if told != self.told {
            self.reasons.clear();
        }
        if let Health::Unavailable { reason } = &self.health {
            self.reasons.push(reason.clone());
        }
        if now - self.told_at > LONGEST_PAUSE {
            self.pauses.reset();
        }
        self.told_at = now;
        self.next = now + self.pauses.pause();
        let changes = std::mem::take(&mut self.changes);
        Some((&self.health, (changes > 1).then_some(changes)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep_until};

    use super::*;

    fn failed(reason: &str) -> Health {
        Health::unavailable(reason)
    }

    async fn next(news: &mut HealthNews) -> Option<(Health, Option<u32>)> {
        sleep_until(news.due()?).await;
        news.take().map(|(health, changes)| (health.clone(), changes))
    }

    // G189
    #[tokio::test(start_paused = true)]
    async fn a_health_that_changes_all_the_time_is_told_ever_less_often() {
        let mut news = HealthNews::new(&Health::Serving);
        let mut lines = 0;
        for _ in 0..560 {
            for health in [failed("the disk is full"), Health::Serving] {
                news.update(&health);
                lines += u32::from(news.take().is_some());
                advance(Duration::from_millis(50)).await;
            }
        }
        assert!((4..=8).contains(&lines), "{lines} lines in 56 s");
        news.update(&failed("the disk is full"));
        let (_, changes) = next(&mut news).await.expect("the last state is told");
        assert!(changes.is_some_and(|changes| changes > 100), "{changes:?}");
        assert_eq!(next(&mut news).await, None);
    }

    // G189
    #[tokio::test(start_paused = true)]
    async fn each_reason_of_an_outage_is_told_once() {
        let mut news = HealthNews::new(&Health::Serving);
        advance(LONGEST_PAUSE * 2).await;
        let mut told = Vec::new();
        for reason in [
            "the connection was closed",
            "the password is wrong",
            "the connection was closed",
        ] {
            news.update(&failed(reason));
            told.extend(next(&mut news).await.map(|(health, _)| health));
        }
        assert_eq!(
            told,
            [failed("the connection was closed"), failed("the password is wrong")]
        );
        for number in 0..100 {
            news.update(&failed(&format!("connection {number} failed")));
            told.extend(next(&mut news).await.map(|(health, _)| health));
        }
        assert_eq!(told.len(), REASONS);
        news.update(&Health::Serving);
        assert_eq!(next(&mut news).await, Some((Health::Serving, None)));
        advance(LONGEST_PAUSE * 2).await;
        news.update(&failed("the connection was closed"));
        assert_eq!(news.due(), Some(news.next), "a later outage is told anew");
        assert!(news.take().is_some(), "at once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_away_at_first_is_told_after_a_second() {
        let mut news = HealthNews::new(&failed("not connected yet"));
        assert!(news.take().is_none());
        assert!(next(&mut news).await.is_some());
    }
}
