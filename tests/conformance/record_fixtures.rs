//! The record engine over records in memory, on tokio's paused clock.

use std::sync::Arc;

use fencepost::backend::record::store::ServerId;
use fencepost::backend::record::{Engine, EngineSettings};
use fencepost::backend::{Backend, Guarantee};

use crate::fixture::{Fixture, Missing, SIMULATED};
use crate::record_store::Database;

/// One engine.
pub async fn one() -> Result<Fixture, Missing> {
    let database = Database::default();
    let first = open(&database);
    Ok(fixture(Arc::clone(&first), first, database))
}

/// Two engines on one store, which answers after a while.
pub async fn two() -> Result<Fixture, Missing> {
    let database = Database::default();
    database.set_faults(crate::record_store::Faults {
        delay: 100..900,
        ..Default::default()
    });
    Ok(fixture(open(&database), open(&database), database))
}

fn open(database: &Database) -> Arc<dyn Backend> {
    let settings = EngineSettings {
        kind: "record",
        guarantee: Guarantee::Ap,
        server: ServerId::random().expect("random numbers"),
    };
    Engine::open(database.connect(), settings)
}

fn fixture(first: Arc<dyn Backend>, second: Arc<dyn Backend>, database: Database) -> Fixture {
    Fixture {
        first,
        second,
        elsewhere: open(&Database::default()),
        pace: SIMULATED,
        _keep: Box::new(database),
    }
}
