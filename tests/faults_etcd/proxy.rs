//! A gRPC proxy before one etcd. It holds, delays or loses chosen calls, so that a test decides in which
//! order the steps of two replicas reach the store.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// How long a test waits for a call before it fails.
const PATIENCE: Duration = Duration::from_secs(10);
/// How much data a stream takes before the reader has asked for more, in bytes.
const WINDOW: u32 = 16 << 20;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It waits here until the test lets it go.
    Held,
    /// Etcd serves it, and the answer waits here until the test lets it go.
    AnswerHeld,
    /// Etcd serves it, and its caller is told that the connection failed.
    AnswerLost,
    /// Its caller is told at once that the connection failed; etcd gets it when the test lets it go.
    Late,
}

/// A call that the proxy looks for.
struct Trap {
    fate: Fate,
    parts: Vec<Vec<u8>>,
    here: oneshot::Sender<()>,
    go: oneshot::Receiver<()>,
    over: oneshot::Sender<()>,
}

impl Trap {
    /// Tells the test that the call is here, and waits until it may go on.
    async fn wait(here: oneshot::Sender<()>, go: oneshot::Receiver<()>) {
        // The test may have ended; then nobody needs the call any more.
        let _ = here.send(());
        let _ = go.await;
    }
}

/// A call that was or will be caught.
pub struct Caught {
    here: oneshot::Receiver<()>,
    go: oneshot::Sender<()>,
    over: oneshot::Receiver<()>,
}

impl Caught {
    /// Waits until the proxy has the call (or, where its answer is held or lost, until etcd has served it).
    pub async fn is_here(&mut self) {
        let here = timeout(PATIENCE, &mut self.here).await;
        here.expect("the call comes in time").expect("the proxy is there");
    }

    /// Lets the call go on, and waits until etcd has answered it.
    pub async fn let_go(self) {
        self.go.send(()).expect("the call waits");
        let over = timeout(PATIENCE, self.over).await;
        over.expect("etcd answers in time").expect("etcd answers");
    }
}

#[derive(Default)]
struct State {
    traps: Vec<Trap>,
    /// The signs of life that passed, as they were sent.
    signs_of_life: Vec<Bytes>,
    /// The transactions that came, as they were sent.
    transactions: Vec<Vec<u8>>,
}

/// See the module. It ends when it is dropped.
pub struct Proxy {
    port: u16,
    state: Arc<Mutex<State>>,
    breaks: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Begins to forward to the etcd on this port.
    pub async fn before(etcd: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let state = Arc::<Mutex<State>>::default();
        let (breaks, broken) = watch::channel(0);
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.expect("a connection");
                let connection = Connection {
                    state: Arc::clone(&shared),
                    breaks: broken.clone(),
                };
                // A connection ends with either of its ends.
                tokio::spawn(async move { connection.serve(client, etcd).await });
            }
        });
        Self {
            port,
            state,
            breaks,
            task,
        }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Catches the next call whose method and content have all these parts. A message on a stream of signs of life
    /// is a call, too.
    pub fn catch<P: AsRef<[u8]>>(&self, fate: Fate, parts: &[P]) -> Caught {
        let ((here, is_here), (go, may_go), (over, is_over)) =
            (oneshot::channel(), oneshot::channel(), oneshot::channel());
        let trap = Trap {
            fate,
            parts: parts.iter().map(|part| part.as_ref().to_vec()).collect(),
            here,
            go: may_go,
            over,
        };
        lock(&self.state).traps.push(trap);
        Caught {
            here: is_here,
            go,
            over: is_over,
        }
    }

    /// How many signs of life for this lease have passed.
    pub fn signs_of_life(&self, lease: i64) -> usize {
        let wanted = varint(lease);
        let state = lock(&self.state);
        let signs = state.signs_of_life.iter().filter(|sent| contains(sent, &wanted));
        signs.count()
    }

    /// The transactions that came since the last call of this, and the number of all signs of life so far.
    pub fn transactions(&self) -> (Vec<Vec<u8>>, usize) {
        let mut state = lock(&self.state);
        (std::mem::take(&mut state.transactions), state.signs_of_life.len())
    }

    /// Breaks every stream of signs of life that is open.
    pub fn break_signs_of_life(&self) {
        self.breaks.send_modify(|breaks| *breaks += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A lease as it is written in a message.
pub fn varint(lease: i64) -> Vec<u8> {
    let mut rest = lease.cast_unsigned();
    let mut bytes = Vec::new();
    while rest >= 0x80 {
        bytes.push(rest.to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    bytes.push(rest.to_le_bytes()[0]);
    bytes
}

struct Connection {
    state: Arc<Mutex<State>>,
    breaks: watch::Receiver<u64>,
}

type Ended = Result<Infallible, Box<dyn std::error::Error + Send + Sync>>;

impl Connection {
    async fn serve(self, client: TcpStream, etcd: u16) -> Ended {
        let server = TcpStream::connect(("127.0.0.1", etcd)).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let mut settings = h2::client::Builder::new();
        settings
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        let (requests, connection) = settings.handshake::<_, Bytes>(server).await?;
        let connection = tokio::spawn(connection);
        let mut settings = h2::server::Builder::new();
        settings
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        let mut calls = settings.handshake::<_, Bytes>(client).await?;
        while let Some(call) = calls.accept().await {
            let (request, answer) = call?;
            let (requests, state, breaks) = (requests.clone(), Arc::clone(&self.state), self.breaks.clone());
            tokio::spawn(async move { forward(request, answer, requests, (state, breaks)).await });
        }
        connection.abort();
        Err("the client has gone".into())
    }
}

/// Forwards one call; a failure on either side ends it for both, as it drops their streams.
async fn forward(
    request: Request<RecvStream>,
    mut answer: SendResponse<Bytes>,
    requests: SendRequest<Bytes>,
    (state, mut breaks): (Arc<Mutex<State>>, watch::Receiver<u64>),
) -> Ended {
    let (head, mut body) = request.into_parts();
    let method = head.uri.path().to_owned();
    let is_stream = method.ends_with("/Watch") || method.ends_with("/LeaseKeepAlive");
    let (response, mut to) = requests
        .ready()
        .await?
        .send_request(Request::from_parts(head, ()), false)?;
    if is_stream {
        breaks.mark_unchanged();
        let signs = method.ends_with("/LeaseKeepAlive");
        // Ended with the answers: a stream is reset when neither half of it is in use any more.
        let sending = tokio::spawn(async move { send_each(&method, body, to, &state).await });
        let _sending = AbortOnDropHandle::new(sending);
        let back = send_back(response.await?, answer);
        return tokio::select! {
            ended = back => ended,
            _ = breaks.changed(), if signs => Err("the stream was broken".into()),
        };
    }
    let mut content = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        content.extend(data);
    }
    if method.ends_with("/Txn") {
        lock(&state).transactions.push(content.clone());
    }
    let Some(trap) = caught(&state, &method, &content) else {
        to.send_data(content.into(), true)?;
        return send_back(response.await?, answer).await;
    };
    let Trap { here, go, over, .. } = trap;
    match trap.fate {
        Fate::Held => {
            Trap::wait(here, go).await;
            to.send_data(content.into(), true)?;
            let response = response.await?;
            let _ = over.send(());
            send_back(response, answer).await
        }
        Fate::AnswerHeld => {
            to.send_data(content.into(), true)?;
            let response = response.await?;
            Trap::wait(here, go).await;
            let _ = over.send(());
            send_back(response, answer).await
        }
        Fate::AnswerLost => {
            to.send_data(content.into(), true)?;
            let served = response.await;
            fail(&mut answer)?;
            drop(served);
            let _ = here.send(());
            Err("its answer is lost".into())
        }
        Fate::Late => {
            fail(&mut answer)?;
            Trap::wait(here, go).await;
            to.send_data(content.into(), true)?;
            let mut body = response.await?.into_body();
            while let Some(data) = body.data().await {
                data?;
            }
            let _ = over.send(());
            Err("nobody waits for its answer".into())
        }
    }
}

/// The first trap for such a call, which is taken away with it.
fn caught(state: &Mutex<State>, method: &str, content: &[u8]) -> Option<Trap> {
    let traps = &mut lock(state).traps;
    let is_in = |part: &Vec<u8>| contains(method.as_bytes(), part) || contains(content, part);
    let at = traps.iter().position(|trap| trap.parts.iter().all(is_in))?;
    Some(traps.remove(at))
}

fn contains(whole: &[u8], part: &[u8]) -> bool {
    whole.windows(part.len()).any(|window| window == part)
}

/// Tells a caller that the connection failed: what it asked for may have happened.
fn fail(answer: &mut SendResponse<Bytes>) -> Result<(), h2::Error> {
    let failed = Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", "14")
        .header("grpc-message", "the connection failed")
        .body(());
    answer.send_response(failed.expect("good headers"), true)?;
    Ok(())
}

/// Sends the messages of a stream on, each as it comes. What is caught waits.
async fn send_each(method: &str, mut from: RecvStream, mut to: SendStream<Bytes>, state: &Mutex<State>) -> Ended {
    while let Some(data) = from.data().await {
        let data = data?;
        from.flow_control().release_capacity(data.len())?;
        let trap = caught(state, method, &data);
        let over = match trap {
            Some(Trap { here, go, over, .. }) => {
                Trap::wait(here, go).await;
                Some(over)
            }
            None => None,
        };
        if method.ends_with("/LeaseKeepAlive") {
            lock(state).signs_of_life.push(data.clone());
        }
        to.send_data(data, false)?;
        if let Some(over) = over {
            let _ = over.send(());
        }
    }
    to.send_data(Bytes::new(), true)?;
    Err("the client has closed the stream".into())
}

async fn send_back(response: Response<RecvStream>, mut answer: SendResponse<Bytes>) -> Ended {
    let (head, mut from) = response.into_parts();
    let is_over = from.is_end_stream();
    let mut to = answer.send_response(Response::from_parts(head, ()), is_over)?;
    if is_over {
        return Err("it has no body".into());
    }
    while let Some(data) = from.data().await {
        let data = data?;
        from.flow_control().release_capacity(data.len())?;
        to.send_data(data, false)?;
    }
    match from.trailers().await? {
        Some(trailers) => to.send_trailers(trailers)?,
        None => to.send_data(Bytes::new(), true)?,
    }
    Err("it is over".into())
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
