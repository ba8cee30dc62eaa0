//! Direct mode: with `--store` or `--config`, a command serves its own calls from its own process. The server is that of
//! `fencepost serve`, over connections within the process, so that a call has one way.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost::api::{self, Access, Listener};
use fencepost::auth::Auth;
use fencepost::backend::driver::StoreConfig;
use fencepost::backend::{Health, whole_seconds};
use fencepost::config::Config;
use fencepost::name::Namespace;
use fencepost::quota::Quotas;
use fencepost::stores::{self, Stores};
use fencepost_client::Client;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Failure, exit, failure, same_store};

mod store_url;

/// How long a store may take to answer first.
const FIRST_CONTACT: Duration = Duration::from_secs(10);
/// The interval at which a file is tried that another process has open.
const FILE_INTERVAL: Duration = Duration::from_millis(20);
/// How long the end of the command waits for calls in flight, and for the store.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(4);

/// The server in this process, until [`stop`].
static RUNNING: Mutex<Option<Running>> = Mutex::new(None);

#[derive(Debug)]
struct Running {
    stop: CancellationToken,
    served: JoinHandle<()>,
    _stores: Stores,
}

/// The store that a command uses without a server.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Direct {
    /// Use a store without a server: postgres://, mysql://, redis://, rediss://, etcd:// or zookeeper://HOST:PORT, or
    /// file:PATH. Passwords are in variables or files: see docs/direct.md
    #[arg(long, env = "FENCEPOST_STORE", hide_env_values = true, value_name = "URL", conflicts_with_all = ["addresses", "config"])]
    pub store: Option<String>,
    /// Use the stores of a configuration file (TOML) without a server
    #[arg(long, value_name = "FILE", conflicts_with = "addresses")]
    pub config: Option<PathBuf>,
}

/// What a command is about, for a server in its own process.
#[derive(Debug, Default)]
pub struct Purpose {
    /// The namespaces of its calls, as far as they are known.
    namespaces: Vec<String>,
    /// How long it waits for a lock, if it acquires one.
    wait: Option<Duration>,
}

impl Purpose {
    /// Calls in these namespaces that acquire nothing.
    pub fn within<'a>(namespaces: impl IntoIterator<Item = &'a str>) -> Self {
        let namespaces = namespaces.into_iter().map(str::to_owned).collect();
        Self { namespaces, wait: None }
    }

    /// An acquire that waits so long.
    pub fn acquiring(namespace: &str, wait: Option<Duration>) -> Self {
        let wait = Some(wait.unwrap_or_default());
        Self {
            wait,
            ..Self::within([namespace])
        }
    }
}

/// A store that cannot be used now.
#[derive(Debug, thiserror::Error)]
enum NotServing {
    #[error("{store}: {reason}")]
    Unavailable { store: String, reason: String },
    #[error(
        "{store} grants nothing for {left}; if no lease can be left in it, as in a new one, run `fencepost admit {namespace} \
         {named}`: {reason}"
    )]
    Quarantined {
        store: String,
        namespace: String,
        named: String,
        left: humantime::FormattedDuration,
        reason: String,
    },
}

impl Direct {
    /// The store for people, and for the arguments of another command.
    pub fn text(&self) -> Option<String> {
        let config = || self.config.as_ref().map(|path| path.display().to_string());
        self.store.clone().or_else(config)
    }

    fn named(&self) -> String {
        match (&self.store, &self.config) {
            (Some(url), _) => format!("--store '{url}'"),
            (None, Some(path)) => format!("--config '{}'", path.display()),
            (None, None) => String::new(),
        }
    }

    fn configuration(&self, namespaces: &[String]) -> Result<Config, Failure> {
        if let Some(url) = &self.store {
            let text = store_url::configuration(url, namespaces).map_err(Failure::usage)?;
            return Config::of_text(Path::new("--store"), text, stores::ALL).map_err(Failure::usage);
        }
        let path = self.config.as_deref().unwrap_or_else(|| Path::new(""));
        let mut config = Config::of_file(path, stores::ALL).map_err(Failure::usage)?;
        let is_asked = |name: &Namespace| namespaces.is_empty() || namespaces.iter().any(|one| one == name.as_str());
        let asked = config.namespaces.iter().filter(|(name, _)| is_asked(name));
        let stores: Vec<StoreConfig> = asked.map(|(_, one)| one.store.clone()).collect();
        // The longest `ttl_max` of a store counts, whichever of its namespaces has it.
        config
            .namespaces
            .retain(|_, one| stores.iter().any(|store| store.is_same_store(&one.store)));
        Ok(config)
    }

    /// Serves the store from this process until [`stop`], and connects to that server.
    pub async fn connect(&self, purpose: Purpose) -> Result<Client, Failure> {
        let config = self.configuration(&purpose.namespaces)?;
        same_store::set(self.named());
        let stores = open(&config, purpose.wait).await?;
        self.check_health(&stores, purpose.wait.is_some()).await?;
        let (listener, connect) = Listener::in_process();
        let (stop, mut settings) = (CancellationToken::new(), config.settings());
        settings.drain_timeout = DRAIN_TIMEOUT;
        let access = Access {
            // Who can open the store may do anything.
            auth: Auth::new(None),
            quotas: Quotas::new(config.quotas.clone()),
        };
        let served = api::serve_to(
            access,
            vec![listener],
            stores.namespaces().clone(),
            settings,
            stop.clone().cancelled_owned(),
        );
        let served = tokio::spawn(async move {
            if let Err(error) = served.await {
                tracing::error!(%error, "the server in this process has ended");
            }
        });
        *RUNNING.lock() = Some(Running {
            stop,
            served,
            _stores: stores,
        });
        Client::connect_by(connect).map_err(failure)
    }

    /// Waits until each store answers. One in quarantine is refused to a command that acquires.
    async fn check_health(&self, stores: &Stores, acquires: bool) -> Result<(), Failure> {
        let store = self.text().unwrap_or_default();
        for locks in stores.namespaces().all() {
            let mut health = locks.health();
            let answered = health.wait_for(|health| !matches!(health, Health::Unavailable { .. }));
            // What is wrong is in the last value.
            let _ = timeout(FIRST_CONTACT, answered).await;
            let last = health.borrow().clone();
            let problem = match last {
                Health::Unavailable { reason } => NotServing::Unavailable {
                    store: store.clone(),
                    reason,
                },
                Health::Quarantined { until, reason } if acquires => NotServing::Quarantined {
                    store: store.clone(),
                    namespace: locks.namespace().to_string(),
                    named: self.named(),
                    left: humantime::format_duration(whole_seconds(until.saturating_duration_since(Instant::now()))),
                    reason,
                },
                _ => continue,
            };
            stores.namespaces().close().await;
            return Err(Failure::coded(exit::NO_SERVER, problem));
        }
        Ok(())
    }
}

/// Opens the stores. A file that another process has open is waited for.
async fn open(config: &Config, wait: Option<Duration>) -> Result<Stores, Failure> {
    let end = Instant::now() + wait.unwrap_or_default();
    loop {
        match stores::open(config, None).await {
            Ok(stores) => return Ok(stores),
            Err(error) if !error.is_in_use() => return Err(Failure::runtime(error)),
            Err(_) if Instant::now() < end => sleep(FILE_INTERVAL).await,
            Err(error) => {
                let has_waited = wait.is_some_and(|wait| !wait.is_zero());
                let code = if has_waited {
                    exit::WAIT_TIMEOUT
                } else {
                    exit::NO_SERVER
                };
                return Err(Failure::coded(code, error));
            }
        }
    }
}

/// Ends the server in this process, if there is one: what was sent to the store is finished.
pub async fn stop() {
    let running = RUNNING.lock().take();
    if let Some(Running { stop, served, .. }) = running {
        stop.cancel();
        // A store that does not answer delays the end of the command no longer.
        let _ = timeout(CLOSE_TIMEOUT, served).await;
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn all_namespaces_of_a_store_that_is_asked_for_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("f.toml");
        let of = |name: &str, port: u16| {
            format!("[namespaces.{name}]\nbackend = 'redis'\nredis.urls = ['redis://127.0.0.1:{port}']\n")
        };
        std::fs::write(&config, of("short", 1) + &of("long", 1) + &of("other", 2)).expect("a file");
        let direct = Direct {
            store: None,
            config: Some(config),
        };
        let kept = direct.configuration(&["short".into()]).expect("it is valid");
        let kept: Vec<&str> = kept.namespaces.keys().map(Namespace::as_str).collect();
        assert_eq!(kept, ["long", "short"]);
    }
}
