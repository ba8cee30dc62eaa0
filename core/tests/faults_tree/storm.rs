//! Storms of the tree engine.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use common::dice::Dice;
use common::ensemble::mutants::Condition;
use common::ensemble::{Connection, Ensemble, Faults, Steps};
use common::seeded::given;
use common::storm::{CALM, Simulation, Weather, storm, storms};
use fencepost_core::backend::Backend;
use fencepost_core::backend::local_clock::{Clock, TokioClock};
use futures::future::BoxFuture;
use parking_lot::Mutex;

/// When each storm begins, by a wall clock that is right.
const BEGUN: Duration = Duration::from_secs(1_800_000_000);

/// The clocks of one server, whose wall clock is ahead of the others' by so much.
#[derive(Debug)]
pub struct ServerClock(pub TokioClock, pub Duration);

impl Clock for ServerClock {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + BEGUN + self.0.now() + self.1
    }

    fn sleep_until(&self, due: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep_until(due)
    }
}

/// A storm's ensemble, whose steps are independent or not.
pub struct Trees<const INDEPENDENT: bool> {
    pub ensemble: Ensemble,
    /// The clock of a server whose wall clock is right.
    right: TokioClock,
    /// How far a wall clock may be ahead. Tokens rise over an old copy only if the clocks do.
    ahead: Duration,
    dice: Mutex<Dice>,
}

impl<const INDEPENDENT: bool> Trees<INDEPENDENT> {
    /// The clocks of a new server.
    fn clock(&self) -> ServerClock {
        let ahead = self.dice.lock().time(self.ahead);
        ServerClock(self.right, ahead)
    }
}

impl<const INDEPENDENT: bool> Simulation for Trees<INDEPENDENT> {
    type Connection = Arc<Connection>;

    const SEEDS: u64 = 20;
    const KIND: &str = if INDEPENDENT { "independent" } else { "all_or_none" };

    fn begin(seed: u64, weather: Weather) -> Self {
        let faults = Faults {
            delay: 0..20_000,
            lag: 0..200_000,
            cut: 10,
            unanswered: 10,
            late: 500,
            later: 0..9_000_000,
            away: 100,
        };
        let steps = if INDEPENDENT {
            Steps::Independent
        } else {
            Steps::AllOrNone
        };
        let ensemble = Ensemble::new(steps, seed, if weather.faults { faults } else { Faults::default() });
        Self {
            ensemble,
            right: TokioClock::default(),
            ahead: Duration::from_secs(if weather.restores { 0 } else { 10 }),
            dice: Mutex::new(Dice::new(!seed)),
        }
    }

    fn server(&self) -> (Arc<dyn Backend>, Arc<Connection>) {
        self.ensemble.engine(Arc::new(self.clock()))
    }

    fn cut_off(connection: &Arc<Connection>, is_cut_off: bool) {
        connection.cut_off(is_cut_off);
    }

    /// All connections break, by an election or without.
    fn disturb(&self, dice: &mut Dice) {
        match dice.heads() {
            true => self.ensemble.elect(),
            false => self.ensemble.cut_all(),
        }
    }

    fn keep_copy(&self) {
        self.ensemble.keep_copy();
    }

    fn put_back(&self) {
        self.ensemble.put_back();
    }

    fn calm(&self) {
        self.ensemble.set_faults(Faults::default());
    }

    fn assert_clean(&self) {
        let left: Vec<_> = ["/h-", "/q-"]
            .iter()
            .flat_map(|part| self.ensemble.paths(part))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        let twice = self.ensemble.written_twice();
        assert!(twice.is_empty(), "a commit writes twice {twice:?}");
        assert_eq!(self.ensemble.out_of_order(), None);
    }
}

/// A storm of faults with this TTL.
pub fn faults(ttl: u64) -> Weather {
    Weather {
        faults: true,
        ttl: Duration::from_secs(ttl),
        ..CALM
    }
}

/// The weathers in which conditions are left out.
pub fn weathers() -> [Weather; 5] {
    let modes = |ttl| Weather {
        modes: true,
        ..faults(ttl)
    };
    [
        faults(3_600),
        modes(2),
        Weather {
            disturbs: true,
            ..modes(1)
        },
        Weather {
            restores: true,
            ..modes(2)
        },
        Weather {
            deaths: true,
            ..faults(5)
        },
    ]
}

/// Runs a storm, and returns its store and the law that it broke.
pub fn run<const INDEPENDENT: bool>(
    seed: u64,
    weather: Weather,
    ignored: Option<&Condition>,
) -> (Ensemble, Option<String>) {
    let mut ensemble = None;
    let begin = || {
        let trees = Trees::<INDEPENDENT>::begin(seed, weather);
        if let Some(condition) = ignored {
            trees.ensemble.ignore(condition.clone());
        }
        ensemble = Some(trees.ensemble.clone());
        trees
    };
    let law = storm(begin, seed, weather).err();
    (ensemble.expect("it began"), law)
}

/// Prints the histories of one seed.
#[test]
fn a_seed_has_a_history() {
    let seed = given("SEED").unwrap_or(1);
    for weather in weathers() {
        let ((one, broken), (other, broken_too)) =
            (run::<false>(seed, weather, None), run::<true>(seed, weather, None));
        assert_eq!((broken, broken_too), (None, None));
        println!("{seed}: {:x} {:x}", one.history(), other.history());
    }
}

#[test]
fn a_seed_and_a_turn_give_the_same_history_again() {
    let histories = |seed: &str, turn: &str| {
        let test = std::env::current_exe().expect("it runs");
        let printed = Command::new(test)
            .args(["storm::a_seed_has_a_history", "--exact", "--nocapture"])
            .envs([("SEED", seed), ("TURN", turn)])
            .output();
        let printed = String::from_utf8(printed.expect("it runs").stdout).expect("a text");
        let lines: Vec<_> = printed
            .lines()
            .filter(|line| line.starts_with(seed))
            .map(str::to_owned)
            .collect();
        assert_eq!(lines.len(), weathers().len(), "{printed}");
        lines
    };
    for seed in 1..=2 {
        let (seed, turn) = (seed.to_string(), (7 * seed).to_string());
        assert_eq!(histories(&seed, &turn), histories(&seed, &turn));
    }
}

/// Storms over both kinds of stores, or over the one that the variable `KIND` names.
fn both(weather: Weather) {
    let kinds = [storms::<Trees<false>>, storms::<Trees<true>>];
    let names = [Trees::<false>::KIND, Trees::<true>::KIND];
    let only = std::env::var("KIND").ok();
    for (storms, name) in kinds.into_iter().zip(names) {
        if only.as_deref().is_none_or(|only| only == name) {
            storms(weather);
        }
    }
}

#[test]
fn a_calm_lasts() {
    both(CALM);
}

#[test]
fn a_storm_of_faults_leaves_nothing_behind() {
    both(faults(3_600));
}

#[test]
fn claims_of_each_mode_exclude_each_other_in_a_storm() {
    both(Weather {
        modes: true,
        ..faults(3_600)
    });
}

#[test]
fn leases_that_run_out_in_a_storm_exclude_each_other() {
    both(faults(1));
}

#[test]
fn an_election_in_a_storm_loses_nothing() {
    both(Weather {
        disturbs: true,
        ..faults(2)
    });
}

#[test]
fn an_old_copy_that_is_put_back_in_a_storm_grants_no_token_again() {
    both(Weather {
        restores: true,
        modes: true,
        ..faults(2)
    });
}

#[test]
fn a_server_that_dies_in_a_storm_leaves_nothing_behind() {
    both(Weather {
        deaths: true,
        ..faults(5)
    });
}
