//! A Lua script, how it is called, and its reply.
//!
//! Calls are not batched: the client library already joins what waits to be sent (with 64 callers Redis reads 0.07
//! times per pair). Batches made a contended lock slower, 2,800 against 3,000 hand-offs/s.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};

/// By what a server is to be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptRef {
    /// The function of a library that it has loaded.
    Function,
    /// The hash of a script.
    Hash,
    /// The text of a script.
    Text,
}

/// What a step requires of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepRequirements {
    /// It may grant a lease: the server must be admitted, and its replicas must confirm the step if `wait_replicas` is
    /// set.
    Grant,
    /// It extends a lease, or changes what a holder shows: replicas must confirm it as a grant.
    Replicas,
    /// Only a reply.
    Nothing,
}

/// A script: its text, and the hash by which a server that has loaded it knows it.
#[derive(Debug)]
pub struct Script {
    source: String,
    sha: String,
    function: Option<String>,
}

impl Script {
    /// A script without a prelude.
    pub fn new(source: &str) -> Self {
        Self {
            source: source.to_owned(),
            sha: sha1_smol::Sha1::from(source).digest().to_string(),
            function: None,
        }
    }

    /// The same script, which a library has as the function of this name.
    pub fn with_function(self, name: String) -> Self {
        Self {
            function: Some(name),
            ..self
        }
    }

    /// A script with a prelude: the first line of `verb` (its flags), then `prelude`, then the rest
    /// of `verb`.
    pub fn on(prelude: &str, verb: &str) -> Self {
        let (flags, body) = verb.split_once('\n').unwrap_or((verb, ""));
        Self::new(&format!("{flags}\n{prelude}\n{body}"))
    }

    /// Calls the script. If the server does not know it, or no longer knows it, its text is sent.
    /// The first call had no effect, so the step runs only once.
    ///
    /// # Errors
    /// The server's error, or that of the connection.
    pub async fn call(&self, connection: &mut MultiplexedConnection, call: &ScriptCall<'_>) -> RedisResult<Value> {
        let known = self.send(connection, call, ScriptRef::Hash).await;
        match known {
            Err(error) if is_unknown(&error) => self.send(connection, call, ScriptRef::Text).await,
            other => other,
        }
    }

    /// Calls the function of the script, once.
    ///
    /// # Errors
    /// What the server answered, also that it does not know the function, or that it did not answer.
    pub async fn call_function(
        &self,
        connection: &mut MultiplexedConnection,
        call: &ScriptCall<'_>,
    ) -> RedisResult<Value> {
        self.send(connection, call, ScriptRef::Function).await
    }

    async fn send(
        &self,
        connection: &mut MultiplexedConnection,
        call: &ScriptCall<'_>,
        by: ScriptRef,
    ) -> RedisResult<Value> {
        send(connection, call, self.command(call, by)).await
    }

    /// The command that calls the script.
    pub fn command(&self, call: &ScriptCall<'_>, by: ScriptRef) -> Cmd {
        match (by, &self.function) {
            (ScriptRef::Function, Some(function)) => eval("FCALL", function, call),
            (ScriptRef::Function | ScriptRef::Hash, _) => eval("EVALSHA", &self.sha, call),
            (ScriptRef::Text, _) => eval("EVAL", &self.source, call),
        }
    }

    /// Its text.
    pub fn source(&self) -> &str {
        &self.source
    }
}

fn eval(command: &str, script: &str, call: &ScriptCall<'_>) -> Cmd {
    let mut eval = redis::cmd(command);
    eval.arg(script).arg(1 + call.beside.len()).arg(call.key);
    for key in call.beside {
        eval.arg(*key);
    }
    for arg in call.args {
        eval.arg(arg.as_slice());
    }
    eval
}

/// The reply of a script.
#[derive(Debug)]
pub struct Answer {
    /// The value.
    pub value: Value,
    /// Why the script's writes do not count: too few replicas have received them. Absent if enough
    /// have, or if none are required.
    pub unconfirmed: Option<String>,
}

impl From<Value> for Answer {
    fn from(value: Value) -> Self {
        Self {
            value,
            unconfirmed: None,
        }
    }
}

/// One call of a script. In a Cluster it has one key, because calls with several keys are refused
/// while their slot migrates.
#[derive(Debug, Clone, Copy)]
pub struct ScriptCall<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Further keys, outside a Cluster.
    pub beside: &'a [&'a [u8]],
    /// The arguments.
    pub args: &'a [Vec<u8>],
    /// Whether the key's slot is being migrated to this node (the other node replied ASK).
    pub asking: bool,
}

impl<'a> ScriptCall<'a> {
    /// A call with one key, of a server that is not being asked during a migration.
    pub fn of(key: &'a [u8], args: &'a [Vec<u8>]) -> Self {
        Self {
            key,
            beside: &[],
            args,
            asking: false,
        }
    }
}

async fn send(connection: &mut MultiplexedConnection, call: &ScriptCall<'_>, eval: Cmd) -> RedisResult<Value> {
    if !call.asking {
        let answer = connection.send_packed_command(&eval).await;
        return answer.and_then(Value::extract_error);
    }
    let mut both = Pipeline::with_capacity(2);
    both.cmd("ASKING").ignore().add_command(eval);
    let mut answers = connection.send_packed_commands(&both, 0, 2).await?;
    answers.pop().unwrap_or(Value::Nil).extract_error()
}

/// Whether the server has not loaded the script or the function, or has dropped it.
pub fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) || error.detail() == Some("Function not found")
}
