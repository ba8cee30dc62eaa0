//! Sends the commands that tasks call at the same time as one pipeline.
//!
//! The driver of a connection runs as soon as it has one command, so that without this each command is one write here and
//! one read of the server, whose system calls cost as much as a script.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use futures::stream::{FuturesUnordered, StreamExt};
use futures::{FutureExt, poll};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::coop::unconstrained;
use tokio::task::yield_now;

use super::connection::Connection;
use crate::supervisor::supervise;

/// How many commands a pipeline has at most.
const LONGEST: usize = 256;

type Call = (Cmd, oneshot::Sender<RedisResult<Value>>, Queued);

/// Counts a command that is not sent yet, also if the task panics.
#[derive(Debug)]
struct Queued(Arc<AtomicUsize>);

impl Drop for Queued {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The sender of one connection. Its task ends with the last clone.
#[derive(Debug, Clone)]
pub struct Pipelined {
    connection: Connection,
    /// Bounded by the callers, each of which waits for its answer.
    calls: mpsc::UnboundedSender<Call>,
    /// How many commands the task has not sent yet. Others would overtake them.
    queued: Arc<AtomicUsize>,
    /// Of the command that is sent without the task, whose wake-ups a lone caller need not wait for.
    direct: Arc<Semaphore>,
}

impl Pipelined {
    /// Sends over this connection.
    pub fn over(connection: Connection) -> Self {
        let (calls, received) = mpsc::unbounded_channel();
        let queued = Arc::<AtomicUsize>::default();
        // Without this, tokio's cooperative budget would suspend the task in the middle of many pipelines.
        supervise(
            "redis: pipelines",
            (connection.clone(), received),
            |(connection, calls)| unconstrained(run(connection, calls)).boxed(),
        );
        Self {
            connection,
            calls,
            queued,
            direct: Arc::new(Semaphore::new(1)),
        }
    }

    /// Calls a command. Commands are sent in the order in which this is polled first.
    ///
    /// # Errors
    /// What the server answered, or that it did not answer.
    ///
    /// # Cancellation safety
    /// If dropped after its first poll, the command may be sent all the same.
    pub async fn call(&self, command: Cmd) -> RedisResult<Value> {
        if self.queued.load(Ordering::SeqCst) == 0
            && let Ok(_direct) = self.direct.try_acquire()
        {
            let answer = self.connection.clone().send_packed_command(&command).await;
            return answer.and_then(Value::extract_error);
        }
        let (reply, answer) = oneshot::channel();
        self.queued.fetch_add(1, Ordering::SeqCst);
        let _ = self.calls.send((command, reply, Queued(Arc::clone(&self.queued))));
        answer.await.unwrap_or_else(|_| Err(closed()))
    }
}

fn closed() -> RedisError {
    RedisError::from((ErrorKind::Io, "the connection was closed"))
}

async fn run(connection: &Connection, calls: &mut mpsc::UnboundedReceiver<Call>) {
    let (mut sent, mut batch) = (FuturesUnordered::new(), Vec::new());
    loop {
        tokio::select! {
            biased;
            Some(()) = sent.next() => {}
            received = calls.recv_many(&mut batch, LONGEST) => {
                if received == 0 {
                    break;
                }
                // The tasks that are ready run first, and their commands come along.
                yield_now().await;
                while batch.len() < LONGEST
                    && let Ok(call) = calls.try_recv()
                {
                    batch.push(call);
                }
                sent.push(send(connection.clone(), std::mem::take(&mut batch)));
            }
        }
    }
    while sent.next().await.is_some() {}
}

async fn send(mut connection: Connection, calls: Vec<Call>) {
    let mut pipeline = Pipeline::with_capacity(calls.len());
    let (replies, queued): (Vec<_>, Vec<_>) = calls
        .into_iter()
        .map(|(command, reply, queued)| {
            pipeline.add_command(command);
            (reply, queued)
        })
        .unzip();
    let mut sent = pin!(connection.send_packed_commands(&pipeline, 0, replies.len()));
    // The first poll hands the pipeline to the connection.
    let first = poll!(sent.as_mut());
    drop(queued);
    let answered = match first {
        Poll::Ready(answered) => answered,
        Poll::Pending => sent.await,
    };
    match answered {
        Ok(answers) => {
            for (reply, answer) in replies.into_iter().zip(answers) {
                let _ = reply.send(answer.extract_error());
            }
        }
        Err(error) => {
            for reply in replies {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
