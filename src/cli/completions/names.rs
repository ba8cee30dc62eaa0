//! The names of namespaces and locks, for the completion scripts.

use std::time::Duration;

use tokio::time::timeout;

use crate::cli::direct::Purpose;
use crate::cli::server::{Server, block_on};
use crate::cli::{Failure, failure};

/// How many names are completed at most.
const MOST: usize = 200;
/// How long a shell waits for them.
const PATIENCE: Duration = Duration::from_secs(1);

/// The names that begin with a word, one on a line: of namespaces, each with a slash, or of locks in use, each with its
/// namespace. Nothing if the server does not answer, because a shell has nobody to tell.
pub fn beginning_with(server: &Server, word: &str) -> String {
    let names = block_on(async { Ok(timeout(PATIENCE, all(server, word)).await) });
    let Ok(Ok(Ok(mut names))) = names else {
        return String::new();
    };
    names.retain(|name| name.starts_with(word) && is_plain(name));
    names.truncate(MOST);
    names.into_iter().map(|name| name + "\n").collect()
}

async fn all(server: &Server, word: &str) -> Result<Vec<String>, Failure> {
    let client = server.connect(Purpose::default()).await?;
    let Some((namespace, prefix)) = word.split_once('/') else {
        let namespaces = client.namespaces().await.map_err(failure)?;
        return Ok(namespaces.into_iter().map(|info| format!("{}/", info.name)).collect());
    };
    let page = client.list(namespace, prefix, "").await.map_err(failure)?;
    let names = page.locks.into_iter().map(|lock| format!("{namespace}/{}", lock.name));
    Ok(names.collect())
}

/// Whether no shell reads anything else in a name.
fn is_plain(name: &str) -> bool {
    name.chars()
        .all(|c| c.is_ascii_alphanumeric() || "/._-+@%,".contains(c))
}
