//! A TCP forwarder before a node. Answers always pass; commands may be held back.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A forwarder on a port of its own. It ends when it is dropped.
#[derive(Debug)]
pub struct Forwarder {
    port: u16,
    passes: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Forwarder {
    /// Begins to forward to this port.
    pub async fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (passes, passing) = watch::channel(true);
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(forward(client, server, passing.clone()));
            }
        });
        Self { port, passes, task }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Holds all commands back from now on.
    pub fn hold(&self) {
        self.passes.send_replace(false);
    }

    /// Delivers what was held back, also of connections that their clients have given up.
    pub fn deliver(&self) {
        self.passes.send_replace(true);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(client: TcpStream, server: u16, passing: watch::Receiver<bool>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let ((commands, mut to_client), (mut from_server, to_server)) = (client.into_split(), server.into_split());
    // Each way by itself: what a client has sent arrives also when nobody listens for the answer.
    tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
    pass(commands, to_server, passing).await;
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut passing: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if passing.wait_for(|passes| *passes).await.is_err() || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
