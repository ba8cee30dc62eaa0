//! A TCP forwarder before a node. Answers always pass; commands may be late, or held back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What becomes of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Commands {
    Pass,
    /// They come so much later.
    Late(Duration),
    /// All are held back.
    Hold,
    /// All are, from the first one on that says this.
    HoldFrom(Vec<u8>),
}

/// A forwarder on a port of its own. It ends when it is dropped.
#[derive(Debug)]
pub struct Forwarder {
    port: u16,
    commands: Arc<watch::Sender<Commands>>,
    /// How many connections have something to deliver.
    holding: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Forwarder {
    /// Begins to forward to this port.
    pub async fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let commands = Arc::new(watch::Sender::new(Commands::Pass));
        let holding = Arc::new(AtomicUsize::new(0));
        let way = Way {
            commands: Arc::clone(&commands),
            holding: Arc::clone(&holding),
        };
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(forward(client, server, way.clone()));
            }
        });
        Self {
            port,
            commands,
            holding,
            task,
        }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Lets all commands come so much later from now on.
    pub fn late(&self, by: Duration) {
        self.commands.send_replace(Commands::Late(by));
    }

    /// Holds all commands back from now on.
    pub fn hold(&self) {
        self.commands.send_replace(Commands::Hold);
    }

    /// Holds back the first command that says this, and all after it.
    pub fn hold_from(&self, word: &str) {
        self.commands.send_replace(Commands::HoldFrom(word.into()));
    }

    /// Whether something is held back.
    pub fn holds_something(&self) -> bool {
        self.holding.load(Ordering::SeqCst) > 0
    }

    /// Delivers what was held back, also of connections that their clients have given up.
    pub async fn deliver(&self) {
        self.commands.send_replace(Commands::Pass);
        while self.holds_something() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The way of all commands.
#[derive(Clone)]
struct Way {
    commands: Arc<watch::Sender<Commands>>,
    holding: Arc<AtomicUsize>,
}

impl Way {
    /// Returns when this may pass; whether it was held back, and counted.
    async fn wait(&self, read: &[u8]) -> bool {
        self.commands.send_if_modified(|commands| match commands {
            Commands::HoldFrom(word) if read.windows(word.len()).any(|part| part == word) => {
                *commands = Commands::Hold;
                true
            }
            _ => false,
        });
        let now = self.commands.borrow().clone();
        match now {
            Commands::Hold => {}
            Commands::Late(by) => {
                tokio::time::sleep(by).await;
                return false;
            }
            Commands::Pass | Commands::HoldFrom(_) => return false,
        }
        self.holding.fetch_add(1, Ordering::SeqCst);
        let mut commands = self.commands.subscribe();
        let _ = commands.wait_for(|commands| *commands != Commands::Hold).await;
        true
    }
}

async fn forward(client: TcpStream, server: u16, way: Way) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let ((commands, mut to_client), (mut from_server, to_server)) = (client.into_split(), server.into_split());
    // Each way by itself: what a client has sent arrives also when nobody listens for the answer.
    tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
    pass(commands, to_server, way).await;
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, way: Way) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let held = way.wait(&buffer[..read]).await;
        let passed = to.write_all(&buffer[..read]).await;
        if held {
            way.holding.fetch_sub(1, Ordering::SeqCst);
        }
        if passed.is_err() {
            return;
        }
    }
}
