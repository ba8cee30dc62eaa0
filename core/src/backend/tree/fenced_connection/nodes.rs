//! The nodes that every namespace has, and those of its sessions.

use futures::future::try_join_all;

use super::{FencedConnection, FencedConnections};
use crate::backend::tree::store::{Failure, Op, Reason};

/// How often the nodes of the namespace are created again because they have changed.
const TRIES: usize = 16;

impl FencedConnections {
    /// Creates the nodes that every namespace has, as far as they are absent.
    pub(super) async fn make_directories(&self, generation: u64) -> Result<(), Failure> {
        let zero = || 0_u64.to_be_bytes().to_vec();
        let directories = self.paths.directories().into_iter().map(|path| (path, Vec::new()));
        let base = std::iter::once(self.paths.base());
        let mint = self.tree.bounds().numbers_leap.then(|| self.paths.mint());
        let numbers = base.chain(mint).map(|path| (path, zero()));
        let nodes: Vec<_> = directories.chain(numbers).collect();
        for _ in 0..TRIES {
            let reads = nodes.iter().map(|(path, _)| self.is_there(generation, path));
            let found = try_join_all(reads).await?;
            let absent = nodes.iter().zip(found).filter(|(_, is_there)| !is_there);
            let creates: Vec<_> = absent
                .map(|((path, data), _)| Op::create(path.clone(), data.clone()))
                .collect();
            if creates.is_empty() {
                return Ok(());
            }
            match self.tree.apply(generation, &creates).await {
                // Another replica creates them, too, or somebody deletes them.
                Err(failure) if failure.is_node_exists() || failure.is_no_node() => {}
                created => return created.map(drop),
            }
        }
        Err(Failure::Contended)
    }

    /// Whether the session of a connection lives: its fence ends with it, and so do its waiters.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn is_session_alive(&self, connection: &FencedConnection) -> Result<bool, Failure> {
        Ok(self
            .tree
            .get(connection.generation, &connection.fence.0)
            .await?
            .is_some())
    }

    /// Whether a node is there, also one that this account may not read, such as one above the root.
    async fn is_there(&self, generation: u64, path: &str) -> Result<bool, Failure> {
        match self.tree.get(generation, path).await {
            Err(Failure::Error(Reason::NoAuth)) => Ok(true),
            read => Ok(read?.is_some()),
        }
    }

    /// Creates a persistent node unless it is there.
    ///
    /// # Errors
    /// When the store does not answer or refuses.
    pub async fn ensure(&self, generation: u64, path: &str, data: Vec<u8>) -> Result<(), Failure> {
        match self.tree.apply(generation, &[Op::create(path, data)]).await {
            Err(failure) if !failure.is_node_exists() => Err(failure),
            _ => Ok(()),
        }
    }
}
