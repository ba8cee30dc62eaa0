//! A server with a console, and clients that take locks beside it.

use std::time::Duration;

use fencepost::api::proto::election_service_client::ElectionServiceClient;
use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{AcquireRequest, CampaignRequest, Lease, ReleaseRequest, SessionCommand, SessionRequest};
use fencepost::api::proto::{session_command, session_event};
use futures::StreamExt;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::http::{Answer, path, post};
use crate::server::{PATIENCE, Server};
use common::ports::free_port;

/// Two namespaces in memory, and nobody asks who somebody is.
pub const OPEN: &str = "
[namespaces.default]
backend = 'embedded'
embedded.path = ':memory:'
[namespaces.other]
backend = 'embedded'
embedded.path = ':memory:'
";

/// How long leases live that outlast a test.
const LONG: i64 = 300;

/// A server with a console.
pub struct Fixture {
    pub server: Server,
    pub bearer: Option<&'static str>,
    channel: Channel,
    home: TempDir,
    console: String,
}

impl Fixture {
    /// A server that allows everything to everybody.
    pub async fn open() -> Self {
        Self::start(OPEN, None).await
    }

    /// A server on which `admin` may do everything, and `reader` may read the locks of `default` that begin with `app/`.
    /// Clients are `admin`.
    pub async fn guarded() -> Self {
        let hash = |name: &str| {
            let hash = Sha256::digest(format!("secret-{name}"));
            hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let auth = format!(
            "
[auth]
bearer_hashes = ['admin:{}', 'reader:{}']
[[auth.rules]]
identities = ['token:admin']
namespaces = ['*']
locks = ['']
verbs = ['acquire', 'read', 'admin']
[[auth.rules]]
identities = ['token:reader']
namespaces = ['default']
locks = ['app/']
verbs = ['read']
",
            hash("admin"),
            hash("reader")
        );
        Self::start(&format!("{OPEN}{auth}"), Some("secret-admin")).await
    }

    async fn start(config: &str, bearer: Option<&'static str>) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        std::fs::write(home.path().join("f.toml"), config).expect("a file");
        let console = format!("127.0.0.1:{}", free_port());
        let server = serve(&home, &console);
        Self {
            channel: channel(&server).await,
            server,
            bearer,
            home,
            console,
        }
    }

    /// The host and port of the console.
    pub fn console(&self) -> &str {
        &self.console
    }

    /// The address of a page of the console, such as `/ns/default`.
    pub fn page(&self, path: &str) -> String {
        format!("http://{}/#{path}", self.console)
    }

    /// Calls a method as the page does.
    pub fn call(&self, method: &str, bearer: Option<&str>, body: &str) -> Answer {
        let authorization = bearer.map(|bearer| format!("Bearer {bearer}"));
        let headers = authorization.iter().map(|value| ("Authorization", value.as_str()));
        let headers: Vec<_> = headers.collect();
        post(&self.console, &path(method), &headers, body)
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        self.server.signal("KILL");
        self.server.end();
    }

    /// A session that keeps so many leases, and waits for the first lock once more. It ends when it is dropped.
    pub async fn session(&self, leases: usize) -> impl Sized {
        let acquire = |id, name: String, wait| SessionCommand {
            id,
            command: Some(session_command::Command::Acquire(session_command::Acquire {
                request: Some(AcquireRequest {
                    wait,
                    ..ask(&name, "session", LONG)
                }),
                keep: true,
            })),
        };
        let leases = (0..leases).map(|number| acquire(number as u64 + 1, format!("session/{number}"), None));
        let waiting = acquire(1000, "session/0".to_owned(), Some(seconds(60)));
        let commands = leases.chain([waiting]).collect();
        let (send, requests) = futures::channel::mpsc::unbounded();
        send.unbounded_send(SessionRequest { commands }).expect("it is open");
        let mut locks = LockServiceClient::new(self.channel.clone());
        let events = locks
            .session(self.request(requests))
            .await
            .expect("a session")
            .into_inner();
        let reading = AbortOnDropHandle::new(tokio::spawn(events.for_each(|_| async {})));
        (send, reading)
    }

    /// Starts it again, with its console where it was.
    pub async fn restart(&mut self) {
        self.server = serve(&self.home, &self.console);
        self.channel = channel(&self.server).await;
    }

    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if let Some(bearer) = self.bearer {
            let value = format!("Bearer {bearer}").parse().expect("a header");
            request.metadata_mut().insert("authorization", value);
        }
        request
    }

    /// Takes a lock of `default`, after waiting for it if need be.
    pub async fn acquire(&self, name: &str, owner: &str) -> Lease {
        self.acquire_for(name, owner, LONG).await
    }

    /// The same for so many seconds.
    pub async fn acquire_for(&self, name: &str, owner: &str, ttl: i64) -> Lease {
        let answer = self.try_acquire(name, owner, ttl).await;
        answer.expect("granted")
    }

    async fn try_acquire(&self, name: &str, owner: &str, ttl: i64) -> Result<Lease, Status> {
        let ask = AcquireRequest {
            metadata: [("job".to_owned(), "nightly".to_owned())].into(),
            wait: Some(seconds(60)),
            ..ask(name, owner, ttl)
        };
        let answer = LockServiceClient::new(self.channel.clone())
            .acquire(self.request(ask))
            .await?;
        Ok(answer.into_inner().lease.expect("a lease"))
    }

    /// Waits for a lock in a task of its own.
    pub fn wait(&self, name: &str, owner: &str) -> tokio::task::JoinHandle<Result<Lease, Status>> {
        self.wait_for(name, owner, 60)
    }

    /// The same for so many seconds.
    pub fn wait_for(&self, name: &str, owner: &str, wait: i64) -> tokio::task::JoinHandle<Result<Lease, Status>> {
        let ask = AcquireRequest {
            metadata: [("host".to_owned(), format!("of-{owner}"))].into(),
            wait: Some(seconds(wait)),
            ..ask(name, owner, LONG)
        };
        let (mut locks, request) = (LockServiceClient::new(self.channel.clone()), self.request(ask));
        tokio::spawn(async move {
            let answer = locks.acquire(request).await?;
            Ok(answer.into_inner().lease.expect("a lease"))
        })
    }

    /// Gives a lease back.
    pub async fn release(&self, lease: &Lease) {
        let lease_id = lease.lease_id.clone();
        let released = LockServiceClient::new(self.channel.clone())
            .release(self.request(ReleaseRequest {
                lease_id,
                keep_for: None,
            }))
            .await;
        released.expect("released");
    }

    /// Becomes the leader of an election of `default`.
    pub async fn campaign(&self, election: &str, candidate: &str, value: &str) -> Lease {
        let ask = CampaignRequest {
            namespace: "default".into(),
            election: election.into(),
            candidate: candidate.into(),
            value: value.into(),
            ttl: Some(seconds(LONG)),
            wait: Some(seconds(60)),
            ..CampaignRequest::default()
        };
        let answer = ElectionServiceClient::new(self.channel.clone())
            .campaign(self.request(ask))
            .await;
        answer.expect("elected").into_inner().leadership.expect("a lease")
    }

    /// Takes many locks over one session, as fast as that is.
    pub async fn acquire_many(&self, names: impl Iterator<Item = String>) {
        self.acquire_many_for(names, LONG).await;
    }

    /// The same for so many seconds.
    pub async fn acquire_many_for(&self, names: impl Iterator<Item = String>, ttl: i64) {
        let commands = names.enumerate().map(|(number, name)| SessionCommand {
            id: number as u64 + 1,
            command: Some(session_command::Command::Acquire(session_command::Acquire {
                request: Some(ask(&name, &format!("worker-{}", number % 17), ttl)),
                keep: false,
            })),
        });
        let commands: Vec<_> = commands.collect();
        let (send, receive) = tokio::sync::mpsc::channel(4);
        let requests = futures::stream::unfold(receive, |mut receive| async { Some((receive.recv().await?, receive)) });
        let events = LockServiceClient::new(self.channel.clone())
            .session(self.request(requests))
            .await;
        let mut events = events.expect("a session").into_inner();
        for commands in commands.chunks(250) {
            let message = SessionRequest {
                commands: commands.to_vec(),
            };
            send.send(message).await.expect("a session");
            let mut open = commands.len();
            while open > 0 {
                let message = events.next().await.expect("a session").expect("events");
                for event in message.events {
                    if let Some(session_event::Event::Result(result)) = event.event {
                        let is_granted =
                            matches!(result.outcome, Some(session_event::command_result::Outcome::Acquire(_)));
                        assert!(is_granted, "{result:?}");
                        open -= 1;
                    }
                }
            }
        }
    }
}

/// An exclusive lock of `default`, asked for once.
fn ask(name: &str, owner: &str, ttl: i64) -> AcquireRequest {
    AcquireRequest {
        namespace: "default".into(),
        name: name.into(),
        owner: owner.into(),
        ttl: Some(seconds(ttl)),
        ..AcquireRequest::default()
    }
}

fn seconds(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

fn serve(home: &TempDir, console: &str) -> Server {
    let listen = ["--listen", "127.0.0.1:0", "--console-listen", console];
    let server = Server::start_with(home, &[&["--config", "f.toml"], listen.as_slice()].concat());
    assert_eq!(
        server.console.as_deref(),
        Some(console),
        "the log says where the console is"
    );
    server
}

async fn channel(server: &Server) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).expect("an address");
    endpoint.connect().await.expect("a server")
}

/// Waits for something while other tasks run on.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}: not within {PATIENCE:?}");
}
