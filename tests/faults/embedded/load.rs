//! kill -9 in the middle of everything: many callers on several locks, and a history that is judged.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::client::{Ask, Caller, Held, why};
use crate::history::{Seen, faults};
use crate::rounds;
use crate::server::Home;

const LOCKS: usize = 4;
const CALLERS: usize = 16;
/// Short, for what a killed server granted unheard blocks its lock that long.
const TTL: Duration = Duration::from_millis(200);
const CONFIG: &str = "[namespaces.default]\nttl_min = '100ms'\n";
/// So many of the last releases before a kill are looked at after it.
const LOOKED_AT: usize = 64;
/// How long a server lives, at least and at most.
const LIFE_MS: [u64; 2] = [50, 400];

/// What all callers wrote down.
#[derive(Debug, Default)]
struct Book {
    leases: Vec<Seen>,
    /// Leases whose release was acknowledged.
    released: Vec<Held>,
    /// What no promise allows.
    broken: Vec<String>,
}

/// One of many callers.
struct Worker {
    number: usize,
    caller: Caller,
    book: Arc<Mutex<Book>>,
    end: CancellationToken,
}

/// Whether an error says only that the server is not there, or not any more.
fn is_crash(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
    ) && fencepost::api::status::reason(status).is_none()
}

impl Worker {
    fn note(&self, write: impl FnOnce(&mut Book)) {
        write(&mut self.book.lock().unwrap_or_else(PoisonError::into_inner));
    }

    async fn run(self) {
        let mut call = 0;
        while !self.end.is_cancelled() {
            call += 1;
            let lock = format!("lock-{}", (self.number + call) % LOCKS);
            let sent = Instant::now();
            if let Some(held) = self.take(&lock, call).await {
                self.hold(lock, sent, held).await;
            }
        }
    }

    /// Takes a lock; half of the callers ask again with the same request id after a crash.
    async fn take(&self, lock: &str, call: usize) -> Option<Held> {
        let retries = self.number.is_multiple_of(2);
        let ask = Ask::once(TTL).waiting(2 * TTL);
        loop {
            let ask = match retries {
                true => ask.clone().named(&format!("{}-{call}", self.number)),
                false => ask.clone(),
            };
            match self.caller.acquire(lock, ask).await {
                Ok(held) => return Some(held),
                Err(status) if is_crash(&status) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    if !retries {
                        return None;
                    }
                }
                Err(status) => {
                    let allowed = matches!(&*why(&status), "WAIT_TIMEOUT" | "LEASE_LOST");
                    if !allowed {
                        self.note(|book| book.broken.push(format!("{lock}: {status:?}")));
                    }
                    return None;
                }
            }
        }
    }

    /// Holds for a moment and gives back, however often that has to be said.
    async fn hold(&self, lock: String, sent: Instant, held: Held) {
        let granted = Instant::now();
        tokio::time::sleep(Duration::from_millis(held.token % 4)).await;
        let released = Instant::now();
        self.note(|book| {
            book.leases.push(Seen {
                lock: lock.clone(),
                token: held.token,
                sent,
                granted,
                sure_until: released.min(held.sure_until),
            });
        });
        loop {
            match self.caller.release(&held).await {
                Ok(()) => return self.note(|book| book.released.push(held)),
                Err(status) if is_crash(&status) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(status) => {
                    let over = Instant::now() >= held.sure_until && why(&status) == "LEASE_LOST";
                    if !over {
                        self.note(|book| book.broken.push(format!("{lock}: {status:?}")));
                    }
                    return;
                }
            }
        }
    }
}

/// Checks that what was acknowledged as released is gone.
async fn stays_released(caller: &Caller, released: &[Held]) {
    for held in released {
        let gone = caller.renew(held, None).await.expect_err("it was released");
        assert_eq!(why(&gone), "LEASE_LOST", "{held:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_crash_under_load_lets_two_hold_or_a_token_fall() {
    let kills = rounds(20, 400);
    let home = Home::with_config(CONFIG);
    let mut server = home.start();
    let (book, end) = (Arc::<Mutex<Book>>::default(), CancellationToken::new());
    let workers = (0..CALLERS).map(|number| {
        let worker = Worker {
            number,
            caller: Caller::of(&server),
            book: Arc::clone(&book),
            end: end.clone(),
        };
        tokio::spawn(worker.run())
    });
    let workers: Vec<_> = workers.collect();
    for kill in 0..kills {
        let [least, most] = LIFE_MS;
        let life = least + (kill as u64 * 97) % (most - least);
        tokio::time::sleep(Duration::from_millis(life)).await;
        server.kill();
        let released = book.lock().unwrap_or_else(PoisonError::into_inner).released.clone();
        server = home.start();
        let last = &released[released.len().saturating_sub(LOOKED_AT)..];
        stays_released(&Caller::of(&server), last).await;
    }
    end.cancel();
    for worker in workers {
        worker.await.expect("no panic");
    }
    Caller::of(&server).all_are_free().await;
    let book = book.lock().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{kills} kills under load: {} leases, {} acknowledged releases",
        book.leases.len(),
        book.released.len()
    );
    assert!(book.leases.len() > 10 * kills, "hardly any load: {}", book.leases.len());
    assert_eq!(book.broken, Vec::<String>::new());
    assert_eq!(faults(&book.leases), Vec::<String>::new());
}
