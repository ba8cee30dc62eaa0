//! What the store says of itself.

use tokio::sync::watch;

use super::Locks;
use crate::backend::{Capabilities, Health};

impl Locks {
    /// What the backend can do.
    pub fn capabilities(&self) -> Capabilities {
        self.state.capabilities
    }

    /// The health of the store.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.state.backend.health()
    }

    /// What operators should know of the store although it serves.
    pub fn warning(&self) -> Option<String> {
        self.state.backend.warning()
    }

    /// The health of each node, if the backend uses several and needs a majority of them.
    pub fn nodes(&self) -> Vec<(String, Health)> {
        self.state.backend.nodes()
    }
}
