//! The gRPC service: [`serve`] serves bound sockets until its caller stops it.
//!
//! The path of a call: `transport` starts it when its turn in the execution queue comes. `call_path` observes it
//! (`observed`: `call_metrics` counts and times it, `request_log` gives it an id, `catch_panic` catches its panic, and
//! it is traced), lets `authenticate` determine its caller and `concurrency_limit` limit the calls in flight; its answer
//! undoes grants that are not delivered (`grant_delivery`). `methods` selects its method. Then `lock`, `election` or
//! `admin` convert the message (`convert`) and, if `access` allows it, call the namespace's [`crate::locks::Locks`].
//! Only [`status`] turns errors into statuses.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use self::access::GuardedNamespaces;
use self::authenticate::Authentication;
use self::call_metrics::CallMetrics;
use self::call_path::CallPath;
use self::capacity::Capacity;
use self::concurrency_limit::Permits;
use self::connection::ConnectionSettings;
use self::convert::{Bounds, Pages};
use self::denied_actions::DeniedActions;
use self::health::HealthApi;
use self::incoming::incoming;
use self::large_reads::LargeReads;
use self::methods::Methods;
use self::shared::Api;
use self::transport::Transport;
use crate::auth::AuthenticationFailure;
use crate::namespaces::Namespaces;
use crate::supervisor::supervised;
use crate::tls::Unfinished;

mod access;
mod admin;
mod authenticate;
mod call_metrics;
mod call_path;
mod capacity;
mod catch_panic;
mod concurrency_limit;
mod connect;
mod connection;
mod console;
mod convert;
mod counted_grant;
mod deadline;
mod denied_actions;
mod election;
mod first_frame;
mod grant_delivery;
mod health;
mod incoming;
pub mod json;
mod keep_alive;
mod large_reads;
mod lease_keeper;
mod listen;
mod lock;
mod log_throttle;
mod methods;
mod observed;
mod open_streams;
mod origins;
mod peer;
mod request_log;
mod serves;
mod service;
mod session;
mod settings;
mod several;
mod shared;
pub mod status;
mod stream_leases;
mod transport;
mod verifications;

pub use fencepost_client::ListenAddress;

pub use self::access::Access;
pub use self::console::HAS_CONSOLE;
pub use self::listen::{Listener, UNIX_MODE};
pub use self::settings::Settings;
pub use self::transport::{CONNECTION_WINDOW, LOCAL_RESETS, PENDING_RESETS};

/// The messages and clients of `proto/fencepost/v1`, which the crate `fencepost-client` generates, and the servers.
#[allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]
pub mod proto {
    pub use fencepost_client::proto::*;

    tonic::include_proto!("fencepost.v1");

    /// The encoded descriptors of all files, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}

/// How long connections that were cut may take to end.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// Why the server ended without being stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The reflection service cannot read the descriptors.
    #[error("the descriptors for reflection are damaged")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves the namespaces to every caller on all listeners, like [`serve_to`] without a policy.
///
/// # Errors
/// As [`serve_to`].
///
/// # Cancellation safety
/// As [`serve_to`].
pub async fn serve(
    listeners: Vec<Listener>,
    namespaces: Namespaces,
    settings: Settings,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    serve_to(Access::default(), listeners, namespaces, settings, shutdown).await
}

/// Serves the namespaces on all listeners, to the callers that `access` allows, until `shutdown` is
/// ready and the drain has ended.
///
/// The drain: no new connection is accepted and health is NOT_SERVING; waiting Acquires and streams
/// end with DRAINING at once, and so does every new call except Renew, Release and health checks;
/// calls in flight finish. Connections that are still open after [`Settings::drain_timeout`] are
/// cut. Held leases stay. Waits that can be retried keep their places for 5 s, within that timeout. Finally the namespaces
/// are closed.
///
/// # Errors
/// [`ServeError`]. An unreachable store is no error; its namespace's health reports it.
///
/// # Cancellation safety
/// Dropping the future stops accepting and leaves open connections to their clients. To end them,
/// make `shutdown` ready instead.
pub async fn serve_to(
    access: Access,
    listeners: Vec<Listener>,
    namespaces: Namespaces,
    settings: Settings,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let (drain, cut) = (CancellationToken::new(), CancellationToken::new());
    let metrics = namespaces.metrics().map(|metrics| metrics.server().clone());
    let capacity = Capacity::new(&settings, metrics.clone());
    let mut terms = ConnectionSettings::new(&settings, drain.clone(), cut.clone(), Arc::clone(&capacity));
    if access.auth.policy().is_some() {
        terms = terms.asking();
    }
    if let Some(metrics) = &metrics {
        metrics
            .handshakes_refused
            .expect(Unfinished::ALL.map(Unfinished::as_str));
        metrics
            .unauthenticated
            .expect(AuthenticationFailure::ALL.map(AuthenticationFailure::as_str));
    }
    let connections = incoming(listeners, &terms);
    let permits = Arc::new(Permits::new(&settings, &capacity, drain.clone()));
    let methods = methods(&namespaces, &access, &settings, &permits)?;
    let authentication = Authentication::new(access.auth, metrics.clone());
    let calls = CallPath::new(
        methods,
        CallMetrics(namespaces.metrics().cloned()),
        authentication,
        permits,
    );
    let stop = begin_drain(shutdown, namespaces.clone(), drain.clone(), settings.drain_timeout);
    let server = Transport::new(&settings, metrics).serve(connections, calls, stop);
    tokio::pin!(server);
    tokio::select! {
        () = &mut server => {}
        () = supervised("capacity", Arc::clone(&capacity), |_, _| (), |capacity| capacity.watch().boxed()) => {}
        () = overdue(&drain, &settings) => {
            cut.cancel();
            // Calls that do not end now end with the process.
            let _ = timeout(CUT_GRACE, server).await;
        }
    }
    namespaces.close().await;
    Ok(())
}

async fn begin_drain(
    shutdown: impl Future<Output = ()>,
    namespaces: Namespaces,
    drain: CancellationToken,
    limit: Duration,
) {
    shutdown.await;
    tracing::info!("draining: new calls are refused, open calls finish");
    namespaces.drains_until(Instant::now() + limit);
    drain.cancel();
    namespaces.drain();
}

async fn overdue(drain: &CancellationToken, settings: &Settings) {
    drain.cancelled().await;
    sleep(settings.drain_timeout).await;
    tracing::warn!("the drain took too long: cutting the remaining connections");
}

/// The methods, and the services of health and reflection.
fn methods(
    namespaces: &Namespaces,
    access: &Access,
    settings: &Settings,
    permits: &Arc<Permits>,
) -> Result<Methods, tonic_reflection::server::Error> {
    let api = Api {
        guarded: GuardedNamespaces::new(namespaces.clone(), access.quotas.clone()),
        permits: Arc::clone(permits),
        metrics: CallMetrics(namespaces.metrics().cloned()),
        denied: DeniedActions::default(),
        bounds: Bounds::of(settings),
        pages: Pages::of(settings),
        large_reads: LargeReads::default(),
        request_bytes: settings.request_bytes,
        response_bytes: settings.response_bytes,
    };
    let health = HealthServer::new(HealthApi::new(namespaces.clone(), permits.drain.clone()))
        .max_decoding_message_size(settings.request_bytes);
    let others = Routes::new(health)
        .add_service(
            reflection()
                .build_v1()?
                .max_decoding_message_size(settings.request_bytes),
        )
        .add_service(
            reflection()
                .build_v1alpha()?
                .max_decoding_message_size(settings.request_bytes),
        );
    Ok(Methods::new(api, others))
}

/// Old and new clients use different versions of reflection. The details of errors are described
/// too, so that a client without proto files can display them.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
}

#[cfg(test)]
mod tests;
