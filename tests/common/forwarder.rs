//! A TCP forwarder before a server: answers may be late or lost, and the network may stand still.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

/// How long a test waits for what it wants to hold.
const PATIENCE: Duration = Duration::from_secs(60);

/// What becomes of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// They pass.
    Pass,
    /// Each comes so much later.
    Late(Duration),
    /// They are lost, and the connections are not good for more: only [`Forwarder::cut`] ends this.
    Lost,
    /// The same on connections that have carried more bytes of answers than this, and on new ones.
    LostBeyond(usize),
    /// They wait, in their order, until this changes.
    Held,
}

/// Says something of a part of the commands, or of the answers.
type Says = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// What becomes of what passes.
#[derive(Clone)]
struct Rules {
    answers: watch::Receiver<Answers>,
    /// The part of the answers that is the last one to pass.
    last: watch::Receiver<Option<Says>>,
    /// The part of the commands that waits, and all behind it.
    held: watch::Receiver<Option<Says>>,
    /// How many connections have such a part.
    holding: watch::Sender<usize>,
    cuts: watch::Receiver<u64>,
    stalled: watch::Receiver<bool>,
}

/// A forwarder on a port of its own. It ends when it is dropped.
pub struct Forwarder {
    port: u16,
    answers: watch::Sender<Answers>,
    last: watch::Sender<Option<Says>>,
    held: watch::Sender<Option<Says>>,
    holding: watch::Receiver<usize>,
    cuts: watch::Sender<u64>,
    stalled: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Forwarder {
    /// Begins to forward to this port.
    pub async fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (answers, passing) = watch::channel(Answers::Pass);
        let (last, ends_after) = watch::channel::<Option<Says>>(None);
        let (held, holds) = watch::channel::<Option<Says>>(None);
        let (is_holding, holding) = watch::channel(0);
        let (cuts, cut) = watch::channel(0);
        let (stalled, stall) = watch::channel(false);
        let rules = Rules {
            answers: passing,
            last: ends_after,
            held: holds,
            holding: is_holding,
            cuts: cut,
            stalled: stall,
        };
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                // Dropped: the network is down until it is let go on.
                if rules.last.borrow().is_some() {
                    continue;
                }
                tokio::spawn(forward(client, server, rules.clone()));
            }
        });
        Self {
            port,
            answers,
            last,
            held,
            holding,
            cuts,
            stalled,
            task,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its URL for a client of Redis.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What becomes of answers from now on.
    pub fn answers(&self, answers: Answers) {
        self.answers.send_replace(answers);
    }

    /// Ends all connections; what comes over new ones passes.
    pub fn cut(&self) {
        // In this order: nothing more comes over a connection that has lost something.
        self.cuts.send_modify(|cuts| *cuts += 1);
        self.answers.send_replace(Answers::Pass);
    }

    /// Lets nothing pass in either direction, and ends no connection.
    pub fn stall(&self) {
        self.stalled.send_replace(true);
    }

    /// Ends each connection with the first part of its answers of which this is true, and refuses new ones.
    pub fn ends_after(&self, is_last: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        self.last.send_replace(Some(Arc::new(is_last)));
    }

    /// Holds the first part of a connection's commands of which this is true, and all behind it, until [`Self::go_on`].
    pub fn holds(&self, is_held: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        self.held.send_replace(Some(Arc::new(is_held)));
    }

    /// Waits until such a part is held.
    pub async fn is_holding(&self) {
        let mut holding = self.holding.clone();
        let held = timeout(PATIENCE, holding.wait_for(|holding| *holding > 0)).await;
        assert!(matches!(held, Ok(Ok(_))), "nothing was held");
    }

    /// Lets everything pass again: what was on its way goes on.
    pub fn go_on(&self) {
        self.last.send_replace(None);
        self.held.send_replace(None);
        self.stalled.send_replace(false);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(client: TcpStream, server: u16, mut rules: Rules) {
    rules.cuts.mark_unchanged();
    // A server that is away ends the client's connection, too.
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let mut cut = rules.cuts.clone();
    tokio::select! {
        biased;
        _ = cut.changed() => {}
        // Either side's end is the end of both.
        () = pass_commands(from_client, to_server, rules.clone()) => {}
        () = pass_answers(from_server, to_client, rules) => {}
    }
}

async fn pass_commands(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut rules: Rules) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if !goes_on(&mut rules.stalled).await {
            return;
        }
        let is_held = rules.held.borrow().clone();
        if is_held.is_some_and(|is_held| is_held(&buffer[..read])) {
            rules.holding.send_modify(|holding| *holding += 1);
            let freed = rules.held.wait_for(Option::is_none).await.is_ok();
            rules.holding.send_modify(|holding| *holding -= 1);
            if !freed {
                return;
            }
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// A part of the answers on its way.
struct Part {
    bytes: Vec<u8>,
    due: Instant,
    is_last: bool,
}

async fn pass_answers(from: OwnedReadHalf, to: OwnedWriteHalf, rules: Rules) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let writes = write_answers(to, receiver, rules.cuts.clone());
    tokio::pin!(writes);
    tokio::select! {
        () = &mut writes => {}
        // What it has read is still on its way.
        () = read_answers(from, sender, rules) => writes.await,
    }
}

async fn read_answers(mut from: OwnedReadHalf, parts: mpsc::UnboundedSender<Part>, mut rules: Rules) {
    let mut buffer = vec![0; 64 << 10];
    let mut broken = matches!(*rules.answers.borrow(), Answers::LostBeyond(_));
    let mut carried = 0;
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        carried += read;
        if !goes_on(&mut rules.stalled).await {
            return;
        }
        let passes = rules.answers.wait_for(|answers| *answers != Answers::Held);
        let Ok(now) = passes.await.map(|now| *now) else { return };
        let mut due = Instant::now();
        match now {
            Answers::Pass | Answers::Held => {}
            Answers::Late(time) => due += time,
            Answers::Lost => broken = true,
            Answers::LostBeyond(most) => broken |= carried > most,
        }
        if broken {
            continue;
        }
        let bytes = buffer[..read].to_vec();
        let is_last = rules.last.borrow().as_ref().is_some_and(|is_last| is_last(&bytes));
        if parts.send(Part { bytes, due, is_last }).is_err() || is_last {
            return;
        }
    }
}

async fn write_answers(mut to: OwnedWriteHalf, mut parts: mpsc::UnboundedReceiver<Part>, cut: watch::Receiver<u64>) {
    while let Some(part) = parts.recv().await {
        sleep_until(part.due).await;
        if cut.has_changed().unwrap_or(true) {
            continue;
        }
        if to.write_all(&part.bytes).await.is_err() || part.is_last {
            return;
        }
    }
}

/// Waits while the network stands still; false where nobody is left to let it go on.
async fn goes_on(stalled: &mut watch::Receiver<bool>) -> bool {
    stalled.wait_for(|stalled| !stalled).await.is_ok()
}
