//! A gateway before a server that passes all calls but streams, and counts the calls by method.

use std::collections::HashMap;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tower::ServiceExt;

use super::silence::{Expiring, Silence, Spawned};

/// What becomes of KeepAlive and Session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// They pass.
    Passes,
    /// They are unknown, as to an older server.
    Unimplemented,
    /// They are answered with headers, and nothing after them.
    Silent,
    /// They are not answered.
    Unanswered,
    /// They are opened, answer no command, and end after a while with UNAUTHENTICATED.
    Expiring,
}

/// How long a stream is open that ends with UNAUTHENTICATED.
const EXPIRES_AFTER: Duration = Duration::from_millis(300);

/// A gateway on a port of its own. It ends when it is dropped.
#[derive(Debug)]
pub struct Gateway {
    address: String,
    counts: Counts,
    task: JoinHandle<()>,
}

/// What is counted as the calls of each method are: the connections.
pub const CONNECTION: &str = "connection";

/// How often each method was called.
type Counts = Arc<Mutex<HashMap<String, usize>>>;

impl Gateway {
    /// Begins to pass calls to this server.
    pub async fn before(server: &str, streams: Streams) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let endpoint = Endpoint::from_shared(format!("http://{server}")).expect("a URI");
        let to = endpoint.connect().await.expect("a server");
        let counts = Counts::default();
        let counted = Arc::clone(&counts);
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, to.clone(), streams, Arc::clone(&counted)));
            }
        });
        Self { address, counts, task }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How often this method was called.
    pub fn count(&self, method: &str) -> usize {
        let counts = self.counts.lock().expect("no panic");
        counts.get(method).copied().unwrap_or(0)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(socket: TcpStream, to: Channel, streams: Streams, counts: Counts) {
    *counts
        .lock()
        .expect("no panic")
        .entry(CONNECTION.to_owned())
        .or_default() += 1;
    let pass = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        let (_, method) = request.uri().path().rsplit_once('/').expect("a method");
        *counts.lock().expect("no panic").entry(method.to_owned()).or_default() += 1;
        let streams = match method {
            "KeepAlive" | "Session" => streams,
            _ => Streams::Passes,
        };
        let to = to.clone();
        async move {
            let answer = http::Response::builder().header("content-type", "application/grpc");
            match streams {
                Streams::Passes => to.oneshot(request.map(Body::new)).await,
                Streams::Unimplemented => Ok(answer
                    .header("grpc-status", "12")
                    .body(Body::empty())
                    .expect("a response")),
                Streams::Silent => Ok(answer.body(Body::new(Silence)).expect("a response")),
                Streams::Unanswered => pending().await,
                Streams::Expiring => Ok(answer
                    .body(Body::new(Expiring::after(EXPIRES_AFTER)))
                    .expect("a response")),
            }
        }
    });
    let served = hyper::server::conn::http2::Builder::new(Spawned).serve_connection(TokioIo::new(socket), pass);
    // It ends with an error where the client breaks off.
    let _ = served.await;
}
