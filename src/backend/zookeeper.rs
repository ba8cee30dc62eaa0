//! ZooKeeper: linearizable locks on an ensemble that a team already runs (CP).
//!
//! [`Store::open`] takes the settings of an ensemble, and [`Store::namespace`] opens one namespace of it with a session
//! of its own: the tree engine (`crate::backend::tree`) over a [`client`]. All nodes of a namespace are under
//! `<root>/<namespace>`.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::mpsc;

use self::client::Client;
use self::settings::{Credentials, Settings};
use super::Backend;
use super::local_clock::BootClock;
use super::tree::{Engine, EngineSettings};
use crate::name::Namespace;

// The bench sends bare requests with it.
#[doc(hidden)]
pub mod client;
pub mod config;
pub mod settings;

/// An ensemble, which namespaces are opened from.
#[derive(Debug, Clone)]
pub struct Store {
    settings: Settings,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    credentials: Credentials,
    clients: Vec<Weak<Client>>,
}

impl Store {
    /// A store with these settings and credentials. Failures show in the health of the namespaces.
    pub fn open(settings: Settings, credentials: Credentials) -> Self {
        let clients = Vec::new();
        let shared = Shared { credentials, clients };
        Self {
            settings,
            shared: Arc::new(Mutex::new(shared)),
        }
    }

    /// Replaces the credentials: every session connects again with them.
    pub fn set_credentials(&self, credentials: Credentials) {
        let mut shared = self.shared.lock();
        shared.clients.retain(|client| client.strong_count() > 0);
        for client in shared.clients.iter().filter_map(Weak::upgrade) {
            client.set_credentials(credentials.clone());
        }
        shared.credentials = credentials;
    }

    /// The backend of one namespace. Must be called within a tokio runtime: tasks keep its session alive until it is
    /// closed.
    pub fn namespace(&self, namespace: &Namespace) -> Arc<dyn Backend> {
        let (sender, events) = mpsc::unbounded_channel();
        let client = {
            let mut shared = self.shared.lock();
            let client = Arc::new(Client::open(&self.settings, shared.credentials.clone(), sender));
            shared.clients.retain(|client| client.strong_count() > 0);
            shared.clients.push(Arc::downgrade(&client));
            client
        };
        let settings = EngineSettings {
            kind: "zookeeper",
            root: self.settings.root.clone(),
            timeout: self.settings.timeout,
            max_request: self.settings.max_request,
            clock: Arc::new(BootClock),
        };
        Engine::open(client, events, namespace, &settings)
    }
}
