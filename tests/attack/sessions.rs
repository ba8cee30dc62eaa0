//! Sessions beside clients that do not read, and a session that takes its events late.

use std::time::Duration;

use bytes::Bytes;
use fencepost::api::proto::session_command::{Acquire, Command};
use fencepost::api::proto::watch_lock_response::Event as WatchEvent;
use fencepost::api::proto::{ChangeKind, GetLockRequest, SessionCommand, SessionRequest, WatchLockRequest};
use h2::RecvStream;
use h2::client::ResponseFuture;
use tokio::time::timeout;

use super::fixture::{Attacker, Client, NAMESPACE, PATIENCE, ask, framed, runtime, start};
use super::server::Server;
use super::session_client::{SessionClient, close};

const SESSION: &str = "/fencepost.v1.LockService/Session";
const GET_LOCK: &str = "/fencepost.v1.LockService/GetLock";
const MIB: usize = 1 << 20;
/// How many bytes of answers may be unsent in all; one address may have half of them.
const UNSENT: usize = 4 * MIB;
/// How many calls are sent at once, and how many at most.
const BATCH: usize = 200;
const CALLS: usize = 20_000;
/// How long it takes at most until a refusal arrives.
const REFUSED_WITHIN: Duration = Duration::from_millis(300);
/// How many locks the session takes beside the attack.
const TAKES: usize = 50;

/// Whether a call was refused, for a refusal has trailers, which need no window.
async fn is_refused(answer: ResponseFuture) -> bool {
    let Ok(Ok(answer)) = timeout(REFUSED_WITHIN, answer).await else {
        return false;
    };
    if answer.headers().get("grpc-status").is_some_and(|status| status == "8") {
        return true;
    }
    let mut body = answer.into_body();
    let trailers = timeout(REFUSED_WITHIN, body.trailers()).await;
    matches!(trailers, Ok(Ok(Some(trailers))) if trailers["grpc-status"] == "8")
}

async fn look(attacker: &Attacker) -> ResponseFuture {
    let look = GetLockRequest {
        namespace: NAMESPACE.into(),
        name: "any".into(),
    };
    let answer = attacker.call(GET_LOCK, &look).await;
    answer.expect("the connection is open")
}

/// Asks for answers that it does not take, until one is refused. Returns the others.
async fn fill(attacker: &Attacker) -> Vec<ResponseFuture> {
    let mut answers = Vec::new();
    while answers.len() < CALLS {
        for _ in 0..BATCH {
            answers.push(look(attacker).await);
        }
        if is_refused(answers.pop().expect("the last one")).await {
            return answers;
        }
    }
    panic!("{CALLS} answers are unsent and none was refused");
}

async fn open(client: &Client) -> SessionClient {
    let (commands, sent) = SessionClient::commands();
    let events = client.locks.clone().session(sent).await.expect("a session");
    let opened = SessionClient::opened(commands, events.into_inner()).await;
    opened.expect("it is open")
}

#[test]
fn a_session_that_reads_is_served_while_others_of_its_address_leave_answers_unsent() {
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, &format!("[server]\nunsent_bytes_limit = {UNSENT}\n"));
    runtime().block_on(async {
        let normal = Client::connect(&server.address, None).await;
        let mut session = open(&normal).await;
        let attacker = Attacker::connect(&server.address, None, 0).await;
        let untaken = fill(&attacker).await;
        println!("{} answers were left unsent", untaken.len());
        assert!(untaken.len() > BATCH, "{}", untaken.len());
        for number in 0..TAKES {
            let name = format!("mine/{number}");
            let lease = session.try_acquire(ask(&name, Duration::ZERO), true).await;
            lease.unwrap_or_else(|status| panic!("{name}: {status}"));
        }
        let mut later = open(&normal).await;
        let taken = later.try_acquire(ask("later", Duration::ZERO), true).await;
        taken.expect("a new session is served too");
        assert!(later.keep_alive().await.not_renewed.is_empty());
        assert!(
            is_refused(look(&attacker).await).await,
            "its address is at its limit still"
        );
    });
}

/// What a stream sent, without giving its bytes back to the window.
async fn part(events: &mut RecvStream) -> Option<Bytes> {
    let part = timeout(PATIENCE, events.data()).await.expect("it goes on");
    part.map(|part| part.expect("no reset"))
}

/// A session of a client with a window of so many bytes, its sender and its events.
async fn raw(server: &Server, window: u32) -> (h2::SendStream<Bytes>, RecvStream) {
    let client = Attacker::connect(&server.address, None, window).await;
    let (answer, commands) = client.open(SESSION).await.expect("the connection is open");
    (commands, answer.await.expect("headers").into_body())
}

#[test]
fn a_lease_that_was_released_before_its_client_took_the_answer_uses_no_quota() {
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, "[namespaces.default]\nlease_limit = 1\n");
    runtime().block_on(async {
        let normal = Client::connect(&server.address, None).await;
        let (_open, mut events) = raw(&server, 65_535).await;
        let first = part(&mut events).await.expect("it is open").len();
        // The first event uses the window up.
        let (mut commands, mut events) = raw(&server, u32::try_from(first).expect("short")).await;
        assert_eq!(part(&mut events).await.expect("it is open").len(), first);
        let watched = WatchLockRequest {
            namespace: NAMESPACE.into(),
            name: "mine".into(),
        };
        let watch = normal.locks.clone().watch_lock(watched).await.expect("a watch");
        let mut watch = watch.into_inner();
        let take = Acquire {
            request: Some(ask("mine", Duration::ZERO)),
            keep: true,
        };
        let both = [Command::Acquire(take), close(true)];
        let both = (1..).zip(both).map(|(id, command)| SessionCommand {
            id,
            command: Some(command),
        });
        let request = SessionRequest {
            commands: both.collect(),
        };
        commands.send_data(framed(&request), false).expect("the stream is open");
        loop {
            let message = timeout(PATIENCE, watch.message()).await.expect("in time");
            let message = message.expect("no error").expect("not the end");
            if matches!(message.event, Some(WatchEvent::Change(change)) if change.kind() == ChangeKind::Released) {
                break;
            }
        }
        let mut given_back = first;
        while given_back > 0 {
            let flow = events.flow_control();
            flow.release_capacity(given_back).expect("it was taken");
            given_back = part(&mut events).await.map_or(0, |part| part.len());
        }
        let trailers = events.trailers().await.expect("no reset").expect("trailers");
        assert_eq!(trailers["grpc-status"], "0", "{trailers:?}");
        let lease = normal.acquire(ask("other", Duration::ZERO)).await;
        lease.expect("nothing is held");
    });
}
