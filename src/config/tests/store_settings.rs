//! Settings of stores that do not fit together.

use super::*;

#[test]
fn a_redis_with_conflicting_keys_is_refused() {
    let with = |keys: &str| format!("[namespaces.a]\nbackend = 'redis'\n[namespaces.a.redis]\n{keys}");
    refused(
        &with("mode = 'sentinel'"),
        "f.toml:3:15: namespaces.a.redis.master: must be set",
        "database 0",
    );
    refused(
        &with("mode = 'x'"),
        "f.toml:4:1: namespaces.a.redis.mode: must be",
        "\"x\"",
    );
    refused(
        &with("urls = ['http://x']"),
        "f.toml:4:1: namespaces.a.redis.urls: must each be",
        "unix://",
    );
    refused(
        &with("urls = []"),
        "f.toml:4:1: namespaces.a.redis.urls: must be one URL",
        "\"cluster\"",
    );
    refused(
        &with("on_empty_store = 'x'"),
        "f.toml:4:1: namespaces.a.redis.on_empty_store: must be",
        "\"x\"",
    );
    let at_4 = |keys: &str, key: &str, more: &str| {
        refused(
            &with(keys),
            &format!("f.toml:4:1: namespaces.a.redis.{key}: must"),
            more,
        );
    };
    at_4("urls = ['redis://u:p@x']", "urls", "which have keys of their own");
    at_4(
        "password_env = 'A'\npassword_file = 'b'",
        "password_env",
        "password_file is set",
    );
    at_4("sentinel_user = 'a'", "sentinel_user", "mode is not \"sentinel\"");
    at_4(
        "sentinel_password_env = 'A'",
        "sentinel_password_env",
        "mode is not \"sentinel\"",
    );
    at_4("ca_file = '/x'", "ca_file", "no URL is rediss://");
    let encrypted = "urls = ['rediss://x']";
    at_4(&format!("cert_file = '/x'\n{encrypted}"), "cert_file", "a key_file");
    at_4(&format!("key_file = '/x'\n{encrypted}"), "key_file", "a cert_file");
    refused(
        &with("wait_replicas = 17"),
        "f.toml:4:17: namespaces.a.redis.wait_replicas: invalid value",
        "from 0 to 16",
    );
    refused(
        &with("wait_replicas_timeout = '3s'"),
        "f.toml:4:25: namespaces.a.redis.wait_replicas_timeout: invalid value",
        "written like \"30s\" or \"1h 5m\"",
    );
    let cp = "[namespaces.a]\nbackend = 'redis'\nguarantee = 'cp'";
    refused(
        cp,
        "f.toml:3:1: namespaces.a.guarantee: must be at most AP",
        "promises no more",
    );
}

#[test]
fn an_etcd_with_conflicting_keys_is_refused() {
    let with = |keys: &str| format!("[namespaces.a]\nbackend = 'etcd'\n[namespaces.a.etcd]\n{keys}");
    assert!(read(&with("endpoints = ['http://a:2379', 'http://b:2379']")).is_ok());
    assert!(read("[namespaces.a]\nbackend = 'etcd'\nguarantee = 'cp'").is_ok());
    for (keys, place, problem) in [
        (
            "endpoints = []",
            "f.toml:4:1: namespaces.a.etcd.endpoints: must be",
            "https:// where there is a ca_file",
        ),
        (
            "endpoints = ['https://a']",
            "f.toml:4:1: namespaces.a.etcd.endpoints: must be",
            "there is a ca_file",
        ),
        (
            "root = 'x'",
            "f.toml:4:1: namespaces.a.etcd.root: must begin",
            "control character",
        ),
        (
            "password_file = '/x'",
            "f.toml:4:1: namespaces.a.etcd.password_file: must",
            "no user",
        ),
        (
            "cert_file = '/x'",
            "f.toml:4:1: namespaces.a.etcd.cert_file: must",
            "key_file",
        ),
        (
            "session_ttl = '1s'",
            "f.toml:4:15: namespaces.a.etcd.session_ttl: invalid value: string \"1s\", expected a time from 2s to 8s",
            "\"1h 5m\"",
        ),
    ] {
        refused(&with(keys), place, problem);
    }
}
