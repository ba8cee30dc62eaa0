//! Sends keep-alives for leases, over a few streams that all holders share.
//!
//! Etcd answers in order within a stream. The answer for a dead lease may take half a second, and delays the answers
//! behind it. Therefore there are several streams, and the session has its own.

use std::collections::VecDeque;
use std::sync::Arc;

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use crate::backend::etcd::cluster::client::ClusterClient;
use crate::backend::etcd::cluster::{Failure, failure};

/// The number of streams.
const STREAMS: usize = 8;
/// How many keep-alives a stream has in flight at most.
const IN_FLIGHT: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct LeaseKeepAlive {
    link: Arc<ClusterClient>,
    streams: Vec<mpsc::Sender<KeepAliveRequest>>,
}

#[derive(Debug)]
struct KeepAliveRequest {
    lease: i64,
    alive: oneshot::Sender<Result<bool, Failure>>,
    /// It was sent before, over a stream that broke.
    again: bool,
}

impl KeepAliveRequest {
    fn answer(self, alive: Result<bool, Failure>) {
        // Fails only if the caller was dropped.
        let _ = self.alive.send(alive);
    }
}

impl LeaseKeepAlive {
    /// Must be called within a tokio runtime. A stream is opened when it is needed, and closed when this is dropped.
    pub fn begin(link: &Arc<ClusterClient>) -> Self {
        let stream = |_| {
            let (sender, requests) = mpsc::channel(IN_FLIGHT);
            tokio::spawn(serve(Arc::clone(link), requests));
            sender
        };
        Self {
            link: Arc::clone(link),
            streams: (0..STREAMS).map(stream).collect(),
        }
    }

    /// Sends a keep-alive for a lease.
    ///
    /// # Errors
    /// Any failure says nothing about the lease.
    pub async fn ask(&self, lease: i64) -> Result<bool, Failure> {
        let (alive, answered) = oneshot::channel();
        // The identifiers of one member's leases differ in their lowest bits.
        let stream = usize::try_from(lease.rem_euclid(STREAMS as i64)).unwrap_or(0);
        let request = async {
            let request = KeepAliveRequest {
                lease,
                alive,
                again: false,
            };
            self.streams[stream]
                .send(request)
                .await
                .map_err(|_| Failure::closed())?;
            answered.await.map_err(|_| Failure::closed())?
        };
        timeout(self.link.request_timeout(), request)
            .await
            .unwrap_or_else(|_| Err(late()))
    }
}

fn late() -> Failure {
    Failure::Unavailable("etcd: a keep-alive was not answered".into())
}

/// Sends the keep-alives of one stream, which is opened again when it breaks: because its member failed, or the auth
/// token of the account that opened it expired. Each keep-alive is sent at most twice.
async fn serve(link: Arc<ClusterClient>, mut requests: mpsc::Receiver<KeepAliveRequest>) {
    let mut broken = VecDeque::new();
    loop {
        let request = match broken.pop_front() {
            Some(request) => request,
            None => match requests.recv().await {
                Some(request) => request,
                None => return,
            },
        };
        match open(&link, request.lease).await {
            Ok(None) => request.answer(Ok(false)),
            Err(failure) => request.answer(Err(failure)),
            Ok(Some((keeper, answers))) => {
                request.answer(Ok(true));
                let mut stream = Stream {
                    keeper,
                    answers,
                    in_flight: VecDeque::new(),
                };
                let failure = stream.serve(&link, &mut broken, &mut requests).await;
                for request in stream.in_flight.into_iter().chain(std::mem::take(&mut broken)) {
                    match request.again {
                        true => request.answer(Err(failure.clone())),
                        false => broken.push_back(KeepAliveRequest { again: true, ..request }),
                    }
                }
            }
        }
    }
}

/// Opens a stream with a keep-alive for this lease. None if the lease is dead.
async fn open(link: &ClusterClient, lease: i64) -> Result<Option<(LeaseKeeper, LeaseKeepAliveStream)>, Failure> {
    let opened = link.call(|mut client| async move {
        match client.lease_keep_alive(lease).await {
            // The client reads the first answer itself, and turns a TTL of zero into this error.
            Err(etcd_client::Error::LeaseKeepAliveError(said)) if said.contains("lease not found") => Ok(None),
            opened => opened.map(Some),
        }
    });
    opened.await
}

/// An open stream, and the requests in flight, in order.
struct Stream {
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    in_flight: VecDeque<KeepAliveRequest>,
}

impl Stream {
    /// Sends the requests that an earlier stream left, then new ones, until the stream breaks or no sender is left.
    /// Returns the cause.
    async fn serve(
        &mut self,
        link: &ClusterClient,
        left: &mut VecDeque<KeepAliveRequest>,
        requests: &mut mpsc::Receiver<KeepAliveRequest>,
    ) -> Failure {
        let mut silent_since = Instant::now();
        while let Some(request) = left.pop_front() {
            if let Err(failure) = self.send(link, request).await {
                return failure;
            }
        }
        loop {
            tokio::select! {
                request = requests.recv(), if self.in_flight.len() < IN_FLIGHT => {
                    let Some(request) = request else {
                        return Failure::closed();
                    };
                    if self.in_flight.is_empty() {
                        silent_since = Instant::now();
                    }
                    if let Err(failure) = self.send(link, request).await {
                        return failure;
                    }
                }
                answer = self.answers.message() => {
                    let (request, answer) = match (self.in_flight.pop_front(), answer) {
                        (Some(request), Ok(Some(answer))) => (request, answer),
                        (request, Err(error)) => return self.broken(request, failure(&error)),
                        (request, Ok(_)) => {
                            return self.broken(request, Failure::Unavailable("etcd: a stream ended".into()));
                        }
                    };
                    if answer.id() != request.lease {
                        return self.broken(Some(request), Failure::Unavailable("etcd: answers are out of order".into()));
                    }
                    request.answer(Ok(answer.ttl() > 0));
                    silent_since = Instant::now();
                }
                () = sleep_until(silent_since + link.request_timeout()), if !self.in_flight.is_empty() => {
                    link.turn_away();
                    return late();
                }
            }
        }
    }

    async fn send(&mut self, link: &ClusterClient, request: KeepAliveRequest) -> Result<(), Failure> {
        self.keeper.id = request.lease;
        let sent = timeout(link.request_timeout(), self.keeper.keep_alive()).await;
        self.in_flight.push_back(request);
        sent.map_err(|_| late())?.map_err(|error| failure(&error))
    }

    fn broken(&mut self, request: Option<KeepAliveRequest>, failure: Failure) -> Failure {
        self.in_flight.extend(request);
        failure
    }
}
