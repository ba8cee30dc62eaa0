//! The limit on memory that the chart asks for is enough for what the limits of the configuration let in.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{AcquireRequest, ListLocksRequest, WatchLockRequest};
use futures::StreamExt;
use h2::client::ResponseFuture;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::helm::{render, tool};
use crate::service::Served;

/// What the configuration lets in, and all of which comes.
const WAITERS: u32 = 3_000;
const LEASES: u32 = 1_000;
const WATCHES: u32 = 300;
const CONNECTIONS: u32 = 300;
/// The longest metadata of a claim, in bytes, less its key.
const METADATA: usize = (4 << 10) - 1;
const HOUR: Duration = Duration::from_secs(3600);
const POLL: Duration = Duration::from_millis(50);
/// Far longer than they take to come, on a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(300);

/// The least limit on memory that the chart takes, in MiB.
fn needed(program: &Path, set: &str) -> u64 {
    let set = ["--set", "resources.limits.memory=1Mi", "--set", set];
    let said = render(program, &set).expect_err("too little memory");
    let figure = said
        .split_once("must be at least ")
        .and_then(|(_, rest)| rest.split_once("Mi,"));
    figure.expect(&said).0.parse().expect("a figure")
}

#[test]
fn the_limits_that_a_configuration_leaves_out_are_the_servers_own() {
    let Some(program) = tool("helm") else { return };
    let shown = Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .args(["config", "show"])
        .env_clear()
        .env("HOME", "/")
        .output();
    let shown = String::from_utf8(shown.expect("the program runs").stdout).expect("text");
    let own = |key: &str| {
        let line = shown
            .lines()
            .find_map(|line| line.trim_start_matches("# ").strip_prefix(&format!("{key} = ")));
        line.unwrap_or_else(|| panic!("{key} in {shown}")).replace('_', "")
    };
    let server = ["acquire_limit", "call_limit", "stream_limit", "connection_limit"];
    let all = server.map(|key| format!("config.server.{key}={}", own(key))).join(",");
    let all = format!(
        "{all},config.server.unsent_bytes_limit={},config.namespaces.default.embedded.claim_limit={}",
        own("unsent_bytes_limit"),
        own("claim_limit")
    );
    assert_eq!(needed(&program, "replicaCount=1"), needed(&program, &all));
    for key in server {
        let more = format!("config.server.{key}=1000000");
        assert!(needed(&program, &more) > needed(&program, &all), "{key} counts");
    }
}

#[test]
fn a_quantity_in_every_form_is_compared() {
    let Some(program) = tool("helm") else { return };
    let needed = needed(&program, "replicaCount=1");
    for (enough, less) in [
        (format!("{needed}Mi"), format!("{}Mi", needed - 1)),
        (format!("{}", needed << 20), format!("{}", (needed << 20) - 1)),
        (format!("{}Ki", needed << 10), format!("{}k", needed << 10)),
        ("64Gi".to_owned(), "0.5Gi".to_owned()),
    ] {
        for (limit, fits) in [(enough, true), (less, false)] {
            let set = format!("resources.limits.memory={limit}");
            for flag in ["--set", "--set-string"] {
                let rendered = render(&program, &[flag, &set]);
                assert_eq!(rendered.is_ok(), fits, "{flag} {limit}: {:?}", rendered.err());
            }
        }
    }
    let unlimited = render(&program, &["--set", "resources.limits=null"]);
    assert!(unlimited.is_ok(), "no limit has to fit");
}

/// A server with these limits, and where it listens.
fn serve(home: &Path, config: &str) -> (Served, String) {
    fs::write(home.join("fencepost.toml"), config).expect("a file");
    let mut server = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    server
        .args(["serve", "--config", "fencepost.toml", "--listen", "127.0.0.1:0"])
        .env_clear();
    server.env("HOME", home).current_dir(home).stderr(Stdio::piped());
    let mut server = Served(server.spawn().expect("the program starts"));
    let log = BufReader::new(server.0.stderr.take().expect("a pipe"));
    let mut lines = log.lines().map_while(Result::ok);
    let address = lines.find_map(|line| Some(line.split_once("serving on ")?.1.to_owned()));
    // What it logs later is read, or it could not write any more.
    std::thread::spawn(move || lines.for_each(drop));
    (server, address.expect("an address"))
}

async fn connect(address: &str) -> LockServiceClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    LockServiceClient::new(endpoint.connect().await.expect("the server accepts"))
}

fn ask(lock: String, wait: Duration) -> AcquireRequest {
    AcquireRequest {
        namespace: "default".into(),
        name: lock,
        owner: "somebody".into(),
        wait: Some(wait.try_into().expect("a short time")),
        ttl: Some(HOUR.try_into().expect("a short time")),
        metadata: [("m".to_owned(), "m".repeat(METADATA))].into(),
        ..AcquireRequest::default()
    }
}

/// Fills the server to its limits, and returns once all are there.
async fn fill(address: &str) -> Vec<LockServiceClient<Channel>> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(connect(address).await);
    }
    for lease in 0..LEASES {
        let ask = ask(format!("{lease}"), Duration::ZERO);
        clients[0].acquire(ask).await.expect("it is free");
    }
    for waiter in 0..WAITERS {
        let mut client = clients[(waiter % CONNECTIONS) as usize].clone();
        tokio::spawn(async move {
            // A machine that stands still for long may break its connection: then it comes again.
            while let Err(status) = client.acquire(ask("0".into(), HOUR)).await {
                eprintln!("a wait ended: {status}");
                tokio::time::sleep(POLL).await;
            }
        });
    }
    for watch in 0..WATCHES {
        let mut client = clients[(watch % CONNECTIONS) as usize].clone();
        let ask = WatchLockRequest {
            namespace: "default".into(),
            name: format!("{watch}"),
        };
        let mut seen = client.watch_lock(ask).await.expect("a watch").into_inner();
        tokio::spawn(async move { while seen.next().await.is_some() {} });
    }
    let all_wait = async {
        loop {
            let ask = ListLocksRequest {
                namespace: "default".into(),
                page_size: 1,
                ..ListLocksRequest::default()
            };
            let page = clients[0].list_locks(ask).await.expect("a page").into_inner();
            if page.locks[0].waiter_count == WAITERS {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(PATIENCE, all_wait).await.expect("all wait");
    clients
}

/// The most memory that a process has had resident, in MiB.
fn most_resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("a figure");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

#[test]
fn a_server_filled_to_its_limits_stays_within_the_memory_that_the_chart_asks_for() {
    let Some(program) = tool("helm") else { return };
    let claims = WAITERS + LEASES;
    let server = [
        ("acquire_limit", WAITERS),
        ("stream_limit", WATCHES),
        ("connection_limit", CONNECTIONS),
        ("call_limit", 1_000),
    ];
    let set = server
        .map(|(key, limit)| format!("config.server.{key}={limit}"))
        .join(",");
    let needed = needed(
        &program,
        &format!("{set},config.namespaces.default.embedded.claim_limit={claims}"),
    );
    let keys = server.map(|(key, limit)| format!("{key} = {limit}\n")).concat();
    let home = tempfile::tempdir().expect("a folder");
    let config = format!(
        "data_dir = 'd'\n[server]\npeer_share = 100\n{keys}[namespaces.default.embedded]\nclaim_limit = {claims}\n"
    );
    let (served, address) = serve(home.path(), &config);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let clients = runtime.block_on(fill(&address));
    let most = most_resident(served.0.id());
    println!(
        "{WAITERS} waiters, {LEASES} leases, {WATCHES} watches, {CONNECTIONS} connections: {most} MiB of {needed}"
    );
    assert!(
        most <= needed,
        "{most} MiB, but the chart takes a limit of {needed} MiB"
    );
    drop(served);
    drop(clients);
    runtime.shutdown_background();
}

/// Begins a call and sends its message without the last bytes. Returns what keeps it open.
async fn begin(opener: &h2::client::SendRequest<Bytes>, path: &str) -> Option<(ResponseFuture, h2::SendStream<Bytes>)> {
    const ANNOUNCED: u32 = 65_500;
    const SENT: usize = 60_000;
    let request = http::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let mut opener = opener.clone().ready().await.ok()?;
    let request = request.body(()).expect("a request");
    let (answer, mut body) = opener.send_request(request, false).ok()?;
    let mut message = vec![0];
    message.extend(ANNOUNCED.to_be_bytes());
    message.resize(SENT, b'x');
    body.send_data(message.into(), false).ok()?;
    Some((answer, body))
}

// G194
#[test]
fn messages_without_their_end_take_no_more_than_the_memory_that_the_chart_asks_for() {
    const CALLS: usize = 1_000;
    const STREAMS: usize = 100;
    const EACH_CONNECTION: usize = 200;
    let Some(program) = tool("helm") else { return };
    let server = [
        ("acquire_limit", 3 * CALLS),
        ("stream_limit", 3 * STREAMS),
        ("connection_limit", 100),
        ("call_limit", CALLS),
        ("kept_lease_limit", 1_000),
        ("unsent_bytes_limit", 4 << 20),
    ];
    let set = server
        .map(|(key, limit)| format!("config.server.{key}={limit}"))
        .join(",");
    let needed = needed(
        &program,
        &format!("{set},config.namespaces.default.embedded.claim_limit=1000"),
    );
    let keys = server.map(|(key, limit)| format!("{key} = {limit}\n")).concat();
    let home = tempfile::tempdir().expect("a folder");
    let config = format!(
        "data_dir = 'd'\n[server]\npeer_share = 100\n{keys}[namespaces.default.embedded]\nclaim_limit = 1000\n"
    );
    let (served, address) = serve(home.path(), &config);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let locks = "/fencepost.v1.LockService";
    let all = [
        (format!("{locks}/Acquire"), 3 * CALLS),
        (format!("{locks}/GetLock"), CALLS),
        (format!("{locks}/Renew"), CALLS),
        ("/grpc.health.v1.Health/Check".to_owned(), CALLS),
        (format!("{locks}/WatchLock"), STREAMS),
        (format!("{locks}/KeepAlive"), STREAMS),
        (format!("{locks}/Session"), STREAMS),
        ("/grpc.health.v1.Health/Watch".to_owned(), STREAMS),
        (
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo".to_owned(),
            STREAMS,
        ),
    ];
    let begun = all
        .iter()
        .flat_map(|(path, calls)| std::iter::repeat_n(path.as_str(), *calls));
    let begun: Vec<&str> = begun.collect();
    let ended = runtime.block_on(async {
        let mut calls = Vec::new();
        for paths in begun.chunks(EACH_CONNECTION) {
            let socket = TcpStream::connect(&address).await.expect("the port");
            let (opener, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
            tokio::spawn(connection);
            for path in paths {
                calls.extend(begin(&opener, path).await);
            }
        }
        // Each is answered within the 5 s that a message may take, but for streams of messages. Connections with the most
        // bytes are ended before, and take no more calls.
        let mut ended = 0;
        for (answer, _body) in calls {
            let answered = tokio::time::timeout(Duration::from_secs(6), answer).await;
            ended += usize::from(answered.is_ok());
        }
        ended
    });
    let most = most_resident(served.0.id());
    println!(
        "{} messages without their end, {ended} answered: {most} MiB of {needed}",
        begun.len()
    );
    assert!(ended > CALLS, "{ended}");
    assert!(
        most <= needed,
        "{most} MiB, but the chart takes a limit of {needed} MiB"
    );
    drop(served);
    runtime.shutdown_background();
}
