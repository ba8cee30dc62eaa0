//! Signs of life for leases, over a few streams that all holders share.
//!
//! Etcd answers in order within a stream, and the answer for a dead lease may take half a second,
//! which those behind it wait for: so there are several streams, and the session has its own.

use std::collections::VecDeque;
use std::sync::Arc;

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::cluster_client::{Failure, ClusterClient, failure};

/// How many streams there are.
const STREAMS: usize = 8;
/// How many questions a stream has on their way at most.
const UNDER_WAY: usize = 256;

/// Where signs of life are asked for.
#[derive(Debug)]
pub struct LeaseKeepAlive {
    link: Arc<ClusterClient>,
    streams: Vec<mpsc::Sender<Asked>>,
}

#[derive(Debug)]
struct Asked {
    lease: i64,
    alive: oneshot::Sender<Result<bool, Failure>>,
    /// A stream broke under it before.
    again: bool,
}

impl Asked {
    fn answer(self, alive: Result<bool, Failure>) {
        // Who asked may have gone.
        let _ = self.alive.send(alive);
    }
}

impl LeaseKeepAlive {
    /// Must be called within a tokio runtime; a stream is opened when it is needed, and ends with
    /// this value.
    pub fn begin(link: &Arc<ClusterClient>) -> Self {
        let stream = |_| {
            let (asked, questions) = mpsc::channel(UNDER_WAY);
            tokio::spawn(serve(Arc::clone(link), questions));
            asked
        };
        Self {
            link: Arc::clone(link),
            streams: (0..STREAMS).map(stream).collect(),
        }
    }

    /// Gives a lease a sign of life. False if it is dead, which is final.
    ///
    /// # Errors
    /// Any failure says nothing about the lease.
    pub async fn ask(&self, lease: i64) -> Result<bool, Failure> {
        let (alive, answered) = oneshot::channel();
        // The identifiers of one member's leases differ in their lowest bits.
        let stream = usize::try_from(lease.rem_euclid(STREAMS as i64)).unwrap_or(0);
        let asked = async {
            let closed = || Failure::Unavailable("the namespace is closed".into());
            let asked = Asked {
                lease,
                alive,
                again: false,
            };
            self.streams[stream].send(asked).await.map_err(|_| closed())?;
            answered.await.map_err(|_| closed())?
        };
        timeout(self.link.wait_policy(), asked)
            .await
            .unwrap_or_else(|_| Err(late()))
    }
}

fn late() -> Failure {
    Failure::Unavailable("etcd: a sign of life was not answered".into())
}

/// Serves the questions of one stream, over one after another where they break: with their member, or
/// with the token of the account that opened them. Each question is asked twice at most.
async fn serve(link: Arc<ClusterClient>, mut questions: mpsc::Receiver<Asked>) {
    let mut broken = VecDeque::new();
    loop {
        let asked = match broken.pop_front() {
            Some(asked) => asked,
            None => match questions.recv().await {
                Some(asked) => asked,
                None => return,
            },
        };
        match open(&link, asked.lease).await {
            Ok(None) => asked.answer(Ok(false)),
            Err(failure) => asked.answer(Err(failure)),
            Ok(Some((keeper, answers))) => {
                asked.answer(Ok(true));
                let mut stream = Stream {
                    keeper,
                    answers,
                    under_way: VecDeque::new(),
                };
                let failure = stream.serve(&link, &mut broken, &mut questions).await;
                for asked in stream.under_way.into_iter().chain(std::mem::take(&mut broken)) {
                    match asked.again {
                        true => asked.answer(Err(failure.clone())),
                        false => broken.push_back(Asked { again: true, ..asked }),
                    }
                }
            }
        }
    }
}

/// Opens a stream with a sign of life for this lease; nothing if it is dead.
async fn open(link: &ClusterClient, lease: i64) -> Result<Option<(LeaseKeeper, LeaseKeepAliveStream)>, Failure> {
    let opened = link.call(|mut client| async move {
        match client.lease_keep_alive(lease).await {
            // The client reads the first answer itself; so it says that its TTL was zero.
            Err(etcd_client::Error::LeaseKeepAliveError(said)) if said.contains("lease not found") => Ok(None),
            opened => opened.map(Some),
        }
    });
    opened.await
}

/// An open stream, and who waits for its answers, in order.
struct Stream {
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    under_way: VecDeque<Asked>,
}

impl Stream {
    /// First what another stream left, then the questions, until it breaks or nobody asks any more;
    /// then why.
    async fn serve(
        &mut self,
        link: &ClusterClient,
        left: &mut VecDeque<Asked>,
        questions: &mut mpsc::Receiver<Asked>,
    ) -> Failure {
        let mut silent_since = Instant::now();
        while let Some(asked) = left.pop_front() {
            if let Err(failure) = self.send(link, asked).await {
                return failure;
            }
        }
        loop {
            tokio::select! {
                asked = questions.recv(), if self.under_way.len() < UNDER_WAY => {
                    let Some(asked) = asked else {
                        return Failure::Unavailable("the namespace is closed".into());
                    };
                    if self.under_way.is_empty() {
                        silent_since = Instant::now();
                    }
                    if let Err(failure) = self.send(link, asked).await {
                        return failure;
                    }
                }
                answer = self.answers.message() => {
                    let (asked, answer) = match (self.under_way.pop_front(), answer) {
                        (Some(asked), Ok(Some(answer))) => (asked, answer),
                        (asked, Err(error)) => return self.broken(asked, failure(&error)),
                        (asked, Ok(_)) => return self.broken(asked, Failure::Unavailable("etcd: a stream ended".into())),
                    };
                    if answer.id() != asked.lease {
                        return self.broken(Some(asked), Failure::Unavailable("etcd: answers are out of order".into()));
                    }
                    asked.answer(Ok(answer.ttl() > 0));
                    silent_since = Instant::now();
                }
                () = sleep_until(silent_since + link.wait_policy()), if !self.under_way.is_empty() => {
                    link.turn_away();
                    return late();
                }
            }
        }
    }

    async fn send(&mut self, link: &ClusterClient, asked: Asked) -> Result<(), Failure> {
        self.keeper.id = asked.lease;
        let sent = timeout(link.wait_policy(), self.keeper.keep_alive()).await;
        self.under_way.push_back(asked);
        sent.map_err(|_| late())?.map_err(|error| failure(&error))
    }

    fn broken(&mut self, asked: Option<Asked>, failure: Failure) -> Failure {
        self.under_way.extend(asked);
        failure
    }
}
