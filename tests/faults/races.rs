//! A call that is dropped at the very moment of its grant, while its retry arrives.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::dice::Dice;
use fencepost::api::proto::{AcquireRequest, Lease};
use tokio::task::JoinSet;

use crate::client::{Client, ask, named, reason, time, waiting};
use crate::server::{Home, Server};

/// How much longer the soak is.
const TIMES: u64 = if cfg!(feature = "soak") { 20 } else { 1 };
/// How often a call is dropped in each kind of store; 2,000 times in all.
const DROPS_IN_MEMORY: u64 = 1_400 * TIMES;
const DROPS_IN_FILE: u64 = 600 * TIMES;
/// How many of them at once, so that the moments also vary by what else the server does.
const AT_ONCE: u64 = 40;
const WAIT: Duration = Duration::from_secs(20);
/// About how long a call takes.
const FIRST_AIM: Duration = Duration::from_millis(5);
/// After this time an undo of the dropped call that was to come has come.
const A_MOMENT: Duration = Duration::from_millis(20);

/// One race: its own lock, its own connection for the retry.
struct Race {
    number: u64,
    lock: String,
    first: Client,
    second: Client,
    dice: Dice,
    aim: Arc<Aim>,
}

/// How long after its beginning a call is answered: found by dropping calls a little later when the
/// last was dropped too early, and the other way round. So about half are dropped before.
#[derive(Debug)]
struct Aim(Mutex<Duration>);

impl Aim {
    const STEP: f64 = 1.05;

    /// A moment around the answer.
    fn moment(&self, dice: &mut Dice) -> Duration {
        let answer = *self.0.lock().expect("no panic");
        answer / 2 + dice.time(answer)
    }

    fn learn(&self, answered: bool) {
        let mut answer = self.0.lock().expect("no panic");
        *answer = answer.mul_f64(if answered { 1.0 / Self::STEP } else { Self::STEP });
    }
}

/// What became of a race.
#[derive(Debug, Default)]
struct Outcome {
    /// The first call was answered before it was dropped.
    answered: u64,
    /// The retry was given what the first call had been granted.
    found: u64,
    /// The retry was taken for the older call, and had to come again.
    superseded: u64,
}

impl Race {
    fn request(&self) -> AcquireRequest {
        waiting(WAIT, named("the request", ask(&self.lock, "the caller")))
    }

    /// Runs the race on a free lock, or behind a holder who releases it meanwhile.
    async fn run(mut self) -> Outcome {
        let mut outcome = Outcome::default();
        let holder = match self.number % 2 {
            0 => None,
            _ => Some(self.first.acquire(ask(&self.lock, "the holder")).await),
        };
        let call = self.begin(holder.is_some()).await;
        let release = self.release(holder);
        let (drop_at, retry_at) = (self.aim.moment(&mut self.dice), self.aim.moment(&mut self.dice));
        let dropped = async move {
            tokio::time::sleep(drop_at).await;
            call.abort();
            call.await.is_ok_and(|answer| answer)
        };
        let retried = async {
            tokio::time::sleep(retry_at).await;
            self.retry(&mut outcome.superseded).await
        };
        let (answered, lease, ()) = tokio::join!(dropped, retried, release);
        self.aim.learn(answered);
        outcome.answered = u64::from(answered);
        outcome.found = u64::from(time(lease.waited).is_zero());
        self.judge(&lease).await;
        outcome
    }

    /// The call that will be dropped; behind a holder it waits when this returns.
    async fn begin(&self, behind: bool) -> tokio::task::JoinHandle<bool> {
        let (client, request) = (self.first.clone(), self.request());
        let call = tokio::spawn(async move { client.try_acquire(request).await.is_ok() });
        if behind {
            self.first.until_waiting(&self.lock, 1).await;
        }
        call
    }

    /// The release that grants the lock to the call behind it.
    fn release(&self, holder: Option<Lease>) -> impl Future<Output = ()> + use<> {
        let client = self.second.clone();
        async move {
            if let Some(holder) = holder {
                client.release(&holder).await;
            }
        }
    }

    /// Retries as a client does: also when the older call came in last and took the wait over.
    async fn retry(&self, superseded: &mut u64) -> Lease {
        loop {
            match self.second.try_acquire(self.request()).await {
                Ok(lease) => return lease,
                Err(status) if reason(&status) == "SUPERSEDED" => *superseded += 1,
                Err(status) => panic!("{}: {status:?}", self.lock),
            }
        }
    }

    /// Asserts that the retry's lease stays, and that the lock is free after it.
    async fn judge(&self, lease: &Lease) {
        tokio::time::sleep(A_MOMENT).await;
        let renewed = self.second.try_renew(lease, None).await;
        assert!(
            renewed.is_ok(),
            "{}: the retry's lease was taken away: {renewed:?}",
            self.lock
        );
        assert!(self.second.holds(lease).await, "{}: its token is not held", self.lock);
        let left = self.second.inspect(&self.lock).await;
        assert_eq!((left.holder_count, left.waiter_count), (1, 0), "{left:?}");
        self.second.release(lease).await;
        let next = self.second.try_acquire(ask(&self.lock, "the next")).await;
        let next = next.unwrap_or_else(|status| panic!("{}: the lock is stuck: {status:?}", self.lock));
        assert!(next.fencing_token > lease.fencing_token);
        self.second.release(&next).await;
    }
}

async fn drop_many(home: &Home, drops: u64, kind: &str) {
    let server: Server = home.start().await;
    let (first, second) = (server.client(), server.another_client().await);
    let aims = [(); 2].map(|()| Arc::new(Aim(Mutex::new(FIRST_AIM))));
    let (mut races, mut total) = (JoinSet::new(), Outcome::default());
    for number in 0..drops {
        if number >= AT_ONCE {
            count(&mut races, &mut total).await;
        }
        let race = Race {
            number,
            lock: format!("lock {number}"),
            first: first.clone(),
            second: second.clone(),
            dice: Dice::new(number),
            aim: Arc::clone(&aims[usize::from(number % 2 == 0)]),
        };
        races.spawn(race.run());
    }
    while !races.is_empty() {
        count(&mut races, &mut total).await;
    }
    println!("{drops} calls dropped around their grant, {kind}: {total:?}");
    assert!(total.answered > 0 && total.answered < drops, "the moment was missed");
    assert!(
        total.found > 0 && total.found < drops,
        "no retry met a grant, or each did"
    );
}

async fn count(races: &mut JoinSet<Outcome>, total: &mut Outcome) {
    let ended = races.join_next().await.expect("one runs").expect("no panic");
    total.answered += ended.answered;
    total.found += ended.found;
    total.superseded += ended.superseded;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_dropped_at_its_grant_takes_nothing_from_its_retry_in_memory() {
    drop_many(&Home::in_memory(), DROPS_IN_MEMORY, "in memory").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_dropped_at_its_grant_takes_nothing_from_its_retry_in_a_file() {
    drop_many(&Home::with_file(), DROPS_IN_FILE, "in a file").await;
}
