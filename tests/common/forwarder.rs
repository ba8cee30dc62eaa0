//! A TCP forwarder before a server: answers may be late or lost, and the network may stand still.

#![allow(dead_code, reason = "each test binary uses its share")]

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What becomes of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// They pass.
    Pass,
    /// They come so much later.
    Late(Duration),
    /// They are lost, and the connections are not good for more: only [`Forwarder::cut`] ends this.
    Lost,
    /// The same on connections that have carried more bytes of answers than this, and on new ones.
    LostBeyond(usize),
}

/// Says of a part of the answers whether it is the last one that passes.
type IsLast = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// A forwarder on a port of its own. It ends when it is dropped.
pub struct Forwarder {
    port: u16,
    answers: watch::Sender<Answers>,
    last: watch::Sender<Option<IsLast>>,
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
        let (last, ends_after) = watch::channel::<Option<IsLast>>(None);
        let (cuts, cut) = watch::channel(0);
        let (stalled, stall) = watch::channel(false);
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                // Dropped: the network is down until it is let go on.
                if ends_after.borrow().is_some() {
                    continue;
                }
                let answers = (passing.clone(), ends_after.clone());
                tokio::spawn(forward(client, server, answers, cut.clone(), stall.clone()));
            }
        });
        Self {
            port,
            answers,
            last,
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

    /// Lets everything pass again: what was on its way goes on.
    pub fn go_on(&self) {
        self.last.send_replace(None);
        self.stalled.send_replace(false);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(
    client: TcpStream,
    server: u16,
    answers: (watch::Receiver<Answers>, watch::Receiver<Option<IsLast>>),
    mut cut: watch::Receiver<u64>,
    stalled: watch::Receiver<bool>,
) {
    cut.mark_unchanged();
    let was_cut = cut.clone();
    // A server that is away ends the client's connection, too.
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        biased;
        _ = cut.changed() => {}
        // Either side's end is the end of both.
        () = pass_commands(from_client, to_server, stalled.clone()) => {}
        () = pass_answers(from_server, to_client, answers, was_cut, stalled) => {}
    }
}

async fn pass_commands(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut stalled: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if !goes_on(&mut stalled).await || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn pass_answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    (answers, last): (watch::Receiver<Answers>, watch::Receiver<Option<IsLast>>),
    cut: watch::Receiver<u64>,
    mut stalled: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 << 10];
    let mut broken = matches!(*answers.borrow(), Answers::LostBeyond(_));
    let mut carried = 0;
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        carried += read;
        if !goes_on(&mut stalled).await {
            return;
        }
        let now = *answers.borrow();
        match now {
            Answers::Pass => {}
            Answers::Late(time) => tokio::time::sleep(time).await,
            Answers::Lost => broken = true,
            Answers::LostBeyond(most) => broken |= carried > most,
        }
        if broken || cut.has_changed().unwrap_or(true) {
            continue;
        }
        let is_last = last.borrow().clone();
        let is_last = is_last.is_some_and(|is_last| is_last(&buffer[..read]));
        if to.write_all(&buffer[..read]).await.is_err() || is_last {
            return;
        }
    }
}

/// Waits while the network stands still; false where nobody is left to let it go on.
async fn goes_on(stalled: &mut watch::Receiver<bool>) -> bool {
    stalled.wait_for(|stalled| !stalled).await.is_ok()
}
