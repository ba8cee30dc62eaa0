//! Who may import whom.

use std::collections::{BTreeMap, BTreeSet};

use crate::cargo;
use crate::source::{Source, place};

/// The modules of the library and of `core`, from the lowest layer up, each with all the modules that it imports.
const MODULES: &[(&str, &[&str])] = &[
    // The crate `fencepost-client`.
    ("client", &[]),
    ("files", &[]),
    ("name", &[]),
    ("claim", &["name"]),
    ("queue", &["claim", "name"]),
    ("limits", &["name"]),
    ("schema", &[]),
    ("rpc", &["client"]),
    (
        "backend",
        &[
            "batch",
            "claim",
            "files",
            "name",
            "queue",
            "schema",
            "supervisor",
            "tls",
        ],
    ),
    ("batch", &[]),
    ("supervisor", &[]),
    ("auth", &["files", "name"]),
    ("quota", &["auth", "ledger", "name", "usage"]),
    ("usage", &[]),
    ("tls", &["client", "files"]),
    ("error", &["auth", "backend", "claim", "name", "quota"]),
    ("traces", &[]),
    ("telemetry", &["locks", "traces"]),
    ("ledger", &["backend", "claim", "name", "supervisor"]),
    ("measured", &["backend", "claim", "ledger", "name", "traces"]),
    (
        "metrics",
        &[
            "backend",
            "claim",
            "ledger",
            "measured",
            "name",
            "rpc",
            "supervisor",
            "telemetry",
            "traces",
        ],
    ),
    // A span goes with the task that a call spawns.
    (
        "locks",
        &[
            "backend",
            "claim",
            "error",
            "ledger",
            "limits",
            "measured",
            "name",
            "supervisor",
            "traces",
        ],
    ),
    // Settings and addresses are the service's own types: the file only fills them.
    (
        "config",
        &[
            "api",
            "auth",
            "backend",
            "files",
            "limits",
            "name",
            "quota",
            "schema",
            "telemetry",
            "tls",
        ],
    ),
    ("elections", &["backend", "claim", "error", "locks", "name"]),
    ("session", &["error", "name"]),
    ("namespaces", &["backend", "error", "locks", "metrics", "name"]),
    (
        "stores",
        &[
            "backend",
            "claim",
            "config",
            "files",
            "limits",
            "locks",
            "measured",
            "metrics",
            "name",
            "namespaces",
            "supervisor",
        ],
    ),
    (
        "api",
        &[
            "auth",
            "backend",
            "claim",
            "client",
            "elections",
            "error",
            "ledger",
            "limits",
            "locks",
            "metrics",
            "name",
            "namespaces",
            "quota",
            "rpc",
            "session",
            "supervisor",
            "telemetry",
            "tls",
            "traces",
            "usage",
        ],
    ),
    (
        "monitor",
        &["api", "backend", "metrics", "namespaces", "supervisor", "tls"],
    ),
    (
        "reload",
        &[
            "api",
            "auth",
            "config",
            "metrics",
            "name",
            "namespaces",
            "stores",
            "supervisor",
            "tls",
        ],
    ),
    (
        "cli",
        &[
            "api",
            "auth",
            "backend",
            "client",
            "config",
            "error",
            "files",
            "metrics",
            "monitor",
            "name",
            "quota",
            "reload",
            "rpc",
            "stores",
            "telemetry",
            "tls",
        ],
    ),
];

/// Crates that only some modules name: the wire, the command line, the file, the log's end.
const CRATES: &[(&[&str], &[&str])] = &[
    (
        &[
            "tonic",
            "tonic_health",
            "tonic_prost",
            "tonic_reflection",
            "tonic_types",
            "prost",
            "prost_types",
            "prost_reflect",
        ],
        &["api", "client"],
    ),
    (&["http_body"], &["api"]),
    (&["tower"], &["api", "client", "monitor"]),
    // The port of those who watch, and the headers in which a caller's trace comes.
    (&["http"], &["api", "monitor", "telemetry"]),
    (&["axum"], &["monitor"]),
    (&["hyper", "hyper_util"], &["api", "client", "monitor"]),
    (&["h2"], &["api"]),
    (&["prometheus"], &["metrics"]),
    (&["opentelemetry"], &["telemetry", "traces"]),
    (
        &["opentelemetry_otlp", "opentelemetry_sdk", "tracing_subscriber"],
        &["telemetry"],
    ),
    // The values of flags are types of the modules that use them.
    (&["clap"], &["cli", "config", "main", "telemetry"]),
    (
        &[
            "anstream",
            "clap_complete",
            "clap_mangen",
            "hdrhistogram",
            "nix",
            "unicode_width",
        ],
        &["cli"],
    ),
    (&["toml", "serde_path_to_error"], &["config", "schema"]),
    (&["jsonwebtoken", "signature"], &["auth"]),
    // A login to MySQL scrambles the password, or encrypts it with the key of the server.
    (&["ring", "x509_parser"], &["auth", "backend"]),
    // A connection is read and written where it is served. The client of ZooKeeper is the backend's own.
    (&["tokio_rustls"], &["api", "backend", "tls"]),
    // Clients have TLS of their own.
    (&["rustls"], &["backend", "client", "tls"]),
];

/// The files that build a gRPC status beside `api::status`, each with its reason.
const STATUSES: &[(&str, &str)] = &[(
    "src/api/health.rs",
    "the health protocol asks for a bare NOT_FOUND, which is no answer of this service",
)];

/// The module of a file: its first module; the program's own file is `main`.
fn module(source: &Source) -> String {
    source.module().into_iter().next().unwrap_or_else(|| "main".into())
}

/// The files that may know the insides of a backend.
fn is_of_backend(source: &Source, backend: &str) -> bool {
    source.module().starts_with(&["backend".to_owned(), backend.to_owned()])
}

#[test]
fn each_module_imports_only_what_its_row_says() {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let modules: BTreeSet<&str> = MODULES.iter().map(|(module, _)| *module).collect();
    for source in Source::product() {
        let own = module(&source);
        let imported = found.entry(own.clone()).or_default();
        for path in source.paths().iter().filter(|path| path.segments[0] == "crate") {
            let other = path.segments[1].as_str();
            if other != own && modules.contains(other) {
                imported.insert(other.to_owned());
            }
        }
    }
    found.remove("main");
    let expected = MODULES.iter().map(|(module, others)| {
        (
            (*module).to_owned(),
            others.iter().map(|other| (*other).to_owned()).collect::<BTreeSet<_>>(),
        )
    });
    assert_eq!(found, expected.collect());
}

/// The files of the service that know all namespaces: the one that lets methods in, health, which tells
/// no more than how a store is, and the one that puts the service together.
const KNOW_ALL_NAMESPACES: &[&str] = &["src/api.rs", "src/api/access.rs", "src/api/health.rs"];

#[test]
fn only_access_leads_from_a_method_to_locks() {
    let service = Source::all_in("src")
        .into_iter()
        .filter(|source| module(source) == "api");
    let knowing: BTreeSet<String> = service
        .filter(|source| !source.path.contains("tests"))
        .filter(|source| {
            let names = |path: &[String]| path.starts_with(&["crate".to_owned(), "namespaces".to_owned()]);
            source.paths().iter().any(|path| names(&path.segments))
        })
        .map(|source| source.path)
        .collect();
    let allowed = KNOW_ALL_NAMESPACES.iter().map(|path| (*path).to_owned());
    assert_eq!(knowing, allowed.collect());
}

#[test]
fn the_lowest_modules_use_std_only() {
    let crates = cargo::dependencies();
    let ground = Source::product()
        .into_iter()
        .filter(|source| matches!(module(source).as_str(), "name" | "claim"));
    let named: Vec<String> = ground
        .flat_map(|source| {
            let paths = source
                .paths()
                .into_iter()
                .filter(|path| crates.contains(&path.segments[0]));
            paths
                .map(|path| place(&source, path.line, &path.segments[0]))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(named.is_empty(), "only std is imported here: {named:#?}");
}

#[test]
fn backends_never_import_each_other_and_only_the_registry_knows_them() {
    let backends = cargo::backends();
    let mut known = BTreeSet::new();
    let mut wrong = Vec::new();
    for source in Source::product() {
        for path in source.paths() {
            let [first, second, backend, ..] = path.segments.as_slice() else {
                continue;
            };
            if (first.as_str(), second.as_str()) != ("crate", "backend") || !backends.contains_key(backend) {
                continue;
            }
            if source.path == "src/stores.rs" {
                known.insert(backend.clone());
            } else if !is_of_backend(&source, backend) {
                wrong.push(place(&source, path.line, path.segments.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(known, backends.into_keys().collect());
}

#[test]
fn a_stores_client_crate_is_named_only_in_its_backend() {
    let backends = cargo::backends();
    let mut wrong = Vec::new();
    for source in Source::product() {
        // A module that several backends share, such as their connection, is no backend itself.
        let shared = source.path.contains("src/backend/") && !backends.keys().any(|it| is_of_backend(&source, it));
        for path in source.paths() {
            let mut owners = backends
                .iter()
                .filter(|(_, crates)| crates.contains(&path.segments[0]))
                .peekable();
            if owners.peek().is_some() && !shared && !owners.any(|(backend, _)| is_of_backend(&source, backend)) {
                wrong.push(place(&source, path.line, path.segments.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn crates_that_few_modules_need_are_named_only_there() {
    let mut wrong = Vec::new();
    for source in Source::product() {
        for path in source.paths() {
            let rule = CRATES
                .iter()
                .find(|(crates, _)| crates.contains(&path.segments[0].as_str()));
            if rule.is_some_and(|(_, modules)| !modules.contains(&module(&source).as_str())) {
                wrong.push(place(&source, path.line, path.segments.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn only_api_status_builds_a_status() {
    let mut builders = BTreeSet::new();
    for source in Source::product() {
        for path in source.paths() {
            let at = path.segments.iter().position(|segment| segment == "Status");
            let made = at.and_then(|at| path.segments.get(at + 1));
            // Its constants are names, and a constructor is a function.
            if made.is_some_and(|made| made.starts_with(|c: char| c.is_lowercase())) {
                builders.insert(source.path.clone());
            }
        }
    }
    let allowed = STATUSES.iter().map(|(path, _)| (*path).to_owned());
    assert_eq!(builders, allowed.chain(["src/api/status.rs".to_owned()]).collect());
}

/// How many places of the product outside `src/backend` may depend on a feature, tests beside the code included.
const FEATURE_SITES: usize = 10;

#[test]
fn few_lines_outside_of_the_backends_depend_on_a_store() {
    let sites: Vec<String> = Source::all_in("src")
        .into_iter()
        .filter(|source| !source.path.contains("src/backend"))
        .flat_map(|source| {
            let is_site = |line: &str| line.contains("feature =") && line.contains("cfg");
            let lines = source.code.lines().enumerate().filter(|(_, line)| is_site(line));
            lines
                .map(|(number, line)| place(&source, number + 1, line.trim()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(!sites.is_empty(), "the registry has some");
    assert!(sites.len() <= FEATURE_SITES, "{sites:#?}");
}

#[test]
fn every_mutex_is_of_parking_lot() {
    let mut wrong = Vec::new();
    for source in Source::product() {
        for path in source.paths() {
            let segments: Vec<&str> = path.segments.iter().map(String::as_str).collect();
            if let ["std", "sync", "Mutex" | "MutexGuard" | "RwLock" | "PoisonError", ..] = segments[..] {
                wrong.push(place(&source, path.line, path.segments.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "parking_lot has one: {wrong:#?}");
}
