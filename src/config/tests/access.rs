//! Encryption, authentication, authorization and quotas.

use super::*;
use crate::auth::{AnonymousAccess, Missing, Verb, rules::LockScope};
use crate::name::Identity;
use crate::quota::{Quota, Rate};
use crate::tls::ClientAuth;

const TLS: &str = "[tls]\ncertificate = 'c'\nkey = 'k'\n";
const HASH: &str = "bearer_hashes = ['ci:0000000000000000000000000000000000000000000000000000000000000000']\n";

#[test]
fn an_open_address_is_encrypted_and_local_ones_as_configured() {
    let listen = "listen = ['0.0.0.0:1', '127.0.0.1:2', 'unix:/s']\n";
    for (listeners, expected) in [
        ("", [true, false, false]),
        ("listeners = 'remote'", [true, false, false]),
        ("listeners = 'tcp'", [true, true, false]),
        ("listeners = 'all'", [true, true, true]),
    ] {
        let config = valid(&format!("{listen}{TLS}{listeners}"));
        let encrypted: Vec<bool> = config.listen().map(|address| config.is_encrypted(address)).collect();
        assert_eq!(encrypted, expected, "{listeners}");
    }
    let plain = valid("");
    assert!(plain.tls().is_none() && plain.policy.is_none());
    let settings = valid(&format!("{TLS}client_ca = 'a'\nclient_auth = 'required'"));
    assert_eq!(settings.tls().map(|tls| tls.client_auth), Some(ClientAuth::Required));
}

#[test]
fn metrics_on_an_open_address_are_encrypted_unless_configured_otherwise() {
    let open = "metrics_listen = '0.0.0.0:1'\n";
    for (more, encrypted) in [
        ("insecure = true\n", false),
        ("metrics_insecure = true\n", false),
        (TLS, true),
        (&format!("insecure = true\n{TLS}"), true),
        (&format!("metrics_insecure = true\n{TLS}"), false),
    ] {
        let config = valid(&format!("{open}{more}"));
        assert_eq!(config.metrics_are_encrypted(), encrypted, "{more}");
    }
    let local = valid(&format!("metrics_listen = '127.0.0.1:1'\n{TLS}"));
    assert!(!local.metrics_are_encrypted());
    assert!(!valid(TLS).metrics_are_encrypted());
    refused(
        open,
        "f.toml:1:1: metrics_listen: 0.0.0.0:1 must be a loopback address",
        "unless metrics_insecure = true or insecure = true",
    );
}

#[test]
fn the_console_on_an_open_address_is_encrypted_or_insecure_on_purpose() {
    let open = "console_listen = '0.0.0.0:1'\n";
    for (more, encrypted) in [("insecure = true\n", false), (TLS, true)] {
        let config = valid(&format!("{open}{more}"));
        let address = config.console_listen().expect("an address");
        assert_eq!(config.is_encrypted(address), encrypted, "{more}");
    }
    assert!(valid("").console_listen().is_none());
    assert!(valid("console_listen = '127.0.0.1:1'").console_listen().is_some());
    refused(
        open,
        "f.toml:1:1: console_listen: 0.0.0.0:1 must be a loopback address",
        "unless insecure = true",
    );
    refused(
        &format!("metrics_insecure = true\n{open}"),
        "f.toml:2:1: console_listen: 0.0.0.0:1 must be",
        "unless insecure = true",
    );
    refused(
        "console_listen = 'unix:/s'",
        "f.toml:1:1: console_listen: must be host:port",
        "Unix socket",
    );
}

#[test]
fn encryption_with_conflicting_keys_is_refused() {
    refused("[tls]", "f.toml:1:2: tls.certificate: must be", "the path of a file");
    refused(
        "[tls]\ncertificate = 'c'",
        "f.toml:1:2: tls.key: must be",
        "the path of a file",
    );
    let ca = "must be given where client_auth is \"optional\" or \"required\", and only there";
    refused(
        &format!("{TLS}client_auth = 'optional'"),
        "f.toml:1:2: tls.client_ca: ",
        ca,
    );
    refused(&format!("{TLS}client_ca = 'a'"), "f.toml:4:1: tls.client_ca: ", ca);
    refused(
        &format!("{TLS}client_auth = 'maybe'"),
        "f.toml:4:15: tls.client_auth: unknown variant `maybe`",
        "`required`",
    );
}

#[test]
fn a_policy_has_its_credentials_and_rules() {
    let config = valid(&format!(
        "[auth]\n{HASH}reflection = 'open'\n[[auth.rules]]\nidentities = ['token:*']\nnamespaces = ['jobs']\n\
         locks = ['a/']\nverbs = ['acquire', 'read']\n[[auth.rules]]\nidentities = ['token:ops']\nnamespaces = ['*']\n\
         verbs = ['admin']\n[namespaces.jobs]"
    ));
    let policy = config.policy.expect("a policy");
    assert_eq!(
        (policy.health, policy.reflection),
        (AnonymousAccess::Open, AnonymousAccess::Open)
    );
    assert!(!policy.certificates, "no certificate is requested");
    let missing = |who: &str, verb, name| {
        let denied = policy
            .rules
            .check(&Identity::authenticated(who), verb, "jobs", LockScope::Names(name));
        denied.err().map(|denied| denied.missing)
    };
    assert_eq!(missing("token:ci", Verb::Read, "a/1"), None);
    assert_eq!(missing("token:ci", Verb::Read, "b"), Some(Missing::Lock));
    assert_eq!(missing("token:ci", Verb::Admin, "a/1"), Some(Missing::Verb));
    assert_eq!(missing("token:ops", Verb::Admin, "b"), None);
}

#[test]
fn a_policy_without_credentials_or_with_an_empty_rule_is_refused() {
    refused(
        "[auth]",
        "f.toml:1:2: auth: must have a way to prove",
        "client_auth in [tls]",
    );
    refused(
        &format!("{TLS}[auth]"),
        "f.toml:4:2: auth: must have a way",
        "client_auth in [tls]",
    );
    let asks = "client_ca = 'a'\nclient_auth = 'optional'\n[auth]\n";
    assert!(
        valid(&format!("{TLS}{asks}"))
            .policy
            .is_some_and(|policy| policy.certificates)
    );
    let with = |rest: &str| format!("[auth]\n{HASH}{rest}");
    for (key, rule) in [
        ("identities", "namespaces = ['*']\nverbs = ['read']"),
        ("namespaces", "identities = ['*']\nverbs = ['read']"),
        (
            "locks",
            "identities = ['*']\nnamespaces = ['*']\nlocks = []\nverbs = ['read']",
        ),
        ("verbs", "identities = ['*']\nnamespaces = ['*']"),
    ] {
        // An existing key is reported at its own position, a missing one at that of its table.
        let line = if key == "locks" { 6 } else { 3 };
        let begin = format!("f.toml:{line}:1: auth.rules[0].{key}: must");
        refused(&with(&format!("[[auth.rules]]\n{rule}")), &begin, "name at least one");
    }
    refused(
        &with("[[auth.rules]]\nidentities = ['a*b']"),
        "f.toml:4:14: auth.rules[0].identities[0]: must not be empty",
        "at its end alone",
    );
    refused(&with("[[auth.rules]]\nverbs = ['write']"), "f.toml:4:", "`admin`");
    refused(
        "[auth]\nbearer_hashes = ['ci:secret']",
        "f.toml:2:17: auth.bearer_hashes",
        "digits",
    );
    let jwt = |keys: &str| format!("[auth.jwt]\n{keys}");
    refused(&jwt(""), "f.toml:1:7: auth.jwt.issuer: must", "be given");
    refused(
        &jwt("issuer = 'i'"),
        "f.toml:1:7: auth.jwt.audiences: must",
        "name at least one",
    );
    refused(
        &jwt("issuer = 'i'\naudiences = ['a']"),
        "f.toml:1:7: auth.jwt.jwks_file: must be",
        "the path of a file",
    );
    assert!(read(&jwt("issuer = 'i'\naudiences = ['a']\njwks_file = 'f'")).is_ok());
}

#[test]
fn duplicate_tokens_and_unknown_namespaces_are_refused() {
    let digits = "0".repeat(64);
    refused(
        &format!("[auth]\nbearer_hashes = [\n 'ci:{digits}',\n 'ops:{digits}']"),
        "f.toml:4:2: auth.bearer_hashes[1]: must have a hash of its own",
        "not that of bearer_hashes[0]",
    );
    let rule = |namespaces: &str| {
        format!(
            "[auth]\n{HASH}[[auth.rules]]\nidentities = ['*']\nnamespaces = ['*']\nverbs = ['read']\n\
             [[auth.rules]]\nidentities = ['*']\nnamespaces = {namespaces}\nverbs = ['read']\n[namespaces.a]\n"
        )
    };
    assert!(read(&rule("['a', 'b*']")).is_ok());
    refused(
        &rule("['a', 'b']"),
        "f.toml:9:20: auth.rules[1].namespaces[1]: must be a namespace of this configuration",
        "and \"b\" is none",
    );
}

#[test]
fn conflicting_addresses_are_refused() {
    for (listen, at) in [
        ("listen = ['127.0.0.1:1', '127.0.0.1:1']", "1:26: listen[1]"),
        ("listen = ['unix:/a', '127.0.0.1:1', 'unix:/a']", "1:37: listen[2]"),
        ("listen = ['127.0.0.1:1', 'localhost:1']", "1:26: listen[1]"),
        (
            "insecure = true\nlisten = ['127.0.0.1:1', '0.0.0.0:1']",
            "2:26: listen[1]",
        ),
        ("listen = ['[::1]:1', '[::1]:1']", "1:22: listen[1]"),
        (
            "listen = ['127.0.0.1:1']\nmetrics_listen = '127.0.0.1:1'",
            "2:1: metrics_listen",
        ),
        (
            "listen = ['127.0.0.1:1']\nconsole_listen = '0.0.0.0:1'\ninsecure = true",
            "2:1: console_listen",
        ),
        (
            "metrics_listen = '127.0.0.1:1'\nconsole_listen = '127.0.0.1:1'",
            "2:1: console_listen",
        ),
    ] {
        refused(
            listen,
            &format!("f.toml:{at}: must not be listened on twice"),
            "is the same",
        );
    }
    for good in [
        "listen = ['127.0.0.1:0', '127.0.0.1:0']\nmetrics_listen = '127.0.0.1:0'",
        "listen = ['127.0.0.1:1', '127.0.0.1:2', '[::1]:1', 'unix:/a', 'unix:/b']\nmetrics_listen = '127.0.0.2:1'",
    ] {
        assert!(read(good).is_ok(), "{good}: {:?}", read(good));
    }
}

#[test]
fn quotas_are_per_namespace_and_per_identity() {
    let config = valid(&format!(
        "[auth]\n{HASH}[[auth.limits]]\nidentities = ['token:*']\nrate_limit = 5\n[namespaces.a]\nrate_limit = 7\n\
         rate_burst = 9\nlease_limit = 1\nwaiter_limit = 2\nstream_limit = 3\n[namespaces.b]"
    ));
    let rate = |per_second, burst| Some(Rate { per_second, burst });
    let of_namespace = Quota {
        rate: rate(7, 9),
        leases: Some(1),
        waiters: Some(2),
        streams: Some(3),
    };
    assert_eq!(config.quotas.namespaces, [("a".to_owned(), of_namespace)].into());
    let [(patterns, quota)] = &config.quotas.identities[..] else {
        panic!("one table: {:?}", config.quotas)
    };
    assert!(patterns[0].matches("token:ci"));
    assert_eq!((quota.rate, quota.leases), (rate(5, 5), None));
    refused(
        "[namespaces.a]\nrate_burst = 1",
        "f.toml:2:1: namespaces.a.rate_burst: must",
        "rate_limit",
    );
    let limits = |keys: &str| format!("[auth]\n{HASH}[[auth.limits]]\n{keys}");
    refused(
        &limits(""),
        "f.toml:3:1: auth.limits[0].identities: must",
        "name at least one",
    );
    refused(
        &limits("identities = ['*']\nrate_burst = 1"),
        "f.toml:5:1: auth.limits[0].rate_burst: must",
        "rate_limit",
    );
}

#[test]
fn shown_access_tables_read_as_the_same_configuration() {
    let config = valid(&format!(
        "{TLS}client_ca = 'a'\nclient_auth = 'required'\n[auth]\n{HASH}[auth.jwt]\nissuer = 'i'\naudiences = ['a']\n\
         jwks_file = 'f'\n[[auth.rules]]\nidentities = ['*']\nnamespaces = ['a*']\nverbs = ['read', 'admin']\n\
         [[auth.rules]]\nidentities = ['x']\nnamespaces = ['default']\nverbs = ['acquire']\n[[auth.limits]]\n\
         identities = ['*']\nlease_limit = 3"
    ));
    assert_eq!(valid(&config.show()), config);
}

#[test]
fn absent_tables_are_shown_as_comments() {
    let shown = valid("").show();
    for line in [
        "#[tls]",
        "#[auth]",
        "#[auth.jwt]",
        "#[[auth.rules]]",
        "#[[auth.limits]]",
        "#verbs = []",
    ] {
        assert!(shown.contains(&format!("\n{line}\n")), "{line}");
    }
    assert_eq!(valid(&shown), valid(""));
}
