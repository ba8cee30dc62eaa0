//! `fencepost serve`: the server, from its configuration to its end.

use std::io;

use fencepost::api::{self, ListenAddress, Listener};
use fencepost::config::{Config, Overrides};
use fencepost::{namespaces, telemetry};
use tokio::runtime::Runtime;

use super::Failure;
use super::signals::Signals;

/// An address that could not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
struct BindError {
    address: ListenAddress,
    source: io::Error,
}

/// Serves until it is told to end.
pub fn run(overrides: Overrides) -> Result<(), Failure> {
    let config = Config::load(overrides).map_err(Failure::usage)?;
    let log = config.log();
    telemetry::init(&log.level, log.format).map_err(Failure::runtime)?;
    let runtime = Runtime::new().map_err(Failure::runtime)?;
    runtime.block_on(serve(&config))
}

/// Binds before it opens: a second server on the same address leaves the stores alone.
async fn serve(config: &Config) -> Result<(), Failure> {
    let signals = Signals::take().map_err(Failure::runtime)?;
    let listeners = bind(config).await.map_err(Failure::runtime)?;
    let namespaces = namespaces::open(config).await.map_err(Failure::runtime)?;
    let addresses: Vec<String> = listeners.iter().map(Listener::local_addr).collect();
    tracing::info!("serving on {}", addresses.join(", "));
    api::serve(listeners, namespaces, config.settings(), signals.first())
        .await
        .map_err(Failure::runtime)
}

async fn bind(config: &Config) -> Result<Vec<Listener>, BindError> {
    let mut listeners = Vec::new();
    for address in config.listen() {
        let bound = Listener::bind(address).await;
        listeners.push(bound.map_err(|source| BindError {
            address: address.clone(),
            source,
        })?);
    }
    Ok(listeners)
}
