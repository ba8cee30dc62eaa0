//! What makes two states one: what can never take effect any more is forgotten, zxids are numbered anew.

use super::state::{CALLS, Call, Client, Holder, Multi, Releasing, Replica, Stage, State, Waiter, Watch};
use super::{Flaw, Protocol};

impl Protocol {
    pub fn settle(&self, state: &mut State) {
        if !self.reads_apart {
            state.forget_versions();
        }
        for call in 0..self.calls() {
            self.forget_nodes(state, call);
        }
        for call in 0..self.calls() {
            self.forget_late(state, call);
            forget_stage(&mut state.calls[call]);
            let now = &state.calls[call];
            if now.stage == Stage::Done && !now.late[0].is_some() {
                state.left &= !(1 << call);
            }
        }
        self.forget_clients(state);
        state.replicas.iter_mut().for_each(forget_replica);
        state.renumber();
    }

    fn forget_nodes(&self, state: &mut State, call: usize) {
        if !state.holds(call) {
            state.holders[call] = Holder::default();
            state.over[call] = 0;
            if !self.has(Flaw::OnePathForEachClaim) {
                state.replicas.iter_mut().for_each(|replica| replica.watched[call] = 0);
            }
        }
        if !state.waits(call) {
            state.waiters[call] = Waiter::default();
        }
    }

    /// A late step whose fence was raised never takes effect.
    fn forget_late(&self, state: &mut State, call: usize) {
        for place in 0..2 {
            let late = state.calls[call].late[place];
            if late.is_some() && !self.passes_fence(state, &late) && !late.step.is_undo() {
                state.calls[call].late[place] = Multi::default();
            }
        }
        let late = &mut state.calls[call].late;
        if !late[0].is_some() {
            late.swap(0, 1);
        }
    }

    fn forget_clients(&self, state: &mut State) {
        let holders = state.holders;
        for client in &mut state.clients {
            if !client.believes {
                client.version = 0;
            }
            let steps = [client.renewal, client.late_renewal, client.release, client.late_release];
            let is_idle = !client.believes && !steps.iter().any(Multi::is_some);
            let holder = holders[usize::from(client.holder)];
            let is_there = holder.is_there && holder.token == client.token;
            let has_ended = client.releasing == Releasing::Done || !is_there;
            if !self.has(Flaw::OnePathForEachClaim) && client.was_answered && is_idle && has_ended {
                // Whatever it does now changes nothing.
                *client = Client {
                    was_answered: true,
                    releasing: Releasing::Done,
                    ..Client::default()
                };
            }
        }
    }
}

fn forget_stage(call: &mut Call) {
    match call.stage {
        Stage::Done => {
            *call = Call {
                stage: Stage::Done,
                late: call.late,
                is_abandoned: call.is_abandoned,
                ..Call::default()
            };
        }
        Stage::Undo | Stage::Undoing => {
            *call = Call {
                watch: Watch::Nothing,
                is_in_doubt: false,
                looked_first: call.is_unknown && call.looked_first,
                holder: 0,
                version: 0,
                token: 0,
                was_queued: false,
                epoch: 0,
                judged_early: false,
                ..*call
            };
        }
        Stage::Holds => {
            *call = Call {
                watch: Watch::Nothing,
                is_in_doubt: false,
                was_queued: false,
                epoch: 0,
                judged_early: false,
                ..*call
            };
        }
        Stage::Waits | Stage::SetsAWatch => {}
        Stage::Idle | Stage::Sent | Stage::IsNext | Stage::Unknown => call.watch = Watch::Nothing,
    }
}

fn forget_replica(replica: &mut Replica) {
    if replica.expires == 0 {
        replica.expires_version = 0;
        replica.expires_path = 0;
    }
    if !replica.is_up {
        replica.watched = [0; CALLS];
    }
}
