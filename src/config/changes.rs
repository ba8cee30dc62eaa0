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
fn server_keys(section: &dyn Section) -> BTreeMap<String, Option<toml::Value>> {
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

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use super::super::{Overrides, Source};
    use super::*;
    use crate::stores;

    fn config(text: &str) -> Config {
        let mut source = Source::new("f.toml".into(), text.to_owned());
        Config::of(&mut source, Overrides::default(), stores::ALL, Some("/d".into())).expect(text)
    }

    #[test]
    fn limits_namespaces_and_the_log_level_need_no_restart() {
        let old = config("[namespaces.a]\n[namespaces.b]\n");
        let new = config(
            "ready_namespaces = ['a']\n[log]\nlevel = 'debug'\n[namespaces.a]\nttl_max = '1h'\nqueue_limit = 3\n\
             [namespaces.c]\n",
        );
        assert_eq!(old.needs_restart(&new), Vec::<String>::new());
    }

    /// A server with certificates and one rule, followed by `rest`.
    fn secure(rest: &str) -> Config {
        config(&format!(
            "[tls]\ncertificate = '/c'\nkey = '/k'\n[auth]\nbearer_file = '/b'\n[[auth.rules]]\n\
             identities = ['token:a']\nnamespaces = ['a']\nverbs = ['read']\n{rest}[namespaces.a]\n"
        ))
    }

    #[test]
    fn certificates_rules_and_limits_need_no_restart() {
        let rule = |who: &str| {
            format!("[[auth.rules]]\nidentities = ['token:{who}']\nnamespaces = ['a']\nverbs = ['admin']\n")
        };
        let (old, new) = (secure(&rule("b")), secure(&(rule("c") + &rule("b"))));
        assert_eq!(old.needs_restart(&new), Vec::<String>::new());
        assert_ne!(
            server_keys(&old.file),
            server_keys(&new.file),
            "each rule has a path of its own"
        );
        let other = config(
            "[tls]\ncertificate = '/d'\nkey = '/l'\nclient_ca = '/e'\nclient_auth = 'required'\n\
             handshake_timeout = '1s'\nhandshake_limit = 3\n[auth]\nhealth = 'closed'\n[auth.jwt]\njwks_file = '/j'\n\
             issuer = 'i'\naudiences = ['a']\n[[auth.limits]]\nidentities = ['*']\nrate_limit = 3\n[namespaces.a]\n",
        );
        assert_eq!(old.needs_restart(&other), Vec::<String>::new());
    }

    #[test]
    fn switching_encryption_needs_a_restart() {
        let (plain, all) = (
            "[namespaces.a]\n",
            "[tls]\ncertificate = '/c'\nkey = '/k'\nlisteners = 'all'\n",
        );
        assert_eq!(config(plain).needs_restart(&secure("")).last(), Some(&"tls".to_owned()));
        assert_eq!(secure("").needs_restart(&config(all)), ["tls.listeners", "auth"]);
    }

    #[test]
    fn switching_authentication_needs_a_restart() {
        let cut = config("[tls]\ncertificate = '/c'\nkey = '/k'\n");
        assert_eq!(secure("").needs_restart(&cut), ["auth"]);
        assert_eq!(cut.needs_restart(&secure("")), ["auth"]);
    }

    #[test]
    fn a_truncated_file_does_not_drop_client_auth() {
        let cut = "[tls]\ncertificate = '/c'\nkey = '/k'\n";
        let whole = |word: &str| config(&format!("{cut}client_ca = '/a'\nclient_auth = '{word}'\n"));
        assert_eq!(whole("required").needs_restart(&config(cut)), ["tls.client_auth"]);
        assert_eq!(whole("required").needs_restart(&whole("optional")), ["tls.client_auth"]);
        let none = Vec::<String>::new();
        assert_eq!(whole("optional").needs_restart(&whole("required")), none);
        assert_eq!(whole("optional").needs_restart(&config(cut)), none);
    }

    #[test]
    fn keys_that_need_a_restart_are_listed() {
        let old = config("[namespaces.a]\n");
        let new = config(
            "listen = ['127.0.0.1:1']\ndrain_timeout = '1s'\n[server]\ncall_limit = 3\n[log]\nformat = 'json'\n\
             [namespaces.a]\nembedded.path = 'other'\n",
        );
        let expected = ["drain_timeout", "listen", "log.format", "server.call_limit"];
        let expected = expected.iter().map(|key| (*key).to_owned());
        let moved = "the backend of namespaces.a".to_owned();
        assert_eq!(old.needs_restart(&new), expected.chain([moved]).collect::<Vec<_>>());
    }
}
