//! Storms of the record engine.

use std::sync::Arc;
use std::time::Duration;

use common::dice::Dice;
use common::record_store::{Connection, Database, Faults};
use common::storm::{CALM, Simulation, Weather, storms};
use fencepost_core::backend::Backend;

use crate::server::server;

struct Records(Database);

impl Simulation for Records {
    type Connection = Arc<Connection>;

    const SEEDS: u64 = 50;
    const KIND: &str = "records";

    fn begin(seed: u64, weather: Weather) -> Self {
        let faults = Faults {
            delay: 0..20_000,
            not_sent: 20,
            lost: 30,
            unanswered: 30,
            late: 30,
            twice: 30,
            later: 0..5_000_000,
            deaf: 100,
        };
        Self(Database::new(
            seed,
            if weather.faults { faults } else { Faults::default() },
        ))
    }

    fn server(&self) -> (Arc<dyn Backend>, Arc<Connection>) {
        let server = server(&self.0);
        (server.backend, server.connection)
    }

    fn cut_off(connection: &Arc<Connection>, is_cut_off: bool) {
        connection.cut_off(is_cut_off);
    }

    /// The clock steps back.
    fn disturb(&self, dice: &mut Dice) {
        self.0.step_clock(-dice.below(30_000_000).cast_signed());
    }

    fn calm(&self) {
        self.0.set_faults(Faults::default());
    }

    fn assert_clean(&self) {
        assert!(!self.0.has_repeated_versions() && self.0.most_in_flight() <= 1);
    }
}

/// A storm of faults with this TTL.
fn faults(ttl: u64) -> Weather {
    Weather {
        faults: true,
        ttl: Duration::from_secs(ttl),
        ..CALM
    }
}

#[test]
fn a_storm_of_faults_leaves_nothing_behind() {
    storms::<Records>(faults(3_600));
}

#[test]
fn claims_of_each_mode_exclude_each_other_in_a_storm() {
    storms::<Records>(Weather {
        modes: true,
        ..faults(3_600)
    });
}

#[test]
fn leases_that_run_out_in_a_storm_exclude_each_other() {
    storms::<Records>(faults(1));
}

#[test]
fn a_clock_that_steps_back_in_a_storm_revives_nothing() {
    storms::<Records>(Weather {
        disturbs: true,
        ..faults(2)
    });
}

#[test]
fn a_server_that_dies_in_a_storm_leaves_nothing_behind() {
    storms::<Records>(Weather {
        deaths: true,
        ..faults(5)
    });
}
