//! A replica's client: one session, with one connection after another.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::tree::store::{
    Answer as Answered, CommitBounds, Committed, Connected, ConnectionState, Event, Failure, Op, Stat, Tree,
};
use futures::future::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Answer, AnswerTo, Ask, Ensemble, SESSION, Sent};

type Request = (Ask, AnswerTo);
/// The number of the present connection, and where its requests go.
type Current = Option<(u64, mpsc::UnboundedSender<Request>)>;

/// See the module.
#[derive(Debug)]
pub struct Connection {
    current: Arc<Mutex<Current>>,
    state: watch::Sender<ConnectionState>,
    /// Whether its replica has died: nothing is sent or answered any more.
    dead: watch::Sender<bool>,
}

impl Connection {
    /// Begins to connect.
    pub fn open(ensemble: &Ensemble, events: mpsc::UnboundedSender<Event>) -> Arc<Self> {
        let connection = Arc::new(Self {
            current: Arc::default(),
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
        let (answer, answered) = oneshot::channel();
        let sent = match &*self.current.lock() {
            Some((now, requests)) if generation.is_none_or(|of| of == *now) => requests.send((ask, answer)).is_ok(),
            _ => false,
        };
        async move {
            if !sent {
                return Err(Failure::NotSent("there is no such connection".into()));
            }
            let answer = answered.await.map_err(|_| lost())??;
            read(answer).ok_or_else(Failure::malformed)
        }
        .boxed()
    }
}

fn lost() -> Failure {
    Failure::Unavailable("the connection was lost".into())
}

impl Tree for Connection {
    fn state(&self) -> watch::Receiver<ConnectionState> {
        self.state.subscribe()
    }

    fn commit(&self, generation: u64, guards: &[Op], steps: &[Vec<Op>]) -> Answered<Committed> {
        let multi = Ask::Multi(Committed::ops(guards, steps));
        let done = self.ask(Some(generation), multi, |answer| match answer {
            Answer::Done(done) => Some(done),
            _ => None,
        });
        let (guards, steps): (_, Vec<_>) = (guards.len(), steps.iter().map(Vec::len).collect());
        async move { Committed::of(done.await, guards, &steps) }.boxed()
    }

    fn bounds(&self) -> CommitBounds {
        CommitBounds::ALL_OR_NONE
    }

    fn get(&self, generation: u64, path: &str) -> Answered<Option<(Vec<u8>, Stat)>> {
        self.ask(Some(generation), Ask::Get(path.into()), |answer| match answer {
            Answer::Data(data) => Some(data),
            _ => None,
        })
    }

    fn children(&self, generation: u64, path: &str) -> Answered<Option<(Vec<String>, Stat)>> {
        self.ask(Some(generation), Ask::Children(path.into()), |answer| match answer {
            Answer::Children(children) => Some(children),
            _ => None,
        })
    }

    fn sync(&self, generation: u64, _path: &str) -> Answered<()> {
        self.ask(Some(generation), Ask::Sync, |_| Some(()))
    }

    fn watch(&self, generation: u64, path: &str) -> Answered<()> {
        self.ask(Some(generation), Ask::Watch(path.into()), |_| Some(()))
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
        // Requests on their way to the server, and answers and events on their way back, each in their order.
        let mut requests: VecDeque<(Instant, Request)> = VecDeque::new();
        let mut answers: VecDeque<(Instant, Sent)> = VecDeque::new();
        let mut is_closed = false;
        let mut failed: Vec<AnswerTo> = Vec::new();
        let mut left = Vec::new();
        loop {
            let next_request = at(requests.front().map(|(at, _)| *at));
            let next_answer = at(answers.front().map(|(at, _)| *at));
            tokio::select! {
                biased;
                _ = cuts.changed() => break,
                _ = dead.wait_for(|dead| *dead) => break,
                () = next_answer => match answers.pop_front() {
                    Some((_, Sent::Event(event))) => drop(self.events.send(event)),
                    Some((_, Sent::Answer(to, answer))) => drop(to.send(answer)),
                    None => {}
                },
                Some(one) = sent.recv() => {
                    let arrives = self.arrives(answers.back().map(|(at, _)| *at));
                    answers.push_back((arrives, one));
                }
                request = asked.recv() => {
                    let Some(request) = request else { break };
                    let arrives = self.arrives(requests.back().map(|(at, _)| *at));
                    requests.push_back((arrives, request));
                }
                () = next_request => {
                    let Some((_, (ask, to))) = requests.pop_front() else { continue };
                    let (is_cut, is_unanswered) = {
                        let mut state = self.ensemble.state.lock();
                        let (cut, unanswered) = (state.faults.cut, state.faults.unanswered);
                        (state.dice.happens(cut), state.dice.happens(unanswered))
                    };
                    if is_cut {
                        left.push(ask);
                        failed.push(to);
                        break;
                    }
                    let Some(answer) = self.ensemble.apply(link, &ask) else {
                        failed.push(to);
                        break;
                    };
                    if is_unanswered {
                        failed.push(to);
                        break;
                    }
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
            requests.push_back((Instant::now(), request));
        }
        for (_, (ask, to)) in requests {
            left.push(ask);
            failed.push(to);
        }
        self.ensemble.broken(link, left);
        while let Ok(one) = sent.try_recv() {
            answers.push_back((Instant::now(), one));
        }
        let lost_answers = answers.into_iter().filter_map(|(_, sent)| match sent {
            Sent::Answer(to, _) => Some(to),
            Sent::Event(_) => None,
        });
        for to in lost_answers.chain(failed) {
            let _ = to.send(Err(lost()));
        }
        is_closed
    }

    /// When something arrives that is sent now, behind what was sent before.
    fn arrives(&self, before: Option<Instant>) -> Instant {
        let mut state = self.ensemble.state.lock();
        let delay = state.faults.delay.clone();
        let arrives = Instant::now() + state.dice.within(&delay);
        before.map_or(arrives, |before| arrives.max(before))
    }
}

/// Waits until then, or for ever.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
