//! `fencepost serve`: the server, from its configuration to its end.

use std::io;

use fencepost::api::{self, Access, ListenAddress, Listener};
use fencepost::auth::{Auth, Policy, PolicyError};
use fencepost::config::{Config, Overrides};
use fencepost::quota::Quotas;
use fencepost::tls::Tls;
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
    let access = access(config).map_err(Failure::runtime)?;
    let tls = config.tls().cloned().map(Tls::open).transpose();
    let listeners = bind(config, tls.map_err(Failure::runtime)?)
        .await
        .map_err(Failure::runtime)?;
    let namespaces = namespaces::open(config).await.map_err(Failure::runtime)?;
    let addresses: Vec<String> = listeners.iter().map(Listener::local_addr).collect();
    tracing::info!("serving on {}", addresses.join(", "));
    api::serve_to(access, listeners, namespaces, config.settings(), signals.first())
        .await
        .map_err(Failure::runtime)
}

/// Who may do what, and how much of it.
fn access(config: &Config) -> Result<Access, PolicyError> {
    let policy = config.policy.as_ref().map(Policy::open).transpose()?;
    Ok(Access {
        auth: Auth::new(policy),
        quotas: Quotas::new(config.quotas.clone()),
    })
}

async fn bind(config: &Config, tls: Option<Tls>) -> Result<Vec<Listener>, BindError> {
    let mut listeners = Vec::new();
    for address in config.listen() {
        let bound = Listener::bind(address).await.map_err(|source| BindError {
            address: address.clone(),
            source,
        })?;
        listeners.push(match &tls {
            Some(tls) if config.is_encrypted(address) => bound.with_tls(tls.clone()),
            _ => bound,
        });
    }
    Ok(listeners)
}
