//! A call is dropped at the very moment of its grant, while its retry with the same request id
//! arrives: the retry's lease is never taken away, and no lock stays stuck.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::client::{Ask, Caller, Held, why};
use crate::rounds;
use crate::server::Home;

/// In memory a grant takes microseconds, in a file an fsync: the race has two shapes.
const CONFIG: &str = "[namespaces.default]\n[namespaces.memory.embedded]\npath = ':memory:'\n";
/// Longer than the test: what is lost was taken away.
const TTL: Duration = Duration::from_secs(120);
const WAIT: Duration = Duration::from_secs(20);
/// How many races run at once.
const AT_ONCE: usize = 16;
/// About how long a grant takes, until it is known better.
const FIRST_GUESS_MICROS: u64 = 1000;

/// How the races went.
#[derive(Debug, Default)]
struct Tally {
    next: AtomicUsize,
    dropped: AtomicUsize,
    superseded: AtomicUsize,
    /// How long a grant takes here and now, in microseconds: a call that was dropped before its
    /// answer makes it longer, one that was answered shorter, so that both are met equally often.
    typical: AtomicU64,
}

impl Tally {
    fn typical(&self) -> Duration {
        Duration::from_micros(self.typical.load(Ordering::Relaxed))
    }

    fn learn(&self, dropped: bool) {
        let typical = self.typical.load(Ordering::Relaxed);
        let step = typical / 20 + 1;
        let better = if dropped {
            typical + step
        } else {
            typical.saturating_sub(step)
        };
        self.typical.store(better, Ordering::Relaxed);
        self.dropped.fetch_add(usize::from(dropped), Ordering::Relaxed);
    }
}

/// A number from 0 to below `most` that looks like chance, the same in every run.
fn chance(seed: usize, most: u64) -> u64 {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) % most.max(1)
}

/// One connection for the first calls, one for their retries.
#[derive(Clone)]
struct Racer {
    first: Caller,
    retry: Caller,
    tally: Arc<Tally>,
}

impl Racer {
    fn offset(&self, seed: usize) -> Duration {
        Duration::from_micros(chance(seed, 2 * self.tally.typical.load(Ordering::Relaxed)))
    }

    /// The first call and its end, after `patience`.
    async fn drop_first(&self, name: &str, ask: Ask, patience: Duration) {
        let ended = tokio::time::timeout(patience, self.first.acquire(name, ask)).await;
        self.tally.learn(ended.is_err());
    }

    /// The retry, which insists: an older call that arrives late may take its wait over once more.
    async fn retry(&self, name: &str, ask: Ask) -> Held {
        loop {
            match self.retry.acquire(name, ask.clone()).await {
                Ok(held) => return held,
                Err(status) if why(&status) == "SUPERSEDED" => {
                    self.tally.superseded.fetch_add(1, Ordering::Relaxed);
                }
                Err(status) => panic!("{name}: {status:?}"),
            }
        }
    }

    /// A free lock: the first call is granted at once.
    async fn race(&self, number: usize) -> Held {
        let name = format!("free-{number}");
        let ask = Ask::once(TTL).waiting(WAIT).named("again");
        let first = self.drop_first(&name, ask.clone(), self.offset(3 * number));
        let later = async {
            tokio::time::sleep(self.offset(3 * number + 1)).await;
            self.retry(&name, ask.clone()).await
        };
        tokio::join!(first, later).1
    }

    /// A held lock: the first call waits, and is granted by the release of its holder.
    async fn race_in_queue(&self, number: usize) -> Held {
        let name = format!("held-{number}");
        let holder = self.retry.take(&name, TTL).await;
        let ask = Ask::once(TTL).waiting(WAIT).named("again");
        let typical = self.tally.typical();
        let first = self.drop_first(&name, ask.clone(), typical + self.offset(3 * number));
        let later = async {
            tokio::time::sleep(typical + self.offset(3 * number + 1)).await;
            self.retry(&name, ask.clone()).await
        };
        let release = async {
            tokio::time::sleep(typical + self.offset(3 * number + 2)).await;
            self.first.release(&holder).await.expect("it is released");
        };
        tokio::join!(first, later, release).1
    }

    /// Runs races until so many have begun.
    async fn run(self, races: usize) -> Vec<Held> {
        let mut held = Vec::new();
        loop {
            let number = self.tally.next.fetch_add(1, Ordering::Relaxed);
            if number >= races {
                return held;
            }
            held.push(match number % 2 {
                0 => self.race(number).await,
                _ => self.race_in_queue(number).await,
            });
        }
    }
}

async fn the_retrys_lease_stays(namespace: &'static str) {
    let races = rounds(2000, 40_000);
    let home = Home::with_config(CONFIG);
    let server = home.start();
    let racer = Racer {
        first: Caller::of(&server).within(namespace),
        retry: Caller::of(&server).within(namespace),
        tally: Arc::new(Tally {
            typical: AtomicU64::new(FIRST_GUESS_MICROS),
            ..Tally::default()
        }),
    };
    let racers: Vec<_> = (0..AT_ONCE).map(|_| tokio::spawn(racer.clone().run(races))).collect();
    let mut held = Vec::new();
    for racer in racers {
        held.extend(racer.await.expect("no panic"));
    }
    assert_eq!(held.len(), races);
    // Long enough for an undo that came late.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for lease in &held {
        let renewed = racer.retry.renew(lease, None).await;
        renewed.unwrap_or_else(|status| panic!("taken away: {lease:?}: {status:?}"));
        racer.retry.release(lease).await.expect("it is released");
    }
    racer.retry.all_are_free().await;
    let dropped = racer.tally.dropped.load(Ordering::Relaxed);
    println!(
        "{namespace}: {races} races, {dropped} first calls dropped unanswered, {} retries superseded, a grant \
         takes {:?}",
        racer.tally.superseded.load(Ordering::Relaxed),
        racer.tally.typical()
    );
    let met = races / 10..races * 9 / 10;
    assert!(
        met.contains(&dropped),
        "{dropped} of {races} were dropped: that is no race"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_dropped_at_its_grant_takes_nothing_from_its_retry() {
    the_retrys_lease_stays("default").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_dropped_at_its_grant_takes_nothing_from_its_retry_in_memory() {
    the_retrys_lease_stays("memory").await;
}
