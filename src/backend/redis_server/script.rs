//! A Lua script, how it is called, and what comes back.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};

use super::library::Library;

/// The scripts of a backend.
#[derive(Debug, Clone, Copy)]
pub struct Scripts {
    /// The library that has them as functions.
    pub library: Option<&'static LazyLock<Library>>,
    /// Each of them.
    pub scripts: &'static [&'static LazyLock<Script>],
}

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

/// A script: its text, and the name by which a server that has seen it knows it.
#[derive(Debug)]
pub struct Script {
    source: String,
    sha: String,
    function: Option<String>,
}

impl Script {
    /// A script of one piece.
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

    /// A script that stands on shared ground: the first line of `verb` (its flags), then `prelude`,
    /// then the rest of `verb`.
    pub fn on(prelude: &str, verb: &str) -> Self {
        let (flags, body) = verb.split_once('\n').unwrap_or((verb, ""));
        Self::new(&format!("{flags}\n{prelude}\n{body}"))
    }

    /// Calls the script. A server that does not know it (any more) is sent its text: such a call
    /// had no effect, so it is not a repetition.
    ///
    /// # Errors
    /// What the server answered, or that it did not.
    pub async fn call(&self, connection: &mut MultiplexedConnection, ask: &Ask<'_>) -> RedisResult<Value> {
        let known = self.send(connection, ask, ScriptRef::Hash).await;
        match known {
            Err(error) if is_unknown(&error) => self.send(connection, ask, ScriptRef::Text).await,
            other => other,
        }
    }

    /// Calls the function of the script, once.
    ///
    /// # Errors
    /// What the server answered, also that it does not know the function, or that it did not answer.
    pub async fn call_function(&self, connection: &mut MultiplexedConnection, ask: &Ask<'_>) -> RedisResult<Value> {
        self.send(connection, ask, ScriptRef::Function).await
    }

    async fn send(&self, connection: &mut MultiplexedConnection, ask: &Ask<'_>, by: ScriptRef) -> RedisResult<Value> {
        send(connection, ask, self.command(ask, by)).await
    }

    /// The command that calls the script.
    pub fn command(&self, ask: &Ask<'_>, by: ScriptRef) -> Cmd {
        match (by, &self.function) {
            (ScriptRef::Function, Some(function)) => eval("FCALL", function, ask),
            (ScriptRef::Function | ScriptRef::Hash, _) => self.by_name(ask),
            (ScriptRef::Text, _) => self.by_text(ask),
        }
    }

    /// The call of a script that the server has seen.
    pub fn by_name(&self, ask: &Ask<'_>) -> Cmd {
        eval("EVALSHA", &self.sha, ask)
    }

    /// The call of any script.
    pub fn by_text(&self, ask: &Ask<'_>) -> Cmd {
        eval("EVAL", &self.source, ask)
    }
}

fn eval(command: &str, script: &str, ask: &Ask<'_>) -> Cmd {
    let mut eval = redis::cmd(command);
    eval.arg(script).arg(1 + ask.beside.len()).arg(ask.key);
    for key in ask.beside {
        eval.arg(*key);
    }
    for arg in ask.args {
        eval.arg(arg.as_slice());
    }
    eval
}

/// What a script returned.
#[derive(Debug)]
pub struct Answer {
    /// The value.
    pub value: Value,
    /// Why what the script wrote does not count: too few replicas have it. Nothing where enough
    /// have it, or none are asked for.
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

/// One call of a script. In a Cluster it is on one key, for several are refused while their slot moves.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Further keys, where there is no Cluster.
    pub beside: &'a [&'a [u8]],
    /// The arguments.
    pub args: &'a [Vec<u8>],
    /// Whether the key's slot is on its way to this node (the answer of another was ASK).
    pub asking: bool,
}

async fn send(connection: &mut MultiplexedConnection, ask: &Ask<'_>, eval: Cmd) -> RedisResult<Value> {
    if !ask.asking {
        let answer = connection.send_packed_command(&eval).await;
        return answer.and_then(Value::extract_error);
    }
    let mut both = Pipeline::with_capacity(2);
    both.cmd("ASKING").ignore().add_command(eval);
    let mut answers = connection.send_packed_commands(&both, 0, 2).await?;
    answers.pop().unwrap_or(Value::Nil).extract_error()
}

/// Sends the text of these scripts ahead, so that no call of one has to be sent twice: calls of one moment would lose
/// their order by it. Returns by what they are to be called. A server that refuses functions is sent scripts, and one
/// that refuses these too is sent a text by [`Script::call`] when it asks for it.
///
/// # Errors
/// That the server did not answer.
pub async fn load(connection: &mut MultiplexedConnection, scripts: Scripts) -> RedisResult<ScriptRef> {
    if let Some(library) = scripts.library {
        match library.load(connection).await {
            Ok(()) => return Ok(ScriptRef::Function),
            Err(error) if error.is_io_error() => return Err(error),
            Err(error) => tracing::info!(%error, "redis server: functions are refused, scripts are used"),
        }
    }
    let scripts = scripts.scripts;
    let mut pipeline = Pipeline::with_capacity(scripts.len());
    for script in scripts {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.source);
    }
    let answers = connection.send_packed_commands(&pipeline, 0, scripts.len()).await?;
    for refused in answers.into_iter().filter_map(|answer| answer.extract_error().err()) {
        tracing::debug!(error = %refused, "a script was not loaded ahead");
    }
    Ok(ScriptRef::Hash)
}

/// Whether the server has not seen the script or the function, or has forgotten it.
pub fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) || error.detail() == Some("Function not found")
}
