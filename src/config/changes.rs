//! What of a changed configuration a running server can take up.

use std::collections::BTreeMap;

use super::Config;
use super::section::Section;

/// The keys that are taken up while the server runs, beside those of namespaces; all others are read
/// at its start only.
const LIVE: &[&str] = &["log.level", "ready_namespaces"];

impl Config {
    /// The keys that differ in `next` and are read at the server's start only.
    pub fn needs_restart(&self, next: &Self) -> Vec<String> {
        let (old, new) = (server_keys(&self.file), server_keys(&next.file));
        let names = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key)));
        let differ = names.filter(|key| !LIVE.contains(&key.as_str()) && old.get(*key) != new.get(*key));
        differ.cloned().chain(self.moved_namespaces(next)).collect()
    }

    /// The namespaces of both whose store is another: their locks would be forgotten.
    fn moved_namespaces(&self, next: &Self) -> Vec<String> {
        let both = self
            .namespaces
            .iter()
            .filter_map(|(name, old)| Some((name, old, next.namespaces.get(name)?)));
        let moved = both.filter(|(_, old, new)| old.backend != new.backend);
        moved
            .map(|(name, ..)| format!("the backend of namespaces.{name}"))
            .collect()
    }
}

/// All keys but those of namespaces, by their path.
fn server_keys(section: &dyn Section) -> BTreeMap<String, Option<toml::Value>> {
    let own = section.keys().into_iter().map(|key| (key.name.to_owned(), key.value));
    let tables = section.tables().into_iter().filter(|(path, _)| path[0] != "namespaces");
    let below = tables.flat_map(|(path, table)| {
        let path = path.join(".");
        server_keys(table)
            .into_iter()
            .map(move |(key, value)| (format!("{path}.{key}"), value))
    });
    own.chain(below).collect()
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use super::super::{Overrides, Source};
    use super::*;

    fn config(text: &str) -> Config {
        let source = Source::new("f.toml".into(), text.to_owned());
        Config::read(source, Overrides::default(), Some("/d".into())).expect(text)
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

    #[test]
    fn what_is_read_at_the_start_only_is_named() {
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
