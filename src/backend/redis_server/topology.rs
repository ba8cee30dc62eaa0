//! Which server serves a key, and script calls to that server.

use std::sync::Arc;

use futures::future::join_all;
use redis::{ConnectionInfo, Value};
use tokio::sync::watch;

use super::cluster::Cluster;
use super::failure::{of_script, unavailable};
use super::library::Scripts;
use super::marker::Marker;
use super::node::Node;
use super::script::{Answer, Script, ScriptCall, StepRequirements};
use super::sentinel::{Finder, Sentinel};
use super::settings::{Servers, Settings};
use crate::backend::{BackendError, Health};

/// The servers of a store.
pub enum Topology {
    /// One master.
    Single(Arc<Node>),
    /// The masters of a Cluster, by slot.
    Cluster(Arc<Cluster>),
}

impl Topology {
    /// Starts to monitor the servers, and loads these scripts there.
    pub fn start(settings: &Arc<Settings>, scripts: Scripts) -> Self {
        let single = |finder: Finder| {
            let key = format!("{}:admitted", settings.prefix).into_bytes();
            let marker = Marker::new(key, settings.on_empty_store, settings.longest_ttl);
            let marker = marker.recorded_in(settings.record.clone());
            Self::Single(Arc::new(Node::start(Arc::clone(settings), finder, marker, scripts)))
        };
        match settings.servers.clone() {
            Servers::Standalone(info) => single(Finder::Fixed(info)),
            Servers::Sentinel {
                master,
                sentinels,
                login,
            } => single(Finder::Sentinels {
                master,
                sentinels: sentinels.into_iter().map(Sentinel::new).collect(),
                login,
            }),
            Servers::Cluster(seeds) => Self::Cluster(Cluster::start(Arc::clone(settings), seeds, scripts)),
        }
    }

    /// Calls a script on the server of its key.
    ///
    /// # Errors
    /// Unavailable and Quarantined; Broken when the script itself failed.
    pub async fn call(
        &self,
        script: &'static Script,
        key: &[u8],
        args: &[Vec<u8>],
        needs: StepRequirements,
    ) -> Result<Answer, BackendError> {
        match self {
            Self::Single(node) => {
                node.check(needs)?;
                let answer = node.call(script, &ScriptCall::of(key, args), needs).await?;
                answer.map_err(|error| of_script(&error))
            }
            Self::Cluster(cluster) => cluster.call(script, key, args, needs).await,
        }
    }

    /// Sends a command to the server of its key.
    ///
    /// # Errors
    /// Like [`Self::call`].
    pub async fn command(&self, key: &[u8], command: &redis::Cmd) -> Result<Value, BackendError> {
        match self {
            Self::Single(node) => node.command(command).await?.map_err(|error| of_script(&error)),
            Self::Cluster(cluster) => cluster.command(key, command).await,
        }
    }

    /// Ends the quarantine of all servers, or of the one at `node` (`host:port`), on an operator's
    /// request.
    ///
    /// # Errors
    /// Unavailable when a server cannot be reached; Unsupported when `node` is none of these
    /// servers.
    pub async fn admit(&self, node: Option<&str>) -> Result<(), BackendError> {
        let nodes = match self {
            Self::Single(single) => {
                let at = single.live()?.info.addr().to_string();
                let matches = node.is_none_or(|node| node == at);
                matches.then(|| Arc::clone(single)).into_iter().collect()
            }
            Self::Cluster(cluster) => cluster.nodes(node),
        };
        if nodes.is_empty() {
            let foreign = BackendError::Unsupported {
                what: "admitting a node that is none of this store's masters",
            };
            return Err(node.map_or_else(|| unavailable("no master is known yet"), |_| foreign));
        }
        let all = join_all(nodes.iter().map(|node| node.admit())).await;
        all.into_iter().collect()
    }

    /// The health of the servers.
    pub fn health(&self) -> watch::Receiver<Health> {
        match self {
            Self::Single(node) => node.health(),
            Self::Cluster(cluster) => cluster.health(),
        }
    }

    /// A server from which published messages can be received.
    ///
    /// # Errors
    /// NotSent while there is none.
    pub fn message_source(&self) -> Result<(ConnectionInfo, Arc<Node>), BackendError> {
        let node = match self {
            Self::Single(node) => Arc::clone(node),
            Self::Cluster(cluster) => cluster.any()?,
        };
        Ok((node.live()?.info.clone(), node))
    }

    /// Whether a server returned by [`Self::message_source`] is still one: a server that was
    /// removed from a Cluster receives no messages of it.
    pub fn is_message_source(&self, info: &ConnectionInfo) -> bool {
        match self {
            Self::Single(_) => true,
            Self::Cluster(cluster) => cluster.has_master_at(info),
        }
    }
}
