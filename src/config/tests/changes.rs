//! Which changes of a configuration need a restart.

use super::*;
use crate::config::changes::server_keys;

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
    let rule =
        |who: &str| format!("[[auth.rules]]\nidentities = ['token:{who}']\nnamespaces = ['a']\nverbs = ['admin']\n");
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
