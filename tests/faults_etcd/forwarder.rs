//! A network between a replica and etcd that can be cut: then nothing passes in either direction, and no
//! connection ends.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A forwarder on a port of its own. It ends when it is dropped.
#[derive(Debug)]
pub struct Forwarder {
    port: u16,
    whole: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Forwarder {
    /// Begins to forward to an address `http://host:port`.
    pub async fn before(url: &str) -> Self {
        let server = url.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let (whole, passing) = watch::channel(true);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, server.clone(), passing.clone()));
            }
        });
        Self { port, whole, task }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Cuts the network.
    pub fn cut(&self) {
        self.whole.send_replace(false);
    }

    /// Mends it: what was on its way goes on.
    pub fn mend(&self) {
        self.whole.send_replace(true);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(client: TcpStream, server: String, whole: watch::Receiver<bool>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a socket");
    }
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        // Either side's end is the end of both.
        () = pass(from_client, to_server, whole.clone()) => {}
        () = pass(from_server, to_client, whole) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut whole: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        // Nobody mends it any more where the forwarder is gone.
        if whole.wait_for(|whole| *whole).await.is_err() || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
