//! Clients of several replicas that want one lock all the time, and the register that it protects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::claim::Cause;
use fencepost::error::Error;
use fencepost::locks::Locks;
use tokio::task::JoinHandle;

use crate::clients::{acquire, token, until_empty};
use crate::register::Register;

/// More grants than this show that the lock went from hand to hand.
pub const FEW: usize = 5;
/// How much longer than asked for a crowd may take for so many, on a machine that is slow.
const LONGER: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(3);
/// How long a client does its work.
const WORK: Duration = Duration::from_millis(3);

/// The time in which a client could be sure that it held a lock.
#[derive(Debug, Clone, Copy)]
struct Held {
    token: u64,
    from: Instant,
    /// When it sent its release, or when its lease could have ended by its own clock.
    until: Instant,
}

/// The clients.
pub struct Crowd {
    clients: Vec<JoinHandle<Vec<Held>>>,
    until: Instant,
    register: Arc<Register>,
}

impl Crowd {
    /// Lets so many clients begin, which turn to these replicas.
    pub fn begin(replicas: &[Locks], clients: usize, time: Duration) -> Self {
        let until = Instant::now() + time;
        let register = Arc::new(Register::default());
        let client = |n: usize| {
            let locks = replicas[n % replicas.len()].clone();
            tokio::spawn(cycle(locks, Arc::clone(&register), until))
        };
        Self {
            clients: (0..clients).map(client).collect(),
            until,
            register,
        }
    }

    /// Waits for their end, and judges: no two were sure of the lock at once, and tokens rose with the time. Says how
    /// many grants there were, and the longest time without one.
    pub async fn judge(self) -> (usize, Duration) {
        let mut all = Vec::new();
        for client in self.clients {
            all.extend(client.await.expect("no panic"));
        }
        all.sort_unstable_by_key(|held| held.from);
        for two in all.windows(2) {
            let (one, next) = (two[0], two[1]);
            assert!(one.token < next.token, "unsafe: tokens fell: {one:?} {next:?}");
            assert!(one.until <= next.from, "unsafe: two held at once: {one:?} {next:?}");
        }
        let times: Vec<_> = all.iter().map(|held| held.from).chain([self.until]).collect();
        let gaps = times.windows(2).map(|two| two[1].saturating_duration_since(two[0]));
        let gap = gaps.max().unwrap_or(Duration::MAX);
        assert_eq!(self.register.writes(), all.len() as u64, "some were refused");
        println!("{} grants, longest gap {gap:?}", all.len());
        (all.len(), gap)
    }
}

/// The crowd of two replicas, and what is asked of both when its end has come.
pub struct Load {
    replicas: [Locks; 2],
    crowd: Crowd,
}

impl Load {
    /// Begins one that lasts at least so long.
    pub fn begin(replicas: [Locks; 2], time: Duration) -> Self {
        let crowd = Crowd::begin(&replicas, 8, time);
        Self { replicas, crowd }
    }

    /// Waits for its end, and judges. Both replicas grant again then, and nothing is left. Says for how long nobody was
    /// granted the lock.
    pub async fn ends_well(self) -> Duration {
        let (grants, gap) = self.crowd.judge().await;
        assert!(grants > FEW, "only {grants} grants");
        for locks in &self.replicas {
            let end = Instant::now() + LONGER;
            let lease = loop {
                match acquire(locks, "hot", TTL, LONGER).await {
                    Ok(lease) => break lease,
                    Err(error) => assert!(Instant::now() < end, "it is never granted again: {error:?}"),
                }
            };
            locks.release(&lease.key).await.expect("it is held");
        }
        until_empty(&self.replicas[0]).await;
        gap
    }
}

/// Acquires, writes to the register and releases until `until`, and then until there were more than [`FEW`] grants,
/// passing over a store that is away; what it held.
async fn cycle(locks: Locks, register: Arc<Register>, until: Instant) -> Vec<Held> {
    let mut held = Vec::new();
    let goes_on = || {
        let now = Instant::now();
        now < until || (register.writes() <= FEW as u64 && now < until + LONGER)
    };
    while goes_on() {
        let sent = Instant::now();
        match acquire(&locks, "hot", TTL, Duration::from_secs(10)).await {
            Ok(lease) => {
                let from = Instant::now();
                let sure = sent + lease.waited + TTL;
                tokio::time::sleep(WORK).await;
                let taken = register.write(token(&lease));
                let until = Instant::now();
                assert!(taken || until >= sure, "unsafe: a sure holder was refused: {lease:?}");
                held.push(Held {
                    token: token(&lease),
                    from,
                    until: until.min(sure),
                });
                release(&locks, &lease).await;
            }
            // It was granted, and ran out while the store stood still.
            Err(Error::LeaseLost {
                cause: Some(Cause::Expired),
            }) => {}
            Err(Error::Backend(_) | Error::WaitTimeout { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(other) => panic!("{other:?}"),
        }
    }
    held
}

/// A release of unknown outcome is repeated; one that is lost ends by its TTL.
async fn release(locks: &Locks, lease: &fencepost::locks::Lease) {
    for _ in 0..20 {
        if !matches!(locks.release(&lease.key).await, Err(Error::Backend(_))) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
