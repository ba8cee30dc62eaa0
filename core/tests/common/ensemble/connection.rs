//! A replica's client: one session, with one connection after another.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::tree::store::{
    Answer as Answered, CommitBounds, Committed, Connected, ConnectionState, Event, Failure, Op, Stat, Tree,
};
use futures::future::{BoxFuture, FutureExt, Shared};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Answer, AnswerTo, Ask, Ensemble, Fault, SESSION, Sent, Steps, lost};

type Request = (Ask, AnswerTo);
/// The number of the present connection, and where its requests go.
type Current = Option<(u64, mpsc::UnboundedSender<Request>)>;

/// What is on its way, by the time of its arrival and the order of its sending.
#[derive(Debug)]
struct UnderWay<T> {
    arrivals: BTreeMap<(Instant, u64), T>,
    sent: u64,
    last: Option<Instant>,
}

impl<T> Default for UnderWay<T> {
    fn default() -> Self {
        Self {
            arrivals: BTreeMap::new(),
            sent: 0,
            last: None,
        }
    }
}

impl<T> UnderWay<T> {
    /// Arrives at this time; `in_order`, behind all that was sent in order before.
    fn send(&mut self, mut arrives: Instant, in_order: bool, one: T) {
        if in_order {
            arrives = self.last.map_or(arrives, |last| arrives.max(last));
            self.last = Some(arrives);
        }
        self.sent += 1;
        self.arrivals.insert((arrives, self.sent), one);
    }

    /// Waits for the first arrival, or for ever.
    async fn wait(&self) {
        match self.arrivals.first_key_value() {
            Some(((time, _), _)) => sleep_until(*time).await,
            None => std::future::pending().await,
        }
    }

    fn pop(&mut self) -> Option<T> {
        self.arrivals.pop_first().map(|(_, one)| one)
    }

    fn into_rest(self) -> impl Iterator<Item = T> {
        self.arrivals.into_values()
    }
}

/// Resolves when a watch is answered.
type Opening = Shared<BoxFuture<'static, Result<(), Failure>>>;

/// See the module.
#[derive(Debug)]
pub struct Connection {
    steps: Steps,
    current: Arc<Mutex<Current>>,
    /// The last watch of each node over each connection, which a list of the node follows if requests have no order.
    opening: Mutex<HashMap<(u64, String), Opening>>,
    state: watch::Sender<ConnectionState>,
    /// Whether its replica has died: nothing is sent or answered any more.
    dead: watch::Sender<bool>,
}

impl Connection {
    /// Begins to connect.
    pub fn open(ensemble: &Ensemble, events: mpsc::UnboundedSender<Event>) -> Arc<Self> {
        let connection = Arc::new(Self {
            steps: ensemble.state.lock().steps,
            current: Arc::default(),
            opening: Mutex::default(),
            state: watch::Sender::new(ConnectionState::Disconnected("not connected yet".into())),
            dead: watch::Sender::new(false),
        });
        let task = Task {
            ensemble: ensemble.clone(),
            current: Arc::clone(&connection.current),
            state: connection.state.clone(),
            dead: connection.dead.subscribe(),
            events,
        };
        tokio::spawn(task.run());
        connection
    }

    /// Whether the replica hears nothing and is not heard, which ends when it is connected again.
    pub fn cut_off(&self, is_cut_off: bool) {
        self.dead.send_replace(is_cut_off);
    }

    fn ask<T: Send + 'static>(
        &self,
        generation: Option<u64>,
        ask: Ask,
        read: impl FnOnce(Answer) -> Option<T> + Send + 'static,
    ) -> Answered<T> {
        let answered = send(&self.current, generation, ask);
        async move { read(answered.await?).ok_or_else(Failure::malformed) }.boxed()
    }
}

/// Sends a request over a connection, if it is the present one.
fn send(
    current: &Mutex<Current>,
    generation: Option<u64>,
    ask: Ask,
) -> impl Future<Output = Result<Answer, Failure>> + use<> {
    let (answer, answered) = oneshot::channel();
    let sent = match &*current.lock() {
        Some((now, requests)) if generation.is_none_or(|of| of == *now) => requests.send((ask, answer)).is_ok(),
        _ => false,
    };
    async move {
        if !sent {
            return Err(Failure::NotSent("there is no such connection".into()));
        }
        answered.await.map_err(|_| lost())?
    }
}

impl Tree for Connection {
    fn state(&self) -> watch::Receiver<ConnectionState> {
        self.state.subscribe()
    }

    fn commit(&self, generation: u64, guards: &[Op], steps: &[Vec<Op>]) -> Answered<Committed> {
        let commit = Ask::Commit(guards.to_vec(), steps.to_vec());
        self.ask(Some(generation), commit, |answer| match answer {
            Answer::Committed(committed) => Some(committed),
            _ => None,
        })
    }

    fn bounds(&self) -> CommitBounds {
        match self.steps {
            Steps::AllOrNone => CommitBounds::ALL_OR_NONE,
            Steps::Independent => CommitBounds {
                steps: 96,
                step_ops: 24,
                in_flight: 2,
                independent: true,
                numbers_leap: false,
            },
        }
    }

    fn get(&self, generation: u64, path: &str) -> Answered<Option<(Vec<u8>, Stat)>> {
        self.ask(Some(generation), Ask::Get(path.into()), |answer| match answer {
            Answer::Data(data) => Some(data),
            _ => None,
        })
    }

    fn children(&self, generation: u64, path: &str) -> Answered<Option<(Vec<String>, Stat)>> {
        let list = Ask::Children(path.into());
        let read = |answer| match answer {
            Answer::Children(children) => Ok(children),
            _ => Err(Failure::malformed()),
        };
        let opening = self.opening.lock().get(&(generation, path.to_owned())).cloned();
        let Some(opening) = opening else {
            let answered = send(&self.current, Some(generation), list);
            return async move { read(answered.await?) }.boxed();
        };
        let current = Arc::clone(&self.current);
        async move {
            opening.await?;
            let answered = send(&current, Some(generation), list);
            read(answered.await?)
        }
        .boxed()
    }

    fn sync(&self, generation: u64, _path: &str) -> Answered<()> {
        self.ask(Some(generation), Ask::Sync, |_| Some(()))
    }

    fn watch(&self, generation: u64, path: &str) -> Answered<()> {
        let watch = self.ask(Some(generation), Ask::Watch(path.into()), |_| Some(()));
        if self.steps == Steps::AllOrNone {
            return watch;
        }
        let watch = watch.shared();
        self.opening.lock().insert((generation, path.to_owned()), watch.clone());
        watch.boxed()
    }

    fn unwatch(&self, generation: u64, path: &str) -> Answered<()> {
        self.ask(Some(generation), Ask::Unwatch(path.into()), |_| Some(()))
    }

    fn close(&self) -> Answered<()> {
        self.ask(None, Ask::Close, |_| Some(()))
    }
}

struct Task {
    ensemble: Ensemble,
    current: Arc<Mutex<Current>>,
    state: watch::Sender<ConnectionState>,
    dead: watch::Receiver<bool>,
    events: mpsc::UnboundedSender<Event>,
}

impl Task {
    async fn run(mut self) {
        let (mut session, mut heard, mut generation) = (None, Instant::now(), 0);
        loop {
            let pause = self.pause();
            sleep(pause).await;
            if self.dead.wait_for(|dead| !dead).await.is_err() {
                return;
            }
            // The servers have ended a session that they have not heard from.
            session = session.filter(|_| heard.elapsed() <= SESSION);
            generation += 1;
            let (sends, sent) = mpsc::unbounded_channel();
            let (link, now) = self.ensemble.state.lock().connect(session, sends);
            session = Some(now);
            let (requests, asked) = mpsc::unbounded_channel();
            *self.current.lock() = Some((generation, requests));
            self.state.send_replace(ConnectionState::Connected(Connected {
                generation,
                session: now,
                server: "a simulated server".into(),
                refusal: None,
            }));
            let is_closed = self.serve(link, asked, sent).await;
            heard = Instant::now();
            if is_closed {
                return;
            }
        }
    }

    /// How long it stays away after a connection has broken.
    fn pause(&self) -> Duration {
        let mut state = self.ensemble.state.lock();
        let away = state.faults.away;
        match state.dice.happens(away) {
            true => SESSION + state.dice.within(&(0..2_000_000)),
            false => state.dice.within(&(0..40_000)),
        }
    }

    /// Serves one connection until it breaks, or the session is closed.
    async fn serve(
        &self,
        link: u64,
        mut asked: mpsc::UnboundedReceiver<Request>,
        mut sent: mpsc::UnboundedReceiver<Sent>,
    ) -> bool {
        let (mut cuts, mut dead) = (self.ensemble.cuts.subscribe(), self.dead.clone());
        // Requests on their way to the server, and answers and events on their way back.
        let (mut requests, mut answers) = (UnderWay::<Request>::default(), UnderWay::<Sent>::default());
        let mut is_closed = false;
        let mut failed: Vec<AnswerTo> = Vec::new();
        let mut left = Vec::new();
        let is_in_order = self.ensemble.state.lock().steps == Steps::AllOrNone;
        loop {
            tokio::select! {
                biased;
                _ = cuts.changed() => break,
                _ = dead.wait_for(|dead| *dead) => break,
                () = answers.wait() => match answers.pop() {
                    Some(Sent::Event(event)) => drop(self.events.send(event)),
                    Some(Sent::Answer(to, answer)) => drop(to.send(answer)),
                    None => {}
                },
                Some(one) = sent.recv() => {
                    let is_event = matches!(one, Sent::Event(_));
                    answers.send(self.arrival(), is_in_order || is_event, one);
                }
                request = asked.recv() => {
                    let Some(request) = request else { break };
                    requests.send(self.arrival(), is_in_order, request);
                }
                () = requests.wait() => {
                    let Some((ask, to)) = requests.pop() else { continue };
                    match self.ensemble.meets(&ask) {
                        None => {}
                        Some(Fault::NotSent) => {
                            let _ = to.send(Err(Failure::NotSent("it was not sent".into())));
                            continue;
                        }
                        Some(Fault::Cut) => {
                            left.push((ask, to));
                            break;
                        }
                        Some(Fault::Unanswered) => {
                            let _ = self.ensemble.apply(link, &ask);
                            failed.push(to);
                            break;
                        }
                    }
                    let Some(answer) = self.ensemble.apply(link, &ask) else {
                        failed.push(to);
                        break;
                    };
                    // Behind the events that it has caused.
                    let state = self.ensemble.state.lock();
                    if let Some(link) = state.links.get(&link) {
                        let _ = link.sends.send(Sent::Answer(to, answer));
                    }
                    drop(state);
                    if matches!(ask, Ask::Close) {
                        is_closed = true;
                        break;
                    }
                }
            }
        }
        // The state changes before the requests fail, so that nobody takes this connection for a live one.
        *self.current.lock() = None;
        self.state
            .send_replace(ConnectionState::Disconnected("the connection was lost".into()));
        while let Ok(request) = asked.try_recv() {
            requests.send(Instant::now(), is_in_order, request);
        }
        left.extend(requests.into_rest());
        self.ensemble.broken(link, left);
        while let Ok(one) = sent.try_recv() {
            answers.send(Instant::now(), is_in_order, one);
        }
        for sent in answers.into_rest() {
            let Sent::Answer(to, answer) = sent else { continue };
            match is_in_order || self.ensemble.state.lock().dice.heads() {
                true => failed.push(to),
                // It goes over a stream of its own.
                false => drop(to.send(answer)),
            }
        }
        for to in failed {
            let _ = to.send(Err(lost()));
        }
        is_closed
    }

    /// When something arrives that is sent now.
    fn arrival(&self) -> Instant {
        let mut state = self.ensemble.state.lock();
        let delay = state.faults.delay.clone();
        Instant::now() + state.dice.within(&delay)
    }
}
