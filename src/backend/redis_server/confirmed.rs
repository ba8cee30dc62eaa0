//! Steps that count only if enough replicas of the server have received them.
//!
//! They have a connection of their own and run in batches: the steps of a batch in one pipeline,
//! followed by one WAIT on the same connection, because WAIT counts only the writes of its own
//! connection. WAIT blocks the connection, so steps that arrive meanwhile go into the next batch.
//!
//! A grant that too few replicas confirm is an error, and its undo takes it back. Until the lock's next confirmed
//! commit no answer says that it is held without another write: a retry would otherwise find the unconfirmed grant by
//! a read.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, RedisResult, Value};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::connection::{Connection, WRITE_BUFFER};
use super::script::{Answer, Script, ScriptCall, ScriptRef, is_unknown};
use super::settings::Replicas;
use crate::batch::{BatchBounds, BatchSender, batch};
use crate::supervisor::supervise;

/// How many steps share a WAIT; one batch at a time, because WAIT would block the next batch
/// anyway.
const BOUNDS: BatchBounds = BatchBounds {
    batch: 256,
    in_flight: 1,
    queue: WRITE_BUFFER,
};

/// The connection for confirmed steps to one server. Clones share it.
#[derive(Debug, Clone)]
pub struct ConfirmedConnection {
    sender: BatchSender<Step, RedisResult<Answer>>,
    limit: Duration,
}

struct Step {
    script: &'static Script,
    /// How the server knows the script.
    by: ScriptRef,
    key: Vec<u8>,
    args: Vec<Vec<u8>>,
    asking: bool,
}

impl ConfirmedConnection {
    /// Runs the batches over a connection until the last clone is dropped. `batch_limit` is the
    /// connection's response timeout: it bounds each batch. `forgotten` is notified when the server does not know a
    /// function.
    pub fn over(connection: Connection, replicas: Replicas, batch_limit: Duration, forgotten: Arc<Notify>) -> Self {
        let (sender, receiver) = batch(BOUNDS);
        supervise("redis: confirmed steps", receiver, move |receiver| {
            let (connection, forgotten) = (connection.clone(), Arc::clone(&forgotten));
            let run = move |steps| run_batch(connection.clone(), replicas, Arc::clone(&forgotten), steps);
            receiver.run_many(run).boxed()
        });
        // The batch in flight, then the step's own batch.
        Self {
            sender,
            limit: batch_limit * 2,
        }
    }

    /// Calls a script `by` what the server knows it, and reports whether enough replicas have received its writes.
    ///
    /// # Cancellation safety
    /// If the future is dropped before its batch begins, the step is removed; if later, its outcome
    /// is unknown.
    ///
    /// # Errors
    /// The server's error, or a timeout.
    pub async fn call(&self, script: &'static Script, by: ScriptRef, call: &ScriptCall<'_>) -> RedisResult<Answer> {
        let step = Step {
            script,
            by,
            key: call.key.to_vec(),
            args: call.args.to_vec(),
            asking: call.asking,
        };
        match timeout(self.limit, self.sender.ask(step)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(closed)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, closed).into()),
            Err(late) => Err(io::Error::new(io::ErrorKind::TimedOut, late).into()),
        }
    }
}

/// Runs a batch. Scripts that the server does not know by name are sent again by text, with their
/// own WAIT: the client does not do that in a pipeline.
async fn run_batch(
    mut connection: Connection,
    replicas: Replicas,
    forgotten: Arc<Notify>,
    steps: Vec<Step>,
) -> Vec<RedisResult<Answer>> {
    let all: Vec<&Step> = steps.iter().collect();
    let mut answers = send(&mut connection, replicas, &all, None).await;
    let is_unknown = |at: &usize| answers[*at].as_ref().is_err_and(is_unknown);
    let unknown: Vec<usize> = (0..steps.len()).filter(is_unknown).collect();
    if !unknown.is_empty() {
        let again: Vec<&Step> = unknown.iter().map(|at| &steps[*at]).collect();
        let repeated = send(&mut connection, replicas, &again, Some(ScriptRef::Text)).await;
        // Text serves until the functions are loaded again.
        if again.iter().any(|step| step.by == ScriptRef::Function) {
            forgotten.notify_one();
        }
        for (at, answer) in unknown.into_iter().zip(repeated) {
            answers[at] = answer;
        }
    }
    answers
}

/// Sends the steps and a WAIT. Scripts are called `by` this, or by what each step says.
async fn send(
    connection: &mut MultiplexedConnection,
    replicas: Replicas,
    steps: &[&Step],
    by: Option<ScriptRef>,
) -> Vec<RedisResult<Answer>> {
    let mut pipeline = Pipeline::with_capacity(steps.len() + 1);
    for step in steps {
        if step.asking {
            pipeline.cmd("ASKING");
        }
        let call = ScriptCall {
            asking: step.asking,
            ..ScriptCall::of(&step.key, &step.args)
        };
        pipeline.add_command(step.script.command(&call, by.unwrap_or(step.by)));
    }
    let timeout_ms = u64::try_from(replicas.timeout.as_millis()).unwrap_or(u64::MAX);
    pipeline.cmd("WAIT").arg(replicas.count).arg(timeout_ms);
    let count = pipeline.len();
    match connection.send_packed_commands(&pipeline, 0, count).await {
        Ok(values) => read(values, replicas, steps),
        Err(error) => steps.iter().map(|_| Err(error.clone())).collect(),
    }
}

/// Splits the replies of a batch: one for each step, and the WAIT's for all of them.
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
        // The value before the step's own is the reply to its ASKING.
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
