//! A namespace that an upgrade would give another store, by what Helm's `lookup` finds of the running release.
//!
//! The part of Kubernetes that is asked is played by a thread: the list of kinds, and workloads.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::helm::{at, objects, of_kind, render, tool};

const NAME: &str = "release-fencepost";

/// A cluster, and the file by which Helm finds it.
struct Cluster {
    folder: TempDir,
}

impl Cluster {
    /// A cluster with these workloads; it answers until the test ends.
    fn with<const N: usize>(workloads: [Value; N]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = format!("http://{}", listener.local_addr().expect("an address"));
        let by_path = workloads.map(|workload| {
            let kind = workload["kind"].as_str().expect("a kind").to_lowercase();
            (format!("/apis/apps/v1/namespaces/default/{kind}s/{NAME}"), workload)
        });
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                answer(stream, &by_path);
            }
        });
        let folder = tempfile::tempdir().expect("a folder");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
        });
        std::fs::write(folder.path().join("config"), config.to_string()).expect("a file");
        Self { folder }
    }

    /// A cluster in which a release with these values runs on as many servers.
    fn running(program: &Path, values: &[&str], replicas: u32) -> Self {
        Self::with([scaled(program, values, [replicas; 2])])
    }

    /// What an upgrade to these values renders to, or what Helm says against it.
    fn upgrade(&self, program: &Path, values: &[&str]) -> Result<String, String> {
        let config = self.folder.path().join("config");
        let config = config.to_str().expect("a path");
        let cluster = ["--dry-run=server", "--kubeconfig", config, "--namespace", "default"];
        render(program, &[&cluster[..], &set(values)].concat())
    }
}

/// The workload of a release with these values, which is to have as many servers, and has as many.
fn scaled(program: &Path, values: &[&str], [wanted, there]: [u32; 2]) -> Value {
    let mut workload = workload(&render(program, &set(values)).expect("rendered"));
    workload["spec"]["replicas"] = json!(wanted);
    workload["status"] = json!({ "replicas": there });
    workload
}

fn answer(mut stream: std::net::TcpStream, by_path: &[(String, Value)]) {
    let mut lines = BufReader::new(stream.try_clone().expect("a socket"))
        .lines()
        .map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    lines.find(String::is_empty);
    let asked = request.split(' ').nth(1).unwrap_or_default();
    let kind = |name: &str, kind: &str| json!({"name": name, "namespaced": true, "kind": kind, "verbs": ["get"]});
    let asked = asked.split('?').next().unwrap_or_default();
    let (status, body) = match by_path.iter().find(|(path, _)| path == asked) {
        Some((_, workload)) => ("200 OK", workload.clone()),
        None if asked == "/apis/apps/v1" => {
            let kinds = [kind("deployments", "Deployment"), kind("statefulsets", "StatefulSet")];
            let list =
                json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps/v1", "resources": kinds});
            ("200 OK", list)
        }
        None => {
            let status =
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
            ("404 Not Found", status)
        }
    };
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n");
    let _ = write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len());
}

fn set<'a>(values: &[&'a str]) -> Vec<&'a str> {
    values.iter().flat_map(|value| ["--set", *value]).collect()
}

/// The Deployment or StatefulSet.
fn workload(rendered: &str) -> Value {
    let objects = objects(rendered);
    let found = ["Deployment", "StatefulSet"]
        .iter()
        .find_map(|kind| of_kind(&objects, kind).next());
    found.expect("a workload").clone()
}

/// The stores that a workload is said to have.
fn stores(rendered: &str) -> Value {
    let workload = workload(rendered);
    let text = at(&workload, "/metadata/annotations/fencepost~1stores")
        .as_str()
        .expect("an annotation")
        .to_owned();
    serde_json::from_str(&text).expect("JSON")
}

const REDIS: &str = "config.namespaces.jobs.backend=redis";
const ETCD: &str = "config.namespaces.jobs.backend=etcd";
const POSTGRES: &str = "config.namespaces.jobs.backend=postgres";

// G184
#[test]
fn an_upgrade_that_moves_a_namespace_is_refused_until_it_is_confirmed_without_servers() {
    let Some(program) = tool("helm") else { return };
    let running = Cluster::running(&program, &[REDIS, "config.namespaces.jobs.ttl_max=2h"], 2);
    running
        .upgrade(&program, &[REDIS, "replicaCount=3"])
        .expect("nothing moves");
    for (values, now) in [
        (&[POSTGRES][..], "to postgres, database fencepost, schema public"),
        (&[REDIS, "config.namespaces.jobs.redis.prefix=other"], "prefix other"),
        (&[REDIS, "config.namespaces.jobs.redis.database=3"], "database 3"),
        (
            &[REDIS, "config.namespaces.jobs.redis.urls={redis://b:6379}"],
            "[redis://b:6379]",
        ),
        (
            &["config.namespaces.jobs.ttl_max=1m"],
            "to embedded, path fencepost.redb",
        ),
        (&[POSTGRES, "strategy.type=Recreate"], "to postgres"),
    ] {
        let said = running.upgrade(&program, values).expect_err(now);
        let from = "this moves jobs from redis, database 0, mode standalone, prefix fencepost";
        assert!(
            said.contains(from) && said.contains(now) && said.contains("with ttl_max 2h"),
            "{values:?}: {said}"
        );
        let code = said
            .split("confirmMove=")
            .nth(1)
            .expect("a code")
            .get(..12)
            .expect("12 digits");
        let confirmed = format!("confirmMove={code}");
        let confirmed = [values, &[confirmed.as_str()]].concat();
        let said = running.upgrade(&program, &confirmed).expect_err("servers run");
        assert!(said.contains("2 servers still run"), "{said}");
        let stopped = Cluster::running(&program, &[REDIS, "config.namespaces.jobs.ttl_max=2h"], 0);
        stopped.upgrade(&program, values).expect_err("not confirmed");
        stopped
            .upgrade(&program, &confirmed)
            .unwrap_or_else(|said| panic!("{values:?}: {said}"));
        let other = [values, &["confirmMove=0123456789ab"]].concat();
        stopped.upgrade(&program, &other).expect_err("the code of another move");
    }
}

// G184
#[test]
fn a_move_away_from_the_embedded_store_or_of_a_namespace_that_was_left_out_is_refused() {
    let Some(program) = tool("helm") else { return };
    let embedded = Cluster::running(&program, &["config.namespaces.jobs.ttl_max=1h"], 1);
    embedded
        .upgrade(&program, &["config.namespaces.jobs.ttl_max=1h"])
        .expect("nothing moves");
    let said = embedded.upgrade(&program, &[ETCD]).expect_err("a move");
    assert!(said.contains("from embedded, path fencepost.redb"), "{said}");

    let with_jobs = Cluster::running(&program, &[ETCD], 2);
    let without = ["config.namespaces.other.backend=redis"];
    let rendered = with_jobs.upgrade(&program, &without).expect("it is left out");
    let left_out = workload(&rendered);
    assert!(stores(&rendered)["jobs"].is_object(), "its leases stay in its store");
    let later = Cluster::with([left_out]);
    later.upgrade(&program, &[ETCD]).expect("the same store");
    later.upgrade(&program, &[POSTGRES]).expect_err("another store");
}

// G184
#[test]
fn a_namespace_that_was_moved_to_the_embedded_store_can_be_upgraded_again() {
    let Some(program) = tool("helm") else { return };
    let values = ["config.namespaces.jobs.ttl_max=1h"];
    let stopped = Cluster::running(&program, &[REDIS], 0);
    let said = stopped.upgrade(&program, &values).expect_err("a move");
    let code = said.split("confirmMove=").nth(1).and_then(|rest| rest.get(..12));
    let confirmed = format!("confirmMove={}", code.expect("a code"));
    let moved = stopped
        .upgrade(&program, &[&values[..], &[confirmed.as_str()]].concat())
        .expect("it is confirmed");
    assert_eq!(stores(&moved)["jobs"]["servers"], json!([]));
    let later = Cluster::with([workload(&moved)]);
    later.upgrade(&program, &values).expect("nothing moves");
}

// G184
#[test]
fn a_deployment_and_a_statefulset_never_have_servers_at_once() {
    let Some(program) = tool("helm") else { return };
    let both = [ETCD, "config.namespaces.local.ttl_max=1h"];
    for (before, after, to, from) in [
        (
            &[ETCD][..],
            &both[..],
            "a StatefulSet beside a Deployment",
            "deployment",
        ),
        (&both, &[ETCD], "a Deployment beside a StatefulSet", "statefulset"),
    ] {
        // They run, end, or begin.
        for servers in [[1, 1], [0, 1], [1, 0]] {
            let running = Cluster::with([scaled(&program, before, servers)]);
            running.upgrade(&program, before).expect("the same kind");
            let said = running.upgrade(&program, after).expect_err("both would run");
            let told = said.contains(to) && said.contains(&format!("kubectl scale {from}/{NAME} --replicas 0"));
            assert!(told, "{said}");
        }
        let stopped = Cluster::running(&program, before, 0);
        stopped.upgrade(&program, after).expect("no namespace moves");
    }
}

// G184
#[test]
fn a_namespace_that_differs_from_either_of_two_workloads_has_moved() {
    let Some(program) = tool("helm") else { return };
    let of = |values: &[&str]| scaled(&program, values, [0; 2]);
    let embedded = ["config.namespaces.jobs.ttl_max=1h"];
    let interrupted = Cluster::with([of(&[ETCD]), of(&embedded)]);
    for (values, from) in [(&[ETCD][..], "jobs from embedded"), (&embedded, "jobs from etcd")] {
        let said = interrupted.upgrade(&program, values).expect_err("a move");
        assert!(said.contains(from), "{said}");
    }
    let left_out = ["config.namespaces.other.backend=redis"];
    let same = Cluster::with([of(&[ETCD]), of(&[ETCD, "config.namespaces.local.ttl_max=1h"])]);
    let rendered = same.upgrade(&program, &left_out).expect("nothing moves");
    let stores = stores(&rendered);
    assert!(stores["jobs"].is_object() && stores["local"].is_object(), "{stores}");
}

// G184
#[test]
fn servers_of_a_store_are_replaced_one_by_one() {
    let Some(program) = tool("helm") else { return };
    let list = |servers: &str| format!("config.namespaces.jobs.etcd.endpoints={{{servers}}}");
    let before = list("http://a:1,http://b:1");
    let running = Cluster::running(&program, &[ETCD, &before], 2);
    running
        .upgrade(&program, &[ETCD, &list("http://b:1,http://c:1")])
        .expect("b is in both");
    running
        .upgrade(&program, &[ETCD, &list("http://c:1,http://d:1")])
        .expect_err("another cluster");
}

#[test]
fn the_stores_are_annotated_with_the_defaults_of_the_server() {
    let Some(program) = tool("helm") else { return };
    let shown = crate::keys::shown();
    let tables = crate::keys::keys(&shown);
    let known = std::fs::read_to_string(crate::helm::chart().join("files/stores.yaml")).expect("a file");
    let known: Value = serde_saphyr::from_str(&known).expect("YAML");
    for kind in fencepost::stores::ALL
        .iter()
        .map(fencepost::backend::driver::Entry::kind)
    {
        let table = &tables[format!("namespaces.default.{kind}").as_str()];
        for (key, default) in ["names", "servers"]
            .iter()
            .flat_map(|part| known[kind][part].as_object().into_iter().flatten())
        {
            // An absent key has no value.
            let text = if default == "" {
                String::new()
            } else {
                default.to_string().replace("\",\"", "\", \"")
            };
            assert_eq!(table[key.as_str()], text, "{kind}.{key}");
        }
        let backend = format!("config.namespaces.jobs.backend={kind}");
        let rendered = render(&program, &["--set", &backend]).expect("rendered");
        let name = stores(&rendered)["jobs"]["store"].as_str().expect("a name").to_owned();
        assert!(name.starts_with(kind), "{name}");
    }
    let default = render(&program, &[]).expect("rendered");
    assert_eq!(stores(&default)["default"]["store"], "embedded, path fencepost.redb");
}

// G184
#[test]
fn a_rollout_fails_before_a_server_is_ready_without_its_stores() {
    let Some(program) = tool("helm") else { return };
    let deployment = workload(&render(&program, &set(&[ETCD])).expect("rendered"));
    assert_eq!(at(&deployment, "/spec/progressDeadlineSeconds"), 600);
    assert_eq!(
        at(&deployment, "/spec/strategy/rollingUpdate"),
        &json!({"maxSurge": 1, "maxUnavailable": 0})
    );
    let late = set(&[ETCD, "progressDeadlineSeconds=900"]);
    let said = render(&program, &late).expect_err("it would go on");
    assert!(
        said.contains("firstContactSeconds must be longer than progressDeadlineSeconds (900), not 900"),
        "{said}"
    );
    render(
        &program,
        &set(&[ETCD, "progressDeadlineSeconds=900", "firstContactSeconds=901"]),
    )
    .expect("longer");
    let recreate = workload(&render(&program, &set(&[ETCD, "strategy.type=Recreate"])).expect("rendered"));
    assert_eq!(at(&recreate, "/spec/strategy"), &json!({"type": "Recreate"}));
    let text = "config=listen = ['0.0.0.0:50051']\nmetrics_listen = '0.0.0.0:9464'\nfirst_contact_timeout = '1m'";
    let said = render(&program, &["--set-string", &text.replace(',', "\\,")]).expect_err("it says something else");
    assert!(
        said.contains("first_contact_timeout of a config given as text must be \"900s\""),
        "{said}"
    );
}
