//! The tree engine over a simulated ensemble, on tokio's paused clock.

use std::sync::Arc;

use common::ensemble::{Ensemble, Faults, Steps};
use fencepost::backend::local_clock::TokioClock;
use fencepost::backend::{Backend, Health};

use crate::fixture::{Fixture, Missing, SIMULATED};

/// Two engines on one ensemble, which answers after a while, and whose servers lag behind.
pub async fn two() -> Result<Fixture, Missing> {
    two_of(Steps::AllOrNone).await
}

/// The same, of independent steps.
pub async fn two_independent() -> Result<Fixture, Missing> {
    two_of(Steps::Independent).await
}

async fn two_of(steps: Steps) -> Result<Fixture, Missing> {
    let faults = Faults {
        delay: 100..900,
        lag: 0..5_000,
        ..Faults::default()
    };
    let ensemble = Ensemble::new(steps, 1, faults);
    Ok(Fixture {
        first: open(&ensemble).await,
        second: open(&ensemble).await,
        elsewhere: open(&Ensemble::new(steps, 2, Faults::default())).await,
        pace: SIMULATED,
        _keep: Box::new(ensemble),
    })
}

async fn open(ensemble: &Ensemble) -> Arc<dyn Backend> {
    let (backend, _) = ensemble.engine(Arc::new(TokioClock::default()));
    let mut health = backend.health();
    let serves = health.wait_for(|health| *health == Health::Serving).await;
    assert!(serves.is_ok(), "it serves");
    drop(serves);
    backend
}
