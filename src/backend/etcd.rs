//! etcd: linearizable locks on the store that a cluster already runs (CP).
//!
//! [`Store::open`] connects to a cluster, and [`Store::namespace`] opens one namespace of it with a session of its own: the
//! tree engine (`crate::backend::tree`) over a [`tree`]. All keys of a namespace are under `<root>/<namespace>/`.
//!
//! - [`cluster`] connects to the members, replaces this server's credentials, and reads the cluster's status.
//! - [`tree`] is the tree in etcd: its nodes as keys, its commits as transactions, its sessions as leases.

use std::sync::Arc;

use tokio::sync::mpsc;

use self::cluster::client::ClusterClient;
use self::settings::{Credentials, Settings};
use self::tree::EtcdTree;
use super::Backend;
use super::local_clock::BootClock;
use super::tree::store::{Event, Tree};
use super::tree::{Engine, EngineSettings};
use crate::name::Namespace;

mod cluster;
pub mod config;
mod tree;

pub use self::cluster::settings;

/// The largest step, in bytes. Etcd takes requests of 1.5 MiB.
const MAX_REQUEST: usize = 512 * 1024;

/// A cluster, which namespaces are opened from.
#[derive(Debug, Clone)]
pub struct Store {
    link: Arc<ClusterClient>,
    settings: Settings,
}

impl Store {
    /// Makes a client of a cluster, which connects with its first call. Failures show in the health of the namespaces.
    pub fn open(settings: Settings) -> Self {
        Self {
            link: Arc::new(ClusterClient::new(&settings)),
            settings,
        }
    }

    /// Replaces the credentials. New connections use them as soon as the members accept them, and each session goes on over
    /// a new one. Must be called within a tokio runtime.
    pub fn set_credentials(&self, credentials: Credentials) {
        self.link.set_credentials(credentials);
    }

    /// The backend of one namespace. Must be called within a tokio runtime: tasks keep its session alive until it is
    /// closed.
    pub fn namespace(&self, namespace: &Namespace) -> Arc<dyn Backend> {
        let (tree, events) = self.tree(namespace);
        let settings = EngineSettings {
            kind: "etcd",
            root: self.settings.root.clone(),
            timeout: self.settings.timeout,
            max_request: MAX_REQUEST,
            clock: Arc::new(BootClock),
        };
        Engine::open(tree, events, namespace, &settings)
    }

    /// The tree of a namespace, and the events of its watches.
    // Tests send bare requests over it.
    #[doc(hidden)]
    pub fn tree(&self, namespace: &Namespace) -> (Arc<dyn Tree>, mpsc::UnboundedReceiver<Event>) {
        let (sender, events) = mpsc::unbounded_channel();
        let root = format!("{}/{namespace}", self.settings.root.trim_end_matches('/'));
        let tree = EtcdTree::open(Arc::clone(&self.link), root, self.settings.session_ttl, sender);
        (tree, events)
    }
}
