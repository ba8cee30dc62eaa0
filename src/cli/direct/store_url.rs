//! The URL of a store as a configuration.

use std::env;
use std::path;

use percent_encoding::percent_decode_str;

/// Why a URL names no store. What it may hold of a password is not shown.
#[derive(Debug, thiserror::Error)]
pub enum BadUrl {
    #[error(
        "--store: write postgres://, mysql://, redis://, rediss://, etcd:// or zookeeper://HOST:PORT, or file:PATH"
    )]
    Scheme,
    #[error(
        "--store: the URL must hold no password, which other users could list: put it into the variable {variable}, or into a file named by ?password_file=PATH"
    )]
    Password { variable: String },
    #[error("--store: the URL must name a server, as in {example}")]
    NoServer { example: String },
    #[error(
        "--store: on_empty_store is not taken, because nothing says whether the store was in use: if it is new, run `fencepost admit`"
    )]
    Admit,
    #[error("--store: behind ? the URL must have keys of the store or of its namespace as KEY=VALUE, joined by &")]
    Query,
    #[error("--store: the URL must be UTF-8")]
    Text,
    #[error("--store: the path of the file: {0}")]
    Path(#[source] std::io::Error),
}

/// The table of a scheme, the key of its servers, what stands before each and their port, and the key of the path.
type Kind = (&'static str, &'static str, &'static str, Option<u16>, &'static str);

fn kind(scheme: &str) -> Option<Kind> {
    Some(match scheme {
        "postgres" | "postgresql" => ("postgres", "servers", "", Some(5432), "database"),
        "mysql" | "mariadb" => ("mysql", "servers", "", Some(3306), "database"),
        "redis" => ("redis", "urls", "redis://", None, "database"),
        "rediss" => ("redis", "urls", "rediss://", None, "database"),
        "etcd" => ("etcd", "endpoints", "http://", Some(2379), "root"),
        "zookeeper" => ("zookeeper", "servers", "", Some(2181), "root"),
        _ => return None,
    })
}

/// Keys of the namespace; the others are of the store.
const OF_NAMESPACE: [&str; 6] = [
    "guarantee",
    "queue_limit",
    "finished_limit",
    "ttl_default",
    "ttl_max",
    "ttl_min",
];
/// Keys whose values are numbers or truth values.
const BARE: [&str; 8] = [
    "claim_limit",
    "connections",
    "create_tables",
    "finished_limit",
    "pooler",
    "queue_limit",
    "redis.database",
    "wait_replicas",
];
/// The password of Redis, whose table names no variable by itself.
const REDIS_PASSWORD: &str = "FENCEPOST_REDIS_PASSWORD";

/// The configuration of these namespaces, all in the store of this URL; of the namespace `default` if there are none.
///
/// # Errors
/// [`BadUrl`]. Keys and values are checked with the configuration.
pub fn configuration(url: &str, namespaces: &[String]) -> Result<String, BadUrl> {
    let store = read(url)?;
    let mut text = String::new();
    let unknown = namespaces.is_empty().then_some("default");
    for namespace in namespaces.iter().map(String::as_str).chain(unknown) {
        let name = quoted(namespace);
        let of_namespace = |(key, _): &&(String, String)| OF_NAMESPACE.contains(&key.as_str());
        let lines = |keys: Vec<&(String, String)>| {
            keys.into_iter()
                .map(|(key, value)| format!("{key} = {value}\n"))
                .collect::<String>()
        };
        let (own, of_store) = store.keys.iter().partition(of_namespace);
        let (own, of_store, table) = (lines(own), lines(of_store), store.table);
        text += &format!("[namespaces.{name}]\nbackend = \"{table}\"\n{own}[namespaces.{name}.{table}]\n{of_store}");
    }
    Ok(text)
}

/// What a URL says.
struct Store {
    table: &'static str,
    /// The keys with their values as TOML.
    keys: Vec<(String, String)>,
}

impl Store {
    fn set(&mut self, key: &str, value: &str) {
        let is_bare = BARE.contains(&key) || BARE.contains(&format!("{}.{key}", self.table).as_str());
        let is_plain = value.bytes().all(|b| b.is_ascii_alphanumeric());
        let value = if is_bare && is_plain {
            value.to_owned()
        } else {
            quoted(value)
        };
        self.keys.push((key.to_owned(), value));
    }

    fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|(known, _)| known == key)
    }

    fn set_all(&mut self, query: &str) -> Result<(), BadUrl> {
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or(BadUrl::Query)?;
            let is_key = !key.is_empty() && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            if !is_key || self.has(key) {
                return Err(BadUrl::Query);
            }
            if key == "on_empty_store" {
                return Err(BadUrl::Admit);
            }
            if key == "password" {
                return Err(self.no_password());
            }
            self.set(key, &decoded(value)?);
        }
        Ok(())
    }

    fn no_password(&self) -> BadUrl {
        let variable = format!("FENCEPOST_{}_PASSWORD", self.table.to_uppercase());
        BadUrl::Password { variable }
    }
}

fn read(url: &str) -> Result<Store, BadUrl> {
    let (url, query) = url.split_once('?').unwrap_or((url, ""));
    if let Some(path) = url.strip_prefix("file:") {
        let mut store = Store {
            table: "embedded",
            keys: Vec::new(),
        };
        let path = path::absolute(path).map_err(BadUrl::Path)?;
        store.set("path", path.to_str().ok_or(BadUrl::Text)?);
        store.set_all(query)?;
        return Ok(store);
    }
    let (scheme, rest) = url.split_once("://").ok_or(BadUrl::Scheme)?;
    let (table, servers_key, before, port, path_key) = kind(scheme).ok_or(BadUrl::Scheme)?;
    let mut store = Store {
        table,
        keys: Vec::new(),
    };
    let (user, rest) = match rest.rsplit_once('@') {
        // The password may itself contain what ends a host.
        Some((user, _)) if user.contains(':') => return Err(store.no_password()),
        Some((user, rest)) => (Some(decoded(user)?), rest),
        None => (None, rest),
    };
    store.set_all(query)?;
    if let Some(user) = user {
        store.set("user", &user);
    }
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let before = match before {
        "http://" if store.has("ca_file") => "https://",
        before => before,
    };
    let servers = hosts.split(',').filter(|host| !host.is_empty());
    let servers: Vec<String> = servers
        .map(|host| quoted(&format!("{before}{}", with_port(host, port))))
        .collect();
    if servers.is_empty() {
        let example = format!("{scheme}://127.0.0.1:{}", port.unwrap_or(6379));
        return Err(BadUrl::NoServer { example });
    }
    store
        .keys
        .push((servers_key.to_owned(), format!("[{}]", servers.join(", "))));
    let path = decoded(path)?;
    if !path.is_empty() {
        let root = format!("/{path}");
        store.set(path_key, if path_key == "root" { &root } else { &path });
    }
    let needs_variable = table == "redis" && !store.has("password_file") && !store.has("password_env");
    if needs_variable && env::var_os(REDIS_PASSWORD).is_some_and(|password| !password.is_empty()) {
        store.set("password_env", REDIS_PASSWORD);
    }
    Ok(store)
}

fn with_port(host: &str, port: Option<u16>) -> String {
    let has_port = host
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    match port {
        Some(port) if !has_port => format!("{host}:{port}"),
        _ => host.to_owned(),
    }
}

fn decoded(text: &str) -> Result<String, BadUrl> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| BadUrl::Text)
}

/// A string of TOML, which has the escapes of JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(url: &str) -> String {
        let text = configuration(url, &["jobs".to_owned()]).unwrap_or_else(|error| error.to_string());
        text.replace("[namespaces.\"jobs\"]\nbackend = ", "").replace('\n', " ")
    }

    #[test]
    fn each_kind_of_url_is_its_table() {
        for (url, expected) in [
            (
                "postgres://me@db:5433/app?schema=locks&pooler=true&ttl_max=1h",
                r#""postgres" ttl_max = "1h" [namespaces."jobs".postgres] schema = "locks" pooler = true user = "me" servers = ["db:5433"] database = "app" "#,
            ),
            (
                "mysql://a,b:3307",
                r#""mysql" [namespaces."jobs".mysql] servers = ["a:3306", "b:3307"] "#,
            ),
            (
                "rediss://h/2?password_file=/run/p%20w",
                r#""redis" [namespaces."jobs".redis] password_file = "/run/p w" urls = ["rediss://h"] database = 2 "#,
            ),
            (
                "etcd://a/locks/x?ca_file=ca.pem",
                r#""etcd" [namespaces."jobs".etcd] ca_file = "ca.pem" endpoints = ["https://a:2379"] root = "/locks/x" "#,
            ),
            (
                "zookeeper://[::1]:2182",
                r#""zookeeper" [namespaces."jobs".zookeeper] servers = ["[::1]:2182"] "#,
            ),
            (
                "file:/a/b?ttl_max=1m",
                r#""embedded" ttl_max = "1m" [namespaces."jobs".embedded] path = "/a/b" "#,
            ),
        ] {
            assert_eq!(keys(url), expected, "{url}");
        }
    }

    #[test]
    fn a_url_that_is_refused_is_not_shown() {
        for url in [
            "postgres://me:secret@db/app",
            "postgres://me:sec/ret@db/app",
            "postgres://me:secret@db/app?x=y",
            "redis://:secret@h",
            "mysql://me@h?password=secret",
            "secret",
            "http://secret",
            "mysql://?user=secret",
            "redis://h?secret",
        ] {
            let error = configuration(url, &[]).expect_err(url).to_string();
            assert!(!error.contains("sec"), "{error}");
        }
    }
}
