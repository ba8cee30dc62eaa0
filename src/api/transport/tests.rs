//! A connection of which the client writes the frames itself.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;
use std::time::Duration;

use http::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::Code;
use tower::Service;

use super::*;
use crate::api::capacity::Capacity;
use crate::api::connection::{ConnectionSettings, READ_LIMIT, Socket};
use crate::api::peer::Peer;
use crate::metrics::Metrics;

/// Longer than any step of a test takes.
const PATIENCE: Duration = Duration::from_secs(20);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The code of a stream that was refused.
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const INTERNAL_ERROR: u32 = 2;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("a short frame").to_be_bytes();
    let mut frame = vec![0, length[0], length[1], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The stream of a client's call with this number, from zero.
fn stream_of(call: u32) -> u32 {
    2 * call + 1
}

/// POST / over http, in three bytes of the static table.
fn call(number: u32, flags: u8) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | flags, stream_of(number), &[0x83, 0x86, 0x84])
}

fn reset(number: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream_of(number), &code.to_be_bytes())
}

/// A connection, and the server that serves only it.
struct Served {
    client: UnixStream,
    stop: CancellationToken,
    server: JoinHandle<()>,
}

/// Serves one connection, whose client has started HTTP/2.
async fn serve(settings: Settings, metrics: Option<ServerMetrics>, service: impl Answering) -> Served {
    let (mut client, server) = UnixStream::pair().expect("a pair");
    let settings = Settings {
        peer_share: 100,
        ..settings
    };
    let (drain, cut) = (CancellationToken::new(), CancellationToken::new());
    let admission = ConnectionSettings::new(&settings, drain, cut, Capacity::new(&settings, None));
    let connection = admission.admit((Socket::Right(server), Peer::Unix).into());
    let connections = futures::stream::iter(connection).chain(futures::stream::pending());
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let transport = Transport::new(&settings, metrics);
    let server = tokio::spawn(transport.serve(connections, service, stopped));
    client
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .expect("sent");
    client.write_all(&frame(SETTINGS, 0, 0, &[])).await.expect("sent");
    Served { client, stop, server }
}

impl Served {
    async fn send(&mut self, frames: Vec<u8>) {
        self.client.write_all(&frames).await.expect("the server reads");
    }

    /// The next frame of this kind: its flags, its stream and its payload.
    async fn next(&mut self, kind: u8) -> (u8, u32, Vec<u8>) {
        let found = timeout(PATIENCE, async {
            loop {
                let mut head = [0; 9];
                self.client.read_exact(&mut head).await.expect("the connection is open");
                let [length @ .., is_of, flags, a, b, c, d] = head;
                let length = u32::from_be_bytes([0, length[0], length[1], length[2]]);
                let mut payload = vec![0; length as usize];
                self.client.read_exact(&mut payload).await.expect("a whole frame");
                assert!(kind == GOAWAY || is_of != GOAWAY, "the connection ends: {payload:?}");
                if is_of == kind {
                    return (flags, u32::from_be_bytes([a, b, c, d]), payload);
                }
            }
        });
        found.await.expect("the frame comes")
    }

    /// Makes one more call, which must be answered.
    async fn is_served(&mut self, number: u32) {
        self.send(call(number, END_STREAM)).await;
        while self.next(HEADERS).await.1 != stream_of(number) {}
    }

    /// Closes the connection, and waits for the end of the server.
    async fn end(self) {
        drop(self.client);
        self.stop.cancel();
        timeout(PATIENCE, self.server)
            .await
            .expect("it ends")
            .expect("no panic");
    }
}

fn answer() -> Response<Body> {
    Response::new(Body::default())
}

/// A service for [`serve`].
trait Answering:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + Unpin> + Clone + Send + 'static
{
}

impl<S> Answering for S where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + Unpin>
        + Clone
        + Send
        + 'static
{
}

/// Answers at once, without a look at the request's message.
fn answering() -> impl Answering {
    tower::service_fn(|_| std::future::ready(Ok(answer())))
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_needs_no_message_waits_for_it_nevertheless() {
    let mut served = serve(Settings::default(), None, answering()).await;
    // With a literal content-type, whose name is the 31st of the static table.
    let typed = [&[0x83, 0x86, 0x84, 0x5f, 16], b"application/json".as_slice()].concat();
    served.send(frame(HEADERS, END_HEADERS, stream_of(0), &typed)).await;
    served.send(call(1, END_STREAM)).await;
    assert_eq!(served.next(HEADERS).await.1, stream_of(1));
    served.send(frame(DATA, END_STREAM, stream_of(0), b"{}")).await;
    assert_eq!(served.next(HEADERS).await.1, stream_of(0));
    served.end().await;
}

/// A service that takes a while for the start of a call. It is cloned once for each call that arrives.
struct Slow(Arc<Queued>);

/// How many calls have arrived and not started.
#[derive(Default)]
struct Queued {
    now: AtomicUsize,
    most: AtomicUsize,
    started: AtomicUsize,
}

impl Clone for Slow {
    fn clone(&self) -> Self {
        let now = self.0.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(now, Ordering::SeqCst);
        Self(Arc::clone(&self.0))
    }
}

impl Service<Request<Body>> for Slow {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        std::thread::sleep(Duration::from_millis(1));
        self.0.now.fetch_sub(1, Ordering::SeqCst);
        self.0.started.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(answer()))
    }
}

#[tokio::test]
async fn a_connection_is_not_read_while_its_calls_queue() {
    const CALLS: usize = 1_000;
    let queued = Arc::new(Queued::default());
    let mut served = serve(Settings::default(), None, Slow(Arc::clone(&queued))).await;
    let calls: Vec<u8> = (0..1_000).flat_map(|number| call(number, END_STREAM)).collect();
    let in_one_step = READ_LIMIT / (calls.len() / CALLS);
    served.send(calls).await;
    timeout(PATIENCE, async {
        while queued.started.load(Ordering::SeqCst) < CALLS {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("all start");
    let most = queued.most.load(Ordering::SeqCst);
    // One call may be read in two parts, and the service is cloned once for the connection.
    assert!(
        most <= in_one_step + 2,
        "{most} calls queued, {in_one_step} are read at once"
    );
    assert!(most > in_one_step / 2, "they queue: {most}");
    served.end().await;
}

#[tokio::test]
async fn messages_of_calls_that_wait_leave_a_window_to_other_calls() {
    const WAITING: u32 = 4_000;
    // A call with a message waits for its turn with it.
    let service = tower::service_fn(|request: Request<Body>| {
        Box::pin(async move {
            if !request.body().is_end_stream() {
                std::future::pending::<()>().await;
            }
            drop(request);
            Ok(answer())
        })
    });
    let mut served = serve(Settings::default(), None, service).await;
    for number in 0..WAITING {
        let message = frame(DATA, END_STREAM, stream_of(number), &[0; 40]);
        served.send([call(number, 0), message].concat()).await;
    }
    served.is_served(WAITING).await;
}

#[tokio::test]
async fn a_client_may_drop_a_thousand_calls_at_once() {
    const DROPPED: u32 = 1_000;
    let mut served = serve(Settings::default(), None, answering()).await;
    let calls = (0..DROPPED).flat_map(|number| [call(number, 0), reset(number, CANCEL)].concat());
    served.send(calls.collect()).await;
    served.is_served(DROPPED).await;
    served.end().await;
}

#[tokio::test]
async fn messages_after_the_end_of_thousands_of_calls_end_no_connection() {
    const ENDED: u32 = 1_500;
    let mut served = serve(Settings::default(), None, answering()).await;
    for number in 0..ENDED {
        served.send(call(number, 0)).await;
        served.next(RST_STREAM).await;
    }
    let late = (0..ENDED).flat_map(|number| frame(DATA, END_STREAM, stream_of(number), &[0]));
    served.send(late.collect()).await;
    served.is_served(ENDED).await;
    served.end().await;
}

/// Answers with long headers and nothing else.
fn refusing() -> impl Answering {
    tower::service_fn(|_| {
        let refusal = Response::builder().header("x-why", "x".repeat(LONG));
        std::future::ready(Ok(refusal.body(Body::default()).expect("a response")))
    })
}

/// How long the headers of a refusal are, in bytes.
const LONG: usize = 12 << 10;
/// How many refusals may be unsent. Each counts for 1 KiB.
const UNSENT: u32 = 100;

fn few_unsent() -> Settings {
    Settings {
        connection_unsent_bytes: (UNSENT << 10) as usize,
        ..Settings::default()
    }
}

#[tokio::test]
async fn refusals_that_nobody_reads_close_their_connection() {
    let mut served = serve(few_unsent(), None, refusing()).await;
    // Less than the time after which a connection that stands still is closed.
    let closed = timeout(Duration::from_secs(8), async {
        for number in 0.. {
            if served.client.write_all(&call(number, END_STREAM)).await.is_err() {
                return number;
            }
        }
        unreachable!("there are more numbers")
    });
    let sent = closed.await.expect("it is closed");
    assert!(sent > UNSENT, "{sent}");
}

#[tokio::test]
async fn refusals_that_a_client_reads_close_no_connection() {
    let mut served = serve(few_unsent(), None, refusing()).await;
    for round in 0..6 {
        // They are fewer than may be unsent, and the first half is more than the socket accepts at once.
        let calls = round * UNSENT / 2..(round + 1) * UNSENT / 2;
        for half in [
            calls.start..calls.start + UNSENT / 4,
            calls.start + UNSENT / 4..calls.end,
        ] {
            served
                .send(half.flat_map(|number| call(number, END_STREAM)).collect())
                .await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for number in calls {
            assert_eq!(served.next(HEADERS).await.1, stream_of(number));
        }
    }
    served.end().await;
}

#[tokio::test]
async fn a_connection_has_so_many_open_calls() {
    const LIMIT: u32 = 5;
    let settings = Settings {
        max_streams_per_connection: LIMIT,
        ..Settings::default()
    };
    let waiting = tower::service_fn(|_| std::future::pending::<Result<Response<Body>, Infallible>>());
    let mut served = serve(settings, None, waiting).await;
    let calls = (0..LIMIT + 3).flat_map(|number| call(number, END_STREAM));
    served.send(calls.collect()).await;
    for number in LIMIT..LIMIT + 3 {
        let (_, stream, reason) = served.next(RST_STREAM).await;
        assert_eq!(
            (stream, reason),
            (stream_of(number), REFUSED_STREAM.to_be_bytes().to_vec())
        );
    }
}

#[tokio::test]
async fn only_a_violation_of_the_protocol_is_counted_as_one() {
    let metrics = Metrics::new("test");
    let metrics = metrics.server().clone();
    let start = || serve(Settings::default(), Some(metrics.clone()), answering());
    let goaway = |code: u32| frame(GOAWAY, 0, 0, &[[0; 4], code.to_be_bytes()].concat());

    start().await.end().await;
    for code in [0, CANCEL] {
        let mut leaving = start().await;
        leaving.is_served(0).await;
        leaving.send(goaway(code)).await;
        leaving.end().await;
    }
    let mut stopped = start().await;
    stopped.is_served(0).await;
    stopped.stop.cancel();
    stopped.next(GOAWAY).await;
    stopped.end().await;
    let mut broken = start().await;
    broken.send([call(0, 0), reset(0, INTERNAL_ERROR)].concat()).await;
    broken.end().await;
    assert_eq!(metrics.protocol_errors.get(), 0);

    let mut violating = start().await;
    // By nothing, which is an error.
    violating.send(frame(WINDOW_UPDATE, 0, 0, &[0; 4])).await;
    violating.next(GOAWAY).await;
    violating.end().await;
    assert_eq!(metrics.protocol_errors.get(), 1);
}

#[tokio::test]
async fn a_request_that_its_client_breaks_off_is_cancelled() {
    let (seen, mut ended) = unbounded_channel();
    let service = tower::service_fn(move |request: Request<Body>| {
        let seen = seen.clone();
        Box::pin(async move {
            let mut body = request.into_body();
            let error = loop {
                match std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break Some(error.code()),
                    None => break None,
                }
            };
            seen.send(error).expect("the test runs");
            Ok(answer())
        })
    });
    let mut served = serve(Settings::default(), None, service).await;
    let begun = |number| [call(number, 0), frame(DATA, 0, stream_of(number), &[0; 3])].concat();
    served.send(begun(0)).await;
    served.send(reset(0, INTERNAL_ERROR)).await;
    assert_eq!(ended.recv().await, Some(Some(Code::Cancelled)));
    served.send(begun(1)).await;
    served.send(frame(WINDOW_UPDATE, 0, 0, &[0; 4])).await;
    assert_eq!(ended.recv().await, Some(Some(Code::Cancelled)));
}
