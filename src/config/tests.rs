//! Each refusal names its file, line, key and bound.

use std::time::Duration;

use super::*;
use crate::backend::{CLAIM_LIMIT, Guarantee};
use crate::limits::Limits;
use crate::schema::Section;
use crate::stores;

mod access;
mod changes;
mod store_settings;

const DATA: &str = "/data/fencepost";

fn read_with(text: &str, overrides: Overrides) -> Result<Config, String> {
    let mut source = Source::new("f.toml".into(), text.to_owned());
    Config::of(&mut source, overrides, stores::ALL, Some(DATA.into())).map_err(|wrong| wrong.to_string())
}

fn read(text: &str) -> Result<Config, String> {
    read_with(text, Overrides::default())
}

fn valid(text: &str) -> Config {
    read(text).expect(text)
}

/// Asserts that the text is refused with a message that begins and ends so.
#[track_caller]
fn refused(text: &str, begin: &str, end: &str) {
    let wrong = read(text).expect_err(text);
    assert!(
        wrong.starts_with(begin) && wrong.ends_with(end),
        "{wrong:?}\nmust begin with {begin:?} and end with {end:?}"
    );
}

fn namespace<'a>(config: &'a Config, name: &str) -> &'a NamespaceConfig {
    &config.namespaces[&Namespace::new(name).expect(name)]
}

#[test]
fn without_a_file_there_is_one_embedded_namespace_on_loopback() {
    let config = Config::of(
        &mut Source::default(),
        Overrides::default(),
        stores::ALL,
        Some(DATA.into()),
    )
    .expect("the defaults");
    let addresses: Vec<String> = config.listen().map(ToString::to_string).collect();
    assert_eq!(addresses, ["127.0.0.1:50051"]);
    assert_eq!(config.namespaces.len(), 1);
    let default = namespace(&config, "default");
    assert_eq!((&default.limits, default.guarantee), (&Limits::default(), None));
    assert_eq!(config.settings(), Settings::default());
    assert_eq!(
        embedded_settings(default),
        (Some("/data/fencepost/fencepost.redb"), CLAIM_LIMIT)
    );
    assert_eq!(config.settings().drain_timeout, Duration::from_secs(20));
}

/// The file of an embedded store, and the claim limit of the namespace.
fn embedded_settings(namespace: &NamespaceConfig) -> (Option<&str>, u32) {
    let file = namespace.store.file().map(|file| file.to_str().expect("a path"));
    (file, namespace.store.claim_limit())
}

#[test]
fn each_namespace_has_its_own_settings() {
    let config = valid(
        "[namespaces.a]\nttl_max = '1h 5m'\nguarantee = 'cp'\nhold_limit = 7\n\
         [namespaces.'b.c'.embedded]\npath = ':memory:'\nclaim_limit = 5\n[namespaces.d.embedded]\npath = '/x/y'",
    );
    let a = namespace(&config, "a");
    assert_eq!((a.limits.ttl_max.as_secs(), a.limits.holds), (3900, 7));
    assert_eq!(a.guarantee, Some(Guarantee::Cp));
    assert_eq!(embedded_settings(namespace(&config, "b.c")), (None, 5));
    assert_eq!(embedded_settings(namespace(&config, "d")), (Some("/x/y"), CLAIM_LIMIT));
}

#[test]
fn an_unknown_key_is_refused_with_the_known_ones() {
    refused(
        "\n\nlisen = []",
        "f.toml:3:1: lisen: unknown field `lisen`, expected one of `listen`",
        "`namespaces`",
    );
    refused(
        "[server]\nx = 1",
        "f.toml:2:1: server.x: unknown field `x`",
        "`cors_origins`",
    );
    refused(
        "[namespaces.a]\nttl = '1s'",
        "f.toml:2:1: namespaces.a.ttl: unknown field `ttl`",
        "`mysql`",
    );
    refused(
        "[namespaces.a.embedded]\nfile = '/x'",
        "f.toml:2:1: namespaces.a.embedded.file: unknown field `file`, expected `path` or `claim_limit`",
        "",
    );
}

#[test]
fn a_bad_value_is_refused_with_its_bound() {
    refused(
        "drain_timeout = 20",
        "f.toml:1:17: drain_timeout: invalid type: integer `20`, expected a time from 0s to 10m",
        "\"1h 5m\"",
    );
    refused(
        "[namespaces.a]\nname_limit = 513",
        "f.toml:2:14: namespaces.a.name_limit: invalid value: integer `513`",
        "expected a whole number from 1 to 512",
    );
    refused(
        "[log]\nformat = 'xml'",
        "f.toml:2:10: log.format: unknown variant `xml`",
        "expected `text` or `json`",
    );
    refused(
        "[log]\nlevel = 'loud'",
        "f.toml:2:9: log.level: must be off, error",
        "not \"loud\"",
    );
    refused(
        "[namespaces.a]\nguarantee = 'ac'",
        "f.toml:2:13: namespaces.a.guarantee: unknown variant `ac`",
        "expected `ap` or `cp`",
    );
    refused(
        "listen = [\n  '127.0.0.1:1',\n  'nowhere',\n]",
        "f.toml:3:3: listen[1]: invalid value: string \"nowhere\", expected host:port",
        "unix: and a path of 1 to 103 bytes",
    );
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_its_line() {
    refused(
        "insecure = true\nlisten = [\n",
        "f.toml:2:11: ",
        "unclosed array, expected `]`",
    );
    refused("insecure = true\ninsecure = true", "f.toml:2:1: ", "duplicate key");
}

#[test]
fn ttls_must_be_in_order() {
    refused(
        "[namespaces.a]\nttl_max = '10s'\nttl_min = '20s'",
        "f.toml:3:1: namespaces.a.ttl_min: ",
        "must be at most ttl_max (10s), not 20s",
    );
    refused(
        "\n[namespaces.a]\nttl_max = '10s'",
        "f.toml:2:13: namespaces.a.ttl_default: ",
        "must be from ttl_min (500ms) to ttl_max (10s), not 30s",
    );
}

#[test]
fn the_default_page_size_must_not_exceed_the_limit() {
    refused(
        "[server]\npage_default = 2000",
        "f.toml:2:1: server.page_default: ",
        "must be at most page_limit (1000), not 2000",
    );
}

// G67c
#[test]
fn a_limit_cannot_exceed_its_documented_bound() {
    assert!(read("[namespaces.a]\nname_limit = 512").is_ok());
    assert!(read("[namespaces.a]\nname_limit = 513").is_err());
}

#[test]
fn an_open_address_requires_insecure() {
    let open = "listen = ['127.0.0.1:1', '0.0.0.0:2']";
    refused(
        open,
        "f.toml:1:1: listen: 0.0.0.0:2 must be a loopback address",
        "unless insecure = true",
    );
    assert!(read(&format!("insecure = true\n{open}")).is_ok());
    refused(
        "listen = []",
        "f.toml:1:1: listen: must be at least one address",
        "bytes",
    );
}

#[test]
fn a_guarantee_stronger_than_the_backends_is_refused() {
    refused(
        "[namespaces.a]\nguarantee = 'cp'\nembedded.path = ':memory:'",
        "f.toml:2:1: namespaces.a.guarantee: must be at most AP",
        "promises no more",
    );
    assert!(read("[namespaces.a]\nguarantee = 'ap'").is_ok());
}

// G172
#[test]
fn several_servers_of_which_none_is_promoted_are_refused_where_cp_is_promised() {
    for kind in ["postgres", "mysql"] {
        let of = |guarantee: &str, servers: &str, replication: &str| {
            format!(
                "[namespaces.a]\nbackend = '{kind}'\n{guarantee}\n[namespaces.a.{kind}]\nservers = [{servers}]\n{replication}"
            )
        };
        let (one, two, single) = ("'a:1'", "'a:1', 'b:2'", "replication = 'single'");
        for guarantee in ["guarantee = 'cp'", ""] {
            refused(
                &of(guarantee, two, single),
                &format!(
                    "f.toml:6:1: namespaces.a.{kind}.replication: must not be \"single\" where servers has several"
                ),
                "or say what is promoted",
            );
            assert!(read(&of(guarantee, one, single)).is_ok());
        }
        assert!(read(&of("guarantee = 'ap'", two, single)).is_ok());
        assert!(read(&of("guarantee = 'ap'", two, "replication = 'asynchronous'")).is_ok());
    }
}

#[test]
fn an_unknown_backend_is_refused_with_the_known_ones() {
    refused(
        "[namespaces.a]\nbackend = 'paper'",
        "f.toml:2:1: namespaces.a.backend: must be a backend of this program (embedded",
        "not \"paper\"",
    );
}

#[test]
fn a_bad_name_or_path_is_refused() {
    refused(
        "[namespaces.UP]",
        "f.toml:1:13: namespaces.UP: must be 1 to 63 characters [a-z0-9._-]",
        "letter or digit",
    );
    for path in ["", "/", ".."] {
        refused(
            &format!("[namespaces.a.embedded]\npath = '{path}'"),
            "f.toml:2:1: namespaces.a.embedded.path: must be the path of a file or \":memory:\"",
            &format!("not {path:?}"),
        );
    }
}

#[test]
fn without_a_home_the_data_directory_must_be_set() {
    let read = |text: &str| {
        let mut source = Source::new("f.toml".into(), text.to_owned());
        Config::of(&mut source, Overrides::default(), stores::ALL, None).map_err(|wrong| wrong.to_string())
    };
    let wrong = read("").expect_err("no data directory");
    assert!(wrong.contains("data_dir: must be set where"), "{wrong}");
    assert!(read("[namespaces.a.embedded]\npath = ':memory:'").is_ok());
    assert!(read("data_dir = '/d'").is_ok());
}

#[test]
fn overrides_take_precedence_and_are_named_in_refusals() {
    let listen = |text: &str| Overrides {
        listen: Some(vec![text.parse().expect(text)]),
        data_dir: Some("/elsewhere".into()),
        ..Overrides::default()
    };
    let config = read_with("listen = ['127.0.0.1:1']", listen("unix:/s")).expect("a valid override");
    assert_eq!(
        config.listen().map(ToString::to_string).collect::<Vec<_>>(),
        ["unix:/s"]
    );
    assert_eq!(
        embedded_settings(namespace(&config, "default")),
        (Some("/elsewhere/fencepost.redb"), CLAIM_LIMIT)
    );
    let wrong = read_with("listen = ['127.0.0.1:1']", listen("0.0.0.0:1")).expect_err("an open address");
    assert!(wrong.starts_with("--listen or FENCEPOST_LISTEN: listen: "), "{wrong}");
}

#[test]
fn a_shown_configuration_reads_as_the_same_one() {
    let config = valid(
        "listen = ['unix:/s', '[::1]:1']\ndata_dir = '/d'\ndrain_timeout = '1m 5s'\n[log]\nlevel = 'warn,h2=off'\n\
         [server]\ncall_limit = 3\n[namespaces.a]\nguarantee = 'ap'\nwait_max = '0s'\n[namespaces.'b.c']\n",
    );
    assert_eq!(valid(&config.show()), config);
}

/// Every key of a table and of the tables in it, as `show` must print it.
fn lines(section: &dyn Section) -> Vec<String> {
    let own = section.keys().into_iter().map(|key| match key.value {
        Some(value) => format!("{} = {value}", key.name),
        None => format!("#{} =", key.name),
    });
    let below = section.tables().into_iter().flat_map(|table| lines(table.section));
    own.chain(below).collect()
}

#[test]
fn every_key_is_shown_with_its_documentation() {
    let config = valid("");
    let shown = config.show();
    let expected = lines(&config.file);
    assert!(expected.len() > 25, "all tables are there: {expected:?}");
    for line in expected {
        let (above, _) = shown.split_once(&format!("\n{line}\n")).expect(&line);
        let documented = above.lines().next_back().is_some_and(|line| line.starts_with("# "));
        assert!(documented, "{line}");
    }
}

/// The names of all fields of a table, from serde's error for an unknown one.
fn fields<T: serde::de::DeserializeOwned + std::fmt::Debug>() -> Vec<String> {
    known(&toml::from_str::<T>("'?' = 1").expect_err("an unknown key").to_string())
}

/// The names in the error for an unknown key.
fn known(refusal: &str) -> Vec<String> {
    let known = refusal.split_once("expected").expect("the known ones").1;
    known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn documented<T: Section + Default>() -> Vec<String> {
    let keys = T::default().keys();
    keys.iter().map(|key| key.name.to_owned()).collect()
}

#[test]
fn one_percent_of_calls_is_traced_by_default() {
    let ratio = |more: &str| {
        let config = valid(&format!("[traces]\nendpoint = 'http://c:4317'\n{more}"));
        config.traces().map(|(_, ratio)| ratio)
    };
    assert_eq!(ratio(""), Some(0.01));
    assert_eq!(ratio("sample_ratio = 1.0\n"), Some(1.0));
}

#[test]
fn every_key_that_is_read_is_documented() {
    assert_eq!(fields::<file::ServerSection>(), documented::<file::ServerSection>());
    assert_eq!(fields::<file::LogSection>(), documented::<file::LogSection>());
    let tables = ["server", "log", "tls", "auth", "traces", "namespaces"].map(str::to_owned);
    assert_eq!(fields::<File>(), [documented::<File>(), tables.into()].concat());
    assert_eq!(fields::<file::TracesSection>(), documented::<file::TracesSection>());
    assert_eq!(fields::<file::TlsSection>(), documented::<file::TlsSection>());
    assert_eq!(fields::<file::JwtSection>(), documented::<file::JwtSection>());
    assert_eq!(fields::<file::RuleSection>(), documented::<file::RuleSection>());
    assert_eq!(fields::<file::QuotaSection>(), documented::<file::QuotaSection>());
    let tables = vec!["jwt".into(), "rules".into(), "limits".into()];
    let with_tables = [documented::<file::AuthSection>(), tables].concat();
    assert_eq!(fields::<file::AuthSection>(), with_tables);
    assert_eq!(fields::<NamespaceSection>(), documented::<NamespaceSection>());
    for store in stores::ALL.iter().filter(|store| store.is_built()) {
        let unknown = format!("[namespaces.a]\nbackend = '{0}'\n{0}.'?' = 1", store.kind());
        let refusal = read(&unknown).expect_err("an unknown key");
        let documented: Vec<_> = store.section().expect("built").keys();
        let documented: Vec<&str> = documented.iter().map(|key| key.name).collect();
        assert_eq!(known(&refusal), documented, "{}", store.kind());
    }
}

#[test]
fn the_number_of_worker_threads_can_be_set() {
    assert_eq!(valid("").worker_threads(), None);
    assert_eq!(valid("worker_threads = 3").worker_threads(), Some(3));
    let refused = read("worker_threads = 0").expect_err("no thread would serve");
    assert!(
        refused.contains("worker_threads") && refused.contains("1 to 1024"),
        "{refused}"
    );
}

// G192
#[test]
fn an_origin_that_no_browser_sends_is_refused() {
    for origin in [
        "https://app.example",
        "http://app.example:8080",
        "http://localhost:5173",
        "https://xn--bcher-kva.example",
        "http://10.1.2.3",
        "https://[2001:db8::1]:8443",
        "http://app.example:443",
    ] {
        let config = valid(&format!("[server]\ncors_origins = ['{origin}']"));
        assert_eq!(config.settings().cors_origins, [origin]);
    }
    for origin in [
        "https://app.example/",
        "https://app.example/page",
        "https://app.example?x",
        "https://App.example",
        "HTTPS://app.example",
        "https://app.example:443",
        "http://app.example:80",
        "https://app.example:0443",
        "https://app.example:0",
        "https://app.example:65536",
        "https://app.example:",
        "https://me@app.example",
        "https://*.app.example",
        "https://bücher.example",
        "https://app..example",
        "https://10.1.2",
        "https://[2001:DB8::1]",
        "https://[2001:db8:0::1]",
        "https://[::1",
        "https://",
        "app.example",
        "//app.example",
        "ftp://app.example",
        "null",
        "*",
        "",
        " https://app.example",
    ] {
        refused(
            &format!("[server]\ncors_origins = ['https://good.example', '{origin}']"),
            "f.toml:2:1: server.cors_origins: must be origins as browsers send them",
            &format!("not {origin:?}"),
        );
    }
}
