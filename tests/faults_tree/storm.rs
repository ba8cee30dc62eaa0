//! Storms of the tree engine.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use common::dice::Dice;
use common::ensemble::{Connection, Ensemble, Faults};
use common::storm::{CALM, Simulation, Weather, storms};
use fencepost::backend::Backend;
use fencepost::backend::local_clock::{Clock, TokioClock};
use futures::future::BoxFuture;
use parking_lot::Mutex;

/// The clocks of one server, whose wall clock is ahead of the others' by so much.
#[derive(Debug)]
struct ServerClock(TokioClock, Duration);

impl Clock for ServerClock {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn wall(&self) -> SystemTime {
        self.0.wall() + self.1
    }

    fn sleep_until(&self, due: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep_until(due)
    }
}

/// A storm's ensemble.
pub struct Trees {
    pub ensemble: Ensemble,
    /// The clock of a server whose wall clock is right.
    right: TokioClock,
    dice: Mutex<Dice>,
}

impl Trees {
    /// The clocks of a new server.
    fn clock(&self) -> ServerClock {
        let ahead = self.dice.lock().time(Duration::from_secs(10));
        ServerClock(self.right, ahead)
    }
}

impl Simulation for Trees {
    type Connection = Arc<Connection>;

    const SEEDS: u64 = 100;

    fn begin(seed: u64, has_faults: bool) -> Self {
        let faults = Faults {
            delay: 0..20_000,
            lag: 0..200_000,
            cut: 10,
            unanswered: 10,
            late: 500,
            later: 0..5_000_000,
            away: 100,
        };
        let ensemble = Ensemble::new(seed, if has_faults { faults } else { Faults::default() });
        Self {
            ensemble,
            right: TokioClock::default(),
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

    fn calm(&self) {
        self.ensemble.set_faults(Faults::default());
    }

    fn assert_clean(&self) {
        let left: Vec<_> = ["/h-", "/q-"]
            .iter()
            .flat_map(|part| self.ensemble.paths(part))
            .collect();
        assert!(left.is_empty(), "{left:?}");
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

#[test]
fn a_calm_lasts() {
    storms::<Trees>(CALM);
}

#[test]
fn a_storm_of_faults_leaves_nothing_behind() {
    storms::<Trees>(faults(3_600));
}

#[test]
fn claims_of_each_mode_exclude_each_other_in_a_storm() {
    storms::<Trees>(Weather {
        modes: true,
        ..faults(3_600)
    });
}

#[test]
fn leases_that_run_out_in_a_storm_exclude_each_other() {
    storms::<Trees>(faults(1));
}

#[test]
fn an_election_in_a_storm_loses_nothing() {
    storms::<Trees>(Weather {
        disturbs: true,
        ..faults(2)
    });
}

#[test]
fn a_server_that_dies_in_a_storm_leaves_nothing_behind() {
    storms::<Trees>(Weather {
        deaths: true,
        ..faults(5)
    });
}
