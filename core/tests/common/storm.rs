//! The calls of two servers through random faults of a simulated store, each storm from a seed: exclusion by a fenced
//! register, rising tokens, ends that stay ended, waits that end, and nothing that is left behind.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Backend, InspectLimit};
use fencepost_core::claim::Queue;
use fencepost_core::error::Error;
use fencepost_core::limits::Limits;
use fencepost_core::locks::{Acquire, Lease, Locks, SessionStream, UndeliveredGrant};
use fencepost_core::name::{FencingToken, Identity, LeaseKey, LockName, Metadata, Mode, Namespace, Owner, RequestId};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use self::moves::{Session, end, reenter, resume};
use crate::dice::Dice;
use crate::seeded;

mod moves;

/// A store in memory, whose faults follow from a seed.
pub trait Simulation: Sized {
    /// What a server is connected with.
    type Connection;

    /// How many storms of each weather the short form has.
    const SEEDS: u64;
    /// The kind of the store.
    const KIND: &str;

    /// An empty store for this weather.
    fn begin(seed: u64, weather: Weather) -> Self;

    /// Opens the engine of one server.
    fn server(&self) -> (Arc<dyn Backend>, Self::Connection);

    /// Whether a server hears nothing and is not heard from now on.
    fn cut_off(connection: &Self::Connection, is_cut_off: bool);

    /// What happens to the store itself: its clock steps back, say.
    fn disturb(&self, dice: &mut Dice);

    /// Keeps a copy of the store, if it has any.
    fn keep_copy(&self) {}

    /// Puts that copy back.
    fn put_back(&self) {}

    /// No more faults from now on.
    fn calm(&self);

    /// What must be true of the store after the storm.
    fn assert_clean(&self);
}

/// How many times longer than the short form a soak is.
const SOAK: u64 = if cfg!(feature = "soak") { 400 } else { 1 };
/// How long a storm may take, in its own time.
const ENDS: Duration = Duration::from_secs(900);
/// How many times the TTL a renewal asks for at most.
const LONGER: u64 = 3;
/// How much longer than its wait an Acquire may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What happens in a storm besides the faults of each step.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    pub faults: bool,
    /// A server dies, and another takes its place.
    pub deaths: bool,
    /// Something happens to the store itself.
    pub disturbs: bool,
    /// An old copy of the store is put back. Leases that were granted since are lost, but tokens rise.
    pub restores: bool,
    /// Not only exclusive claims.
    pub modes: bool,
    /// The TTL of the leases.
    pub ttl: Duration,
}

/// A storm without faults, with leases that do not run out.
pub const CALM: Weather = Weather {
    faults: false,
    deaths: false,
    disturbs: false,
    restores: false,
    modes: false,
    ttl: Duration::from_secs(3_600),
};

/// What the lock protects, and what was seen of its tokens.
#[derive(Debug, Default)]
struct Register {
    /// The largest exclusive token that has written.
    written: u64,
    /// The leases on which clients count, and until when.
    counted_on: Vec<(FencingToken, Mode, Instant)>,
    granted: HashSet<u64>,
    /// The tokens whose end was shown.
    gone: HashSet<u64>,
    grants: u64,
    /// When an old copy of the store was last put back.
    restored: Option<Instant>,
    /// The tokens that were granted before, whose leases may be lost.
    lost: HashSet<u64>,
}

impl Register {
    fn largest(&self) -> u64 {
        self.granted.iter().copied().max().unwrap_or(0)
    }

    /// A call that came when `largest` was the largest token was granted.
    fn granted(&mut self, token: FencingToken, largest: u64) {
        assert!(token.get() > largest, "{token} was granted after {largest}");
        self.grants += 1;
        self.granted.insert(token.get());
    }

    /// An old copy of the store was put back.
    fn restored(&mut self) {
        self.restored = Some(Instant::now());
        self.counted_on.clear();
        self.lost.clone_from(&self.granted);
        // Leases that had ended are there again.
        self.gone.clear();
    }

    /// Whether what was asked for then may be lost by now.
    fn may_be_lost(&self, asked: Instant) -> bool {
        self.restored.is_some_and(|restored| restored >= asked)
    }

    fn count_on(&mut self, token: FencingToken, mode: Mode, until: Instant) {
        let now = Instant::now();
        self.counted_on.retain(|(_, _, until)| *until > now);
        if until > now && !self.lost.contains(&token.get()) {
            let others = self.counted_on.iter().filter(|(other, ..)| *other != token);
            let modes: Vec<_> = others.clone().map(|(_, mode, _)| *mode).collect();
            assert!(fit(mode, &modes), "{token} beside {:?}", others.collect::<Vec<_>>());
            self.counted_on.push((token, mode, until));
        }
    }

    /// Writes, as a holder that counts on its lease. If that may be lost, a larger token refuses it.
    fn write(&mut self, token: FencingToken, mode: Mode, until: Instant) {
        let may_be_lost = self.lost.contains(&token.get());
        if Instant::now() < until && !(may_be_lost && token.get() < self.written) {
            assert!(token.get() >= self.written, "{token} after {}", self.written);
            let has_ended = self.gone.contains(&token.get()) && !may_be_lost;
            assert!(!has_ended, "{token} was shown to have ended");
            if mode == Mode::Exclusive {
                self.written = token.get();
            }
        }
    }

    /// Whether this token was shown to have ended, and since which copy.
    fn knows_ended(&self, token: FencingToken) -> (bool, Option<Instant>) {
        (self.gone.contains(&token.get()), self.restored)
    }

    /// Whether what was known then says that a token cannot hold.
    fn contradicts(&self, (has_ended, since): (bool, Option<Instant>)) -> bool {
        has_ended && since == self.restored
    }

    fn leave(&mut self, token: FencingToken) {
        self.counted_on.retain(|(counted, ..)| *counted != token);
    }
}

/// Whether a claim may hold beside others: of semaphores the smallest limit counts.
pub fn fit(mode: Mode, others: &[Mode]) -> bool {
    match mode {
        Mode::Exclusive => others.is_empty(),
        Mode::Shared => others.iter().all(|other| *other == Mode::Shared),
        Mode::Semaphore { .. } => {
            let all: Option<Vec<_>> = others
                .iter()
                .chain([&mode])
                .map(|mode| match mode {
                    Mode::Semaphore { permits, limit } => Some((*permits, *limit)),
                    Mode::Exclusive | Mode::Shared => None,
                })
                .collect();
            all.is_some_and(|all| {
                let used = all.iter().map(|(permits, _)| permits).sum::<u32>();
                all.iter().all(|(_, limit)| used <= *limit)
            })
        }
    }
}

/// The lock of all storms.
pub fn lock() -> LockName {
    LockName::new("lock").expect("a name")
}

/// The locks of one server.
pub fn locks(backend: &Arc<dyn Backend>) -> Locks {
    let namespace = Namespace::new("test").expect("a name");
    Locks::new(namespace, Limits::default(), Arc::clone(backend))
}

fn acquire(dice: &mut Dice, weather: Weather) -> Acquire {
    let wait = match dice.below(4) {
        0 => Duration::ZERO,
        _ => dice.time(Duration::from_secs(20)),
    };
    let mode = match dice.below(6) {
        0 if weather.modes => Mode::Shared,
        limit @ 1..4 if weather.modes => {
            Mode::semaphore(1, u32::try_from(limit).expect("it is small")).expect("a mode")
        }
        _ => Mode::Exclusive,
    };
    let request = dice.below(1 << 30).to_string();
    Acquire {
        lock: lock(),
        // Nobody else joins its claim if that is re-entrant.
        owner: Owner::new(&format!("tester {request}")).expect("a name"),
        identity: Identity::anonymous(),
        mode,
        ttl: Some(weather.ttl),
        wait,
        request_id: dice.heads().then(|| RequestId::new(&request).expect("an id")),
        reentrant: dice.below(4) == 0,
        metadata: Metadata::default(),
    }
}

/// One client's calls, one after another, at any of these servers.
async fn client(locks: Vec<Locks>, register: Arc<Mutex<Register>>, mut dice: Dice, weather: Weather) {
    for _ in 0..6 {
        sleep(dice.time(Duration::from_secs(2))).await;
        let request = acquire(&mut dice, weather);
        let is_retryable = request.request_id.is_some();
        let (largest, first_asked) = (register.lock().largest(), Instant::now());
        let (retried, resumed) = match dice.below(6) {
            0 | 1 => (is_retryable, false),
            2 => (false, is_retryable),
            _ => (false, false),
        };
        let asked = request.clone();
        let other = dice.heads().then(|| Session::new(&mut dice).stream(1));
        let again = call(one(&locks, &mut dice).clone(), (request.clone(), other), &mut dice);
        let first = call(one(&locks, &mut dice).clone(), (request.clone(), None), &mut dice);
        let (first, again) = match (retried, resumed) {
            (true, _) => tokio::join!(first, again),
            (_, true) => (resume(&locks, &register, &mut dice, request).await, None),
            _ => (first.await, None),
        };
        let leases = [first, again].map(|grant| grant.filter(|_| dice.below(8) > 0));
        // What was not delivered is undone.
        let mut leases = leases
            .into_iter()
            .flatten()
            .map(|(grant, arrived)| (grant.delivered(), arrived));
        let Some((lease, arrived)) = leases.next() else {
            // Each call may have left to the other what was granted.
            if retried || resumed {
                give_back(&locks, &mut dice, asked).await;
            }
            continue;
        };
        for (other, asked) in leases {
            let is_lost = register.lock().may_be_lost(asked.min(arrived));
            assert!(
                is_lost || other.key.token == lease.key.token,
                "two grants of one request"
            );
        }
        register.lock().granted(lease.key.token, largest);
        if register.lock().may_be_lost(first_asked) {
            // Its claim may be one of an old copy.
            register.lock().lost.insert(lease.key.token.get());
        }
        hold(&locks, &register, &mut dice, (lease, asked, weather), arrived).await;
    }
}

/// One call, with the time at which it came; None if it fails, or its client leaves before the end.
fn call(
    locks: Locks,
    (request, stream): (Acquire, Option<Arc<SessionStream>>),
    dice: &mut Dice,
) -> impl Future<Output = Option<(UndeliveredGrant, Instant)>> + use<> {
    let (pause, leaves) = (dice.time(Duration::from_millis(500)), dice.below(4) == 0);
    let patience = match leaves {
        true => dice.time(Duration::from_secs(5)),
        false => request.wait + PATIENCE,
    };
    async move {
        sleep(pause).await;
        let (arrived, wait) = (Instant::now(), request.wait);
        match timeout(patience, locks.acquire_on(stream.as_ref(), request)).await {
            Ok(outcome) => outcome.ok().map(|grant| (grant, arrived)),
            Err(_) if leaves => None,
            Err(_) => panic!("a wait of {wait:?} did not end"),
        }
    }
}

/// Asks for what a request was granted until that is known, and releases it.
async fn give_back(locks: &[Locks], dice: &mut Dice, request: Acquire) {
    let wait = Duration::ZERO;
    let request = Acquire { wait, ..request };
    loop {
        match one(locks, dice).acquire(request.clone()).await {
            Ok(grant) => return release(locks, dice, &grant.delivered().key).await,
            Err(Error::Backend(_)) => sleep(Duration::from_millis(200)).await,
            Err(_) => return,
        }
    }
}

/// A release whose outcome is unknown is sent again.
async fn release(locks: &[Locks], dice: &mut Dice, lease: &LeaseKey) {
    loop {
        match one(locks, dice).release(lease).await {
            Ok(()) | Err(Error::LeaseLost { .. }) => return,
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

fn one<'a>(locks: &'a [Locks], dice: &mut Dice) -> &'a Locks {
    &locks[dice.index(locks.len())]
}

async fn hold(
    locks: &[Locks],
    register: &Mutex<Register>,
    dice: &mut Dice,
    (lease, asked, weather): (Lease, Acquire, Weather),
    arrived: Instant,
) {
    let (token, mode) = (lease.key.token, asked.mode);
    let mut until = arrived + lease.waited + lease.ttl;
    register.lock().count_on(token, mode, until);
    for _ in 0..dice.below(3) {
        sleep(dice.time(Duration::from_millis(800))).await;
        register.lock().write(token, mode, until);
        let (sent, metadata) = (Instant::now(), Metadata::default());
        let longer = weather.ttl * u32::try_from(1 + dice.below(LONGER)).expect("it is small");
        let renew = one(locks, dice).renew(&lease.key, dice.heads().then_some(longer));
        let at = one(locks, dice);
        let update = at.update_metadata(&lease.key, &metadata);
        let renewed = match dice.heads() {
            true => tokio::join!(renew, update).0,
            false => renew.await,
        };
        if let Ok(renewed) = renewed {
            until = until.max(sent + renewed.ttl);
            register.lock().leave(token);
            register.lock().count_on(token, mode, until);
        }
        if asked.reentrant && dice.heads() {
            reenter(locks, register, dice, (token, until), &asked).await;
        }
    }
    register.lock().write(token, mode, until);
    register.lock().leave(token);
    let known = register.lock().knows_ended(token);
    let released = end(locks, register, dice, (&lease.key, mode)).await;
    let is_again = released.is_ok() && register.lock().contradicts(known);
    assert!(!is_again, "{token} was released after its end");
    if released.is_err() {
        release(locks, dice, &lease.key).await;
    }
}

/// Asks whether tokens are held: an end that was shown is final.
async fn watcher(locks: Locks, register: Arc<Mutex<Register>>, mut dice: Dice) {
    loop {
        sleep(dice.time(Duration::from_millis(1_500))).await;
        let mut known: Vec<_> = register.lock().granted.iter().copied().collect();
        known.sort_unstable();
        if known.is_empty() {
            continue;
        }
        let token = known[dice.index(known.len())];
        let token = FencingToken::new(token).expect("a token");
        let known = register.lock().knows_ended(token);
        let shown = locks.check(&lock(), token).await;
        let mut register = register.lock();
        match shown {
            Ok(None) if register.restored == known.1 => {
                register.gone.insert(token.get());
            }
            Ok(Some(_)) => assert!(!register.contradicts(known), "{token} holds again"),
            _ => {}
        }
    }
}

/// Runs one storm, and returns how many grants it had.
///
/// # Errors
/// The law that was broken, with the seed and the turn that repeat it.
pub fn storm<S: Simulation>(begin: impl FnOnce() -> S + Send, seed: u64, weather: Weather) -> Result<u64, String> {
    seeded::run(seed, || async move {
        let ended = timeout(ENDS, run(&begin(), seed, weather)).await;
        ended.expect("a storm ends")
    })
}

async fn run<S: Simulation>(simulation: &S, seed: u64, weather: Weather) -> u64 {
    let mut dice = Dice::new(seed);
    let mut servers = vec![simulation.server(), simulation.server()];
    let all: Vec<_> = servers.iter().map(|(backend, _)| locks(backend)).collect();
    let register = Arc::<Mutex<Register>>::default();
    let mut clients = JoinSet::new();
    for number in 0..4_u64 {
        // With deaths, a client stays at its server, and dies with it.
        let at = match weather.deaths {
            true => vec![all[usize::from(number % 2 == 1)].clone()],
            false => all.clone(),
        };
        let dice = Dice::new(seed ^ ((number + 1) << 40));
        clients.spawn(client(at, Arc::clone(&register), dice, weather));
    }
    let mut watchers = JoinSet::new();
    for one in &all {
        watchers.spawn(watcher(one.clone(), Arc::clone(&register), Dice::new(seed ^ 77)));
    }
    if weather.disturbs {
        for _ in 0..5 {
            sleep(dice.time(Duration::from_secs(4))).await;
            simulation.disturb(&mut dice);
        }
    }
    if weather.restores {
        for _ in 0..3 {
            sleep(dice.time(Duration::from_secs(4))).await;
            simulation.keep_copy();
            sleep(dice.time(Duration::from_secs(4))).await;
            if dice.heads() {
                simulation.disturb(&mut dice);
            }
            sleep(dice.time(Duration::from_secs(4))).await;
            simulation.put_back();
            register.lock().restored();
        }
    }
    if weather.deaths {
        sleep(dice.time(Duration::from_secs(10))).await;
        S::cut_off(&servers[0].1, true);
        clients.abort_all();
        while clients.join_next().await.is_some() {}
        register.lock().counted_on.clear();
        servers.push(simulation.server());
        let at = vec![locks(&servers[2].0), all[1].clone()];
        for number in 0..3 {
            let dice = Dice::new(seed ^ ((number + 9) << 40));
            clients.spawn(client(at.clone(), Arc::clone(&register), dice, weather));
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
    simulation.calm();
    // Undos are tried again at least every ten seconds; servers are found dead, and their leases end. A lease that an old copy
    // has brought back is found by the next round of a cleanup.
    let lives = LONGER * weather.ttl.as_secs();
    let settled = match weather {
        Weather { restores: true, .. } => 90 + lives,
        Weather { deaths: true, .. } => 30 + lives,
        _ => 25,
    };
    sleep(Duration::from_secs(settled)).await;
    let (last, _) = simulation.server();
    let left = last
        .inspect(&lock(), InspectLimit::of_each(1_000))
        .await
        .expect("it answers");
    assert_eq!(left, Queue::default(), "something is left behind");
    simulation.assert_clean();
    let register = register.lock();
    register.grants
}

/// Runs many storms, or only that of the variable `SEED`.
///
/// # Panics
/// If a law is broken in one; the panic says by which variables it is repeated.
pub fn storms<S: Simulation>(weather: Weather) {
    let only = seeded::given("SEED");
    let (mut grants, seeds) = (0, S::SEEDS * SOAK);
    for seed in only.map_or(1..seeds + 1, |seed| seed..seed + 1) {
        match storm(|| S::begin(seed, weather), seed, weather) {
            Ok(granted) => grants += granted,
            Err(law) => panic!("KIND={} {law}", S::KIND),
        }
    }
    println!("{grants} grants");
    let least = if only.is_some() { 0 } else { seeds };
    assert!(grants > least, "hardly anything happened: {grants}");
}
