//! Calls over HTTP with plain JSON or Protobuf in their bodies: with curl, with the clients of Connect, and by attackers that
//! write HTTP/1.1 by hand.

#![cfg(feature = "embedded")]

mod attacks;
mod calls;
mod clients;
mod curl;
mod gone;
mod refusals;

use common::server;
use server::Server;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// A server in memory with these further lines of configuration, and its folder.
fn start(config: &str) -> (Server, TempDir) {
    let home = tempfile::tempdir().expect("a folder");
    let text = format!("data_dir = \"d\"\n{config}\n[namespaces.default.embedded]\npath = \":memory:\"\n");
    std::fs::write(home.path().join("f.toml"), text).expect("a file");
    let server = Server::start_with(&home, &["--config", "f.toml", "--listen", "127.0.0.1:0"]);
    (server, home)
}

/// A caller `app` whose bearer token is `secret`, and who may do everything with locks below `app/`.
fn guarded() -> String {
    let hash = Sha256::digest("secret");
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "[auth]\nbearer_hashes = [\"app:{hash}\"]\n[[auth.rules]]\nidentities = [\"token:app\"]\nnamespaces = [\"*\"]\n\
         locks = [\"app/\"]\nverbs = [\"acquire\", \"read\"]\n"
    )
}
