//! The calls of two servers through random faults, each storm from a seed: exclusion by a fenced register, rising tokens,
//! ends that stay ended, waits that end, and nothing that is left behind.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fencepost::limits::Limits;
use fencepost::locks::{Acquire, Lease, Locks};
use fencepost::name::{FencingToken, Identity, Metadata, Mode, Namespace, Owner, RequestId};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::record_store::{Database, Faults};
use crate::server::{Server, lock, server};

/// How many storms of each kind.
const SEEDS: u64 = if cfg!(feature = "soak") { 20_000 } else { 250 };
/// How much longer than its wait a call may take.
const PATIENCE: Duration = Duration::from_secs(12);

/// What happens in a storm besides the faults of each step.
#[derive(Debug, Clone, Copy)]
struct Weather {
    faults: bool,
    /// A server dies, and another takes its place.
    deaths: bool,
    /// The store's clock steps back.
    steps_back: bool,
    /// The TTL of the leases.
    ttl: Duration,
}

/// What the lock protects, and what was seen of its tokens.
#[derive(Debug, Default)]
struct Register {
    /// The largest token that has written.
    written: u64,
    /// The leases on which clients count, and until when.
    counted_on: Vec<(FencingToken, Instant)>,
    granted: HashSet<u64>,
    /// The tokens whose end was shown.
    gone: HashSet<u64>,
    grants: u64,
}

impl Register {
    fn count_on(&mut self, lease: &Lease, until: Instant) {
        let (token, now) = (lease.key.token, Instant::now());
        self.grants += 1;
        self.granted.insert(token.get());
        self.counted_on.retain(|(_, until)| *until > now);
        if until > now {
            let others: Vec<_> = self.counted_on.iter().filter(|(other, _)| *other != token).collect();
            assert!(others.is_empty(), "{token} beside {others:?}");
            self.counted_on.push((token, until));
        }
    }

    /// Writes, as a holder that counts on its lease.
    fn write(&mut self, token: FencingToken, until: Instant) {
        if Instant::now() < until {
            assert!(token.get() >= self.written, "{token} after {}", self.written);
            assert!(!self.gone.contains(&token.get()), "{token} was shown to have ended");
            self.written = token.get();
        }
    }

    fn leave(&mut self, token: FencingToken) {
        self.counted_on.retain(|(counted, _)| *counted != token);
    }
}

#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn within(&mut self, most: Duration) -> Duration {
        Duration::from_millis(self.roll(most.as_millis() as u64))
    }
}

fn locks(server: &Server) -> Locks {
    Locks::new(
        Namespace::new("test").expect("a name"),
        Limits::default(),
        Arc::clone(&server.backend),
    )
}

fn acquire(dice: &mut Dice, weather: Weather) -> Acquire {
    let wait = match dice.roll(4) {
        0 => Duration::ZERO,
        _ => dice.within(Duration::from_secs(20)),
    };
    let request = format!("{}", dice.roll(1 << 30));
    Acquire {
        lock: lock(),
        owner: Owner::new("tester").expect("a name"),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        ttl: Some(weather.ttl),
        wait,
        request_id: (dice.roll(2) == 0).then(|| RequestId::new(&request).expect("an id")),
        reentrant: false,
        metadata: Metadata::default(),
    }
}

/// One client's calls, one after another, at either server.
async fn client(locks: Vec<Locks>, register: Arc<Mutex<Register>>, mut dice: Dice, weather: Weather) {
    for _ in 0..6 {
        sleep(dice.within(Duration::from_secs(2))).await;
        let request = acquire(&mut dice, weather);
        let at = &locks[dice.roll(locks.len() as u64) as usize];
        let (arrived, wait) = (Instant::now(), request.wait);
        let call = timeout(wait + PATIENCE, at.acquire(request.clone()));
        let outcome = match dice.roll(4) {
            // The client leaves.
            0 => match timeout(dice.within(Duration::from_secs(5)), call).await {
                Ok(outcome) => outcome,
                Err(_) => continue,
            },
            _ => call.await,
        };
        let Ok(grant) = outcome.unwrap_or_else(|_| panic!("a wait of {wait:?} did not end")) else {
            continue;
        };
        if dice.roll(8) == 0 {
            // It was not delivered: it is undone.
            continue;
        }
        let lease = grant.delivered();
        hold(&locks, &register, &mut dice, lease, arrived).await;
    }
}

async fn hold(locks: &[Locks], register: &Mutex<Register>, dice: &mut Dice, lease: Lease, arrived: Instant) {
    let token = lease.key.token;
    let mut until = arrived + lease.waited + lease.ttl;
    register.lock().count_on(&lease, until);
    for _ in 0..dice.roll(3) {
        sleep(dice.within(Duration::from_millis(800))).await;
        register.lock().write(token, until);
        let (sent, at) = (Instant::now(), &locks[dice.roll(locks.len() as u64) as usize]);
        if let Ok(renewed) = at.renew(&lease.key, None).await {
            until = until.max(sent + renewed.ttl);
            register.lock().leave(token);
            register.lock().count_on(&renewed, until);
        }
    }
    register.lock().write(token, until);
    register.lock().leave(token);
    // A release whose outcome is unknown is sent again.
    loop {
        let at = &locks[dice.roll(locks.len() as u64) as usize];
        match at.release(&lease.key).await {
            Ok(()) | Err(fencepost::error::Error::LeaseLost { .. }) => return,
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Asks whether tokens are held: an end that was shown is final.
async fn watcher(locks: Locks, register: Arc<Mutex<Register>>, mut dice: Dice) {
    loop {
        sleep(dice.within(Duration::from_millis(1_500))).await;
        let known: Vec<_> = register.lock().granted.iter().copied().collect();
        if known.is_empty() {
            continue;
        }
        let token = known[dice.roll(known.len() as u64) as usize];
        let was_gone = register.lock().gone.contains(&token);
        let shown = locks.check(&lock(), FencingToken::new(token).expect("a token")).await;
        match shown {
            Ok(None) => {
                register.lock().gone.insert(token);
            }
            Ok(Some(_)) => assert!(!was_gone, "{token} holds again"),
            Err(_) => {}
        }
    }
}

async fn storm(seed: u64, weather: Weather) -> u64 {
    let faults = Faults {
        delay: Some(0..=20_000),
        not_sent: 20,
        lost: 30,
        unanswered: 30,
        late: 30,
        twice: 30,
        later: Some(0..=5_000_000),
        deaf: 100,
    };
    let database = Database::new(seed, if weather.faults { faults } else { Faults::default() });
    let mut dice = Dice(seed);
    let servers = [server(&database), server(&database)];
    let all: Vec<_> = servers.iter().map(locks).collect();
    let register = Arc::<Mutex<Register>>::default();
    let mut clients = JoinSet::new();
    for number in 0..4_u64 {
        // With deaths, a client stays at its server, and dies with it.
        let at = match weather.deaths {
            true => vec![all[number as usize % 2].clone()],
            false => all.clone(),
        };
        let dice = Dice(seed ^ (number + 1) << 40);
        clients.spawn(client(at, Arc::clone(&register), dice, weather));
    }
    let mut watchers = JoinSet::new();
    for one in &all {
        watchers.spawn(watcher(one.clone(), Arc::clone(&register), Dice(seed ^ 77)));
    }
    if weather.steps_back {
        sleep(dice.within(Duration::from_secs(10))).await;
        database.step_clock(-(dice.roll(30_000_000) as i64));
    }
    if weather.deaths {
        sleep(dice.within(Duration::from_secs(10))).await;
        servers[0].connection.kill();
        clients.abort_all();
        while clients.join_next().await.is_some() {}
        register.lock().counted_on.clear();
        let third = server(&database);
        let at = vec![locks(&third), all[1].clone()];
        for number in 0..3 {
            let dice = Dice(seed ^ (number + 9) << 40);
            clients.spawn(client(at.clone(), Arc::clone(&register), dice, weather));
        }
        while let Some(done) = clients.join_next().await {
            done.expect("a client is well");
        }
    }
    while let Some(done) = clients.join_next().await {
        done.expect("a client is well");
    }
    watchers.abort_all();
    while let Some(done) = watchers.join_next().await {
        assert!(
            done.is_err_and(|error| error.is_cancelled()),
            "a watcher found something"
        );
    }
    database.set_faults(Faults::default());
    // Undos are tried again at least every ten seconds; servers are found dead, and their leases end.
    let settled = if weather.deaths { 30 + weather.ttl.as_secs() } else { 25 };
    sleep(Duration::from_secs(settled)).await;
    let last = server(&database);
    assert!(last.is_free().await, "{:?}", last.inspect().await);
    assert!(!database.has_repeated_versions() && database.most_in_flight() <= 1);
    // The calls of a dead server end, and its tasks with them.
    servers[0].connection.cut_off(false);
    let register = register.lock();
    register.grants
}

async fn storms(weather: Weather) {
    let only = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let mut grants = 0;
    for seed in only.map_or(1..SEEDS + 1, |seed| seed..seed + 1) {
        let report = Report(seed);
        grants += storm(seed, weather).await;
        std::mem::forget(report);
    }
    println!("{grants} grants");
    assert!(
        grants > if only.is_some() { 0 } else { SEEDS },
        "hardly anything happened: {grants}"
    );
}

/// Says which seed failed.
struct Report(u64);

impl Drop for Report {
    fn drop(&mut self) {
        println!("SEED={}", self.0);
    }
}

const CALM: Weather = Weather {
    faults: false,
    deaths: false,
    steps_back: false,
    ttl: Duration::from_secs(3_600),
};

#[tokio::test(start_paused = true)]
async fn a_storm_of_faults_leaves_nothing_behind() {
    storms(Weather { faults: true, ..CALM }).await;
}

#[tokio::test(start_paused = true)]
async fn leases_that_run_out_in_a_storm_exclude_each_other() {
    let ttl = Duration::from_secs(1);
    storms(Weather {
        faults: true,
        ttl,
        ..CALM
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_steps_back_in_a_storm_revives_nothing() {
    let ttl = Duration::from_secs(2);
    storms(Weather {
        faults: true,
        steps_back: true,
        ttl,
        ..CALM
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_in_a_storm_leaves_nothing_behind() {
    let ttl = Duration::from_secs(5);
    storms(Weather {
        faults: true,
        deaths: true,
        ttl,
        ..CALM
    })
    .await;
}
