//! How a session ends, and the waits in it.

use super::events::{event, failed, lease_error, result};
use super::{Phase, Session};
use crate::api::proto::session_event::command_result::Outcome;
use crate::api::proto::session_event::{Closed, Draining, Event};
use crate::api::status;
use crate::error::Error;
use tonic::Status;

impl Session {
    /// How the session ends, if everything is done that it waits for.
    pub(super) fn end(&mut self) -> Option<Result<(), Status>> {
        let is_answered = self.commands.is_empty() && self.watches.len() == 0;
        let is_idle = self.running.is_empty() && is_answered && self.beats() == 0;
        if !is_idle {
            return None;
        }
        if let Phase::Closing { id, releases } = self.phase {
            if releases {
                self.keeper.release_all();
            }
            self.phase = Phase::Releasing { id };
        }
        match self.phase {
            Phase::Open | Phase::Closing { .. } => None,
            Phase::Ended => Some(Ok(())),
            Phase::Draining => Some(Err(status::of(Error::Draining))),
            Phase::Releasing { id } => {
                let not_released = self.keeper.not_released()?;
                let not_released = not_released.into_iter().map(|(id, error)| lease_error(id, &error));
                let closed = Closed {
                    not_released: not_released.collect(),
                };
                self.answer(id, Outcome::Close(closed));
                Some(Ok(()))
            }
        }
    }

    /// Takes no more commands, and ends the waits.
    pub(super) fn stop(&mut self, phase: Phase) {
        self.phase = phase;
        // Before the connection breaks: what its calls have is not kept.
        if let Some(session) = self.state.session() {
            session.ended();
        }
        let waits: Vec<u64> = self.waits.keys().copied().collect();
        waits.into_iter().for_each(|id| self.cancel(id));
        self.watches.cancel_all();
    }

    /// Ends the wait of an Acquire, or a watch.
    pub(super) fn cancel(&mut self, id: u64) {
        self.watches.cancel(id);
        let Some(wait) = self.waits.get(&id) else { return };
        wait.control.cancelled.cancel();
        if let Some((_, next)) = self.commands.take(id) {
            self.forget_wait(id);
            self.events.push(result(id, Err(status::wait_cancelled())));
            self.start_all(next);
        }
    }

    /// Takes no more commands. The namespaces end the waits of Acquires that have started.
    pub(super) fn drain(&mut self) {
        self.phase = Phase::Draining;
        self.events.push(event(Event::Draining(Draining {})).into());
        self.keeper.end();
        let beats = self.beats.drain(..).chain(self.next_beats.drain(..));
        self.events.extend(beats.map(|id| failed(id, Error::Draining)));
        self.drain_watches();
        for id in self.commands.held_up_acquires() {
            self.end_held_up(id);
        }
    }
}
