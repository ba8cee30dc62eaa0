//! Steps that count only when enough replicas of the server have them too.
//!
//! They go over a connection of their own, turn by turn: the steps of a turn in one pipeline, and
//! one WAIT behind them on the same connection, for WAIT counts what its own connection wrote. The
//! connection is blocked while it waits, so what arrives meanwhile goes with the next turn.

use std::io;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, RedisResult, Value};
use tokio::time::timeout;

use super::node::UNWRITTEN;
use super::script::{Answer, Ask, Script, is_unknown};
use super::settings::Replicas;
use crate::batch::{BatchSender, BatchBounds, batch};

/// How many steps share a WAIT; one turn at a time, for the next would only queue up behind it.
const BOUNDS: BatchBounds = BatchBounds {
    batch: 256,
    in_flight: 1,
    queue: UNWRITTEN,
};

/// The connection of one server. Clones share it.
#[derive(Debug, Clone)]
pub struct ConfirmedConnection {
    batch: BatchSender<Step, RedisResult<Answer>>,
    limit: Duration,
}

struct Step {
    script: &'static Script,
    key: Vec<u8>,
    args: Vec<Vec<u8>>,
    asking: bool,
}

/// By what a script is called.
#[derive(Clone, Copy)]
enum ScriptRef {
    Name,
    Text,
}

impl ConfirmedConnection {
    /// Makes the turns over a connection until the last clone is dropped. A turn must be answered
    /// within `turn`, which the connection sees to.
    pub fn over(connection: MultiplexedConnection, replicas: Replicas, batch_limit: Duration) -> Self {
        let (batch, turns) = batch(BOUNDS);
        tokio::spawn(turns.run_many(move |steps: Vec<Step>| take(connection.clone(), replicas, steps)));
        // The turn under way, then its own.
        Self { batch, limit: batch_limit * 2 }
    }

    /// Calls a script and says whether enough replicas have what it wrote.
    ///
    /// # Cancellation safety
    /// Dropped before its turn, the step is taken out; dropped later, its outcome is unknown.
    ///
    /// # Errors
    /// What the server answered, or that it did not in time.
    pub async fn call(&self, script: &'static Script, ask: &Ask<'_>) -> RedisResult<Answer> {
        let step = Step {
            script,
            key: ask.key.to_vec(),
            args: ask.args.to_vec(),
            asking: ask.asking,
        };
        match timeout(self.limit, self.batch.ask(step)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(closed)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, closed).into()),
            Err(late) => Err(io::Error::new(io::ErrorKind::TimedOut, late).into()),
        }
    }
}

/// One turn. What the server does not know by name is sent once more by text, with a WAIT of its
/// own: in a pipeline nobody does that for us.
async fn take(mut connection: MultiplexedConnection, replicas: Replicas, steps: Vec<Step>) -> Vec<RedisResult<Answer>> {
    let all: Vec<&Step> = steps.iter().collect();
    let mut answers = send(&mut connection, replicas, &all, ScriptRef::Name).await;
    let is_unknown = |at: &usize| answers[*at].as_ref().is_err_and(is_unknown);
    let unknown: Vec<usize> = (0..steps.len()).filter(is_unknown).collect();
    if !unknown.is_empty() {
        let again: Vec<&Step> = unknown.iter().map(|at| &steps[*at]).collect();
        let known = send(&mut connection, replicas, &again, ScriptRef::Text).await;
        for (at, answer) in unknown.into_iter().zip(known) {
            answers[at] = answer;
        }
    }
    answers
}

async fn send(
    connection: &mut MultiplexedConnection,
    replicas: Replicas,
    steps: &[&Step],
    by: ScriptRef,
) -> Vec<RedisResult<Answer>> {
    let mut pipeline = Pipeline::with_capacity(steps.len() + 1);
    for step in steps {
        if step.asking {
            pipeline.cmd("ASKING");
        }
        let ask = Ask {
            key: &step.key,
            beside: &[],
            args: &step.args,
            asking: step.asking,
        };
        pipeline.add_command(match by {
            ScriptRef::Name => step.script.by_name(&ask),
            ScriptRef::Text => step.script.by_text(&ask),
        });
    }
    let timeout_ms = u64::try_from(replicas.timeout.as_millis()).unwrap_or(u64::MAX);
    pipeline.cmd("WAIT").arg(replicas.count).arg(timeout_ms);
    let asked = pipeline.len();
    match connection.send_packed_commands(&pipeline, 0, asked).await {
        Ok(values) => read(values, replicas, steps),
        Err(error) => steps.iter().map(|_| Err(error.clone())).collect(),
    }
}

/// The answers of a turn: each step's own, and the WAIT's for all.
fn read(mut values: Vec<Value>, replicas: Replicas, steps: &[&Step]) -> Vec<RedisResult<Answer>> {
    let waited = values.pop().unwrap_or(Value::Nil).extract_error();
    let confirmed = waited.and_then(|waited| Ok(redis::from_redis_value::<u32>(waited)?));
    let unconfirmed = match confirmed {
        Ok(took) if took >= replicas.count => None,
        Ok(took) => Some(replicas.too_few(took)),
        Err(error) => Some(error.to_string()),
    };
    let mut values = values.into_iter();
    let answer = |step: &&Step| {
        // What stands before the step is the answer to its ASKING.
        let value = values.nth(usize::from(step.asking)).ok_or_else(cut_short)?;
        Ok(Answer {
            value: value.extract_error()?,
            unconfirmed: unconfirmed.clone(),
        })
    };
    steps.iter().map(answer).collect()
}

fn cut_short() -> RedisError {
    io::Error::new(io::ErrorKind::UnexpectedEof, "a pipeline's answer is cut short").into()
}
