//! Which changes of the configuration a running server can apply.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::Config;
use crate::schema::Section;
use crate::tls::ClientAuth;

/// The keys, apart from those of namespaces, whose changes a running server applies. All others require a
/// restart. An entry that ends in a dot stands for all keys below it.
const LIVE: &[&str] = &[
    "auth.",
    "log.grants",
    "log.level",
    "ready_namespaces",
    "tls.certificate",
    "tls.client_auth",
    "tls.client_ca",
    "tls.handshake_limit",
    "tls.handshake_timeout",
    "tls.key",
];

impl Config {
    /// The keys that differ in `next` and require a restart.
    pub fn needs_restart(&self, next: &Self) -> Vec<String> {
        let (old, new) = (server_keys(&self.file), server_keys(&next.file));
        let names = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key)));
        let differ = names.filter(|key| !is_live(key) && old.get(*key) != new.get(*key));
        // Encryption and authentication cannot be switched on or off while the server runs. Otherwise a truncated
        // file would give everybody access.
        let auth = (self.policy.is_some() != next.policy.is_some()).then(|| "auth".to_owned());
        let tls = (self.tls.is_some() != next.tls.is_some()).then(|| "tls".to_owned());
        let client_auth = self.drops_client_auth(next).then(|| "tls.client_auth".to_owned());
        let moved = self.moved_namespaces(next);
        differ
            .cloned()
            .chain(auth)
            .chain(tls)
            .chain(client_auth)
            .chain(moved)
            .collect()
    }

    /// Whether client certificates, which were required so far, would no longer be required although no rules apply.
    fn drops_client_auth(&self, next: &Self) -> bool {
        let is_required = |config: &Self| config.tls().is_some_and(|tls| tls.client_auth == ClientAuth::Required);
        next.policy.is_none() && is_required(self) && !is_required(next)
    }

    /// The files with the credentials for the stores.
    pub(super) fn store_files(&self) -> Vec<PathBuf> {
        let tables = self.file.tables().into_iter();
        let namespaces = tables.filter(|table| table.path[0] == "namespaces");
        namespaces.flat_map(|table| credential_files(table.section)).collect()
    }

    /// The namespaces in both configurations with different stores. A change would lose their locks.
    fn moved_namespaces(&self, next: &Self) -> Vec<String> {
        let both = self
            .namespaces
            .iter()
            .filter_map(|(name, old)| Some((name, old, next.namespaces.get(name)?)));
        let moved = both.filter(|(_, old, new)| old.store != new.store);
        moved
            .map(|(name, ..)| format!("the backend of namespaces.{name}"))
            .collect()
    }
}

fn credential_files(section: &dyn Section) -> Vec<PathBuf> {
    let keys = section.keys().into_iter();
    let own = keys.filter(|key| key.name.ends_with("_file"));
    let own = own.filter_map(|key| Some(PathBuf::from(key.value?.as_str()?)));
    let below = section
        .tables()
        .into_iter()
        .flat_map(|table| credential_files(table.section));
    own.chain(below).collect()
}

fn is_live(key: &str) -> bool {
    let mut live = LIVE.iter();
    live.any(|live| key == *live || (live.ends_with('.') && key.starts_with(live)))
}

/// All keys except those of namespaces, by their path. The path of a table in a list contains its number.
pub(super) fn server_keys(section: &dyn Section) -> BTreeMap<String, Option<toml::Value>> {
    let own = section.keys().into_iter().map(|key| (key.name.to_owned(), key.value));
    let tables = section.tables().into_iter();
    let tables = tables.filter(|table| table.path[0] != "namespaces").enumerate();
    let below = tables.flat_map(|(number, table)| {
        let mut path = table.path.join(".");
        if table.is_one_of_many {
            path = format!("{path}.{number}");
        }
        server_keys(table.section)
            .into_iter()
            .map(move |(key, value)| (format!("{path}.{key}"), value))
    });
    own.chain(below).collect()
}
