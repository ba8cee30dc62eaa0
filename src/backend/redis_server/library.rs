//! The scripts of a backend as one function library. A Redis server compiles a library once, not at each call.
//!
//! The library's name ends with the hash of its text, so replicas of two versions can use the same Redis. If a
//! server refuses functions, the verbs are called as scripts with the same text. If a server has more than [`KEPT`]
//! libraries, the replica that loads a new one deletes all others. A version that still uses a deleted library loads
//! it again, as after FUNCTION FLUSH.
//!
//! EVALSHA builds the shared prelude at each call, which is a quarter of its time.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisResult, Value, from_redis_value};

use super::script::{Script, ScriptRef};

/// How many libraries of all versions a server keeps at most; beyond this number, all others are deleted.
pub const KEPT: usize = 8;

/// The prefix of each library's name.
const PREFIX: &str = "fencepost_";

/// The body of a verb's script or function: `start` returns an error reply or nil, and `run` the reply.
const BODY: &str = "local refused = start()\nif refused then return refused end\nreturn run()\n";

/// A function library with a backend's verbs.
#[derive(Debug)]
pub struct Library {
    prelude: String,
    verbs: Vec<Verb>,
    name: String,
    source: String,
}

/// A function of a library.
#[derive(Debug)]
struct Verb {
    name: &'static str,
    /// The first line of the script, with its flags.
    shebang: &'static str,
    /// The Lua code that defines `run`.
    text: &'static str,
}

impl Verb {
    fn new(name: &'static str, text: &'static str) -> Self {
        let (shebang, text) = text.split_once('\n').unwrap_or((text, ""));
        Self { name, shebang, text }
    }

    /// The flags in the format that `register_function` expects.
    fn flags(&self) -> String {
        let flags = self.shebang.split_once("flags=").map_or("", |(_, flags)| flags);
        let quoted = flags.split(',').filter(|flag| !flag.is_empty());
        quoted.map(|flag| format!("'{flag}'")).collect::<Vec<_>>().join(", ")
    }

    fn registration(&self, library: &str) -> String {
        let (name, text, flags) = (self.name, self.text, self.flags());
        format!(
            "do\n{text}\nredis.register_function{{function_name = '{library}_{name}', flags = {{{flags}}}, \
             callback = function(keys, args)\nKEYS, ARGV = keys, args\n{BODY}end}}\nend\n"
        )
    }
}

impl Library {
    /// A library of these verbs. `prelude` precedes them and defines `start`. The first line of each verb has the
    /// flags of a script, and the rest defines `run`.
    pub fn new(prelude: &str, verbs: &[(&'static str, &'static str)]) -> Self {
        let verbs: Vec<Verb> = verbs.iter().map(|(name, text)| Verb::new(name, text)).collect();
        let source = |name: &str| {
            let functions: String = verbs.iter().map(|verb| verb.registration(name)).collect();
            format!(
                "#!lua name={name}\nlocal KEYS, ARGV\n{prelude}\n{functions}redis.register_function{{function_name = \
                 '{name}_known', flags = {{'no-writes'}}, callback = function() return 1 end}}\n"
            )
        };
        let hash = sha1_smol::Sha1::from(source("")).digest().to_string();
        let name = format!("{PREFIX}{}", &hash[..16]);
        Self {
            prelude: prelude.to_owned(),
            source: source(&name),
            name,
            verbs,
        }
    }

    /// The script of a verb. It is called as a function on servers that have the library.
    ///
    /// # Panics
    /// If the library has no such verb.
    pub fn script(&self, name: &str) -> Script {
        let verb = self.verbs.iter().find(|verb| verb.name == name);
        let Verb { shebang, text, .. } = verb.expect("a verb of the library");
        let source = format!("{shebang}\n{}\n{text}\n{BODY}", self.prelude);
        Script::new(&source).with_function(format!("{}_{name}", self.name))
    }

    /// Loads the library if the server does not have it, and checks that its functions may be called.
    ///
    /// # Errors
    /// The error of the server or of the connection.
    pub async fn load(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(&self.source);
        let is_new = match send(connection, &load).await {
            Ok(_) => true,
            Err(error) if error.detail().is_some_and(|detail| detail.contains("already exists")) => false,
            Err(error) => return Err(error),
        };
        let mut known = redis::cmd("FCALL");
        known.arg(format!("{}_known", self.name)).arg(0);
        send(connection, &known).await?;
        if is_new && let Err(error) = self.delete_others(connection).await {
            tracing::debug!(%error, "libraries of other versions were not deleted");
        }
        Ok(())
    }

    /// Deletes all other libraries if there are more than [`KEPT`].
    async fn delete_others(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let mut list = redis::cmd("FUNCTION");
        list.arg("LIST").arg("LIBRARYNAME").arg(format!("{PREFIX}*"));
        let listed: Vec<Value> = from_redis_value(send(connection, &list).await?)?;
        let names: Vec<String> = listed.into_iter().filter_map(name_in).collect();
        if names.len() <= KEPT {
            return Ok(());
        }
        for name in names.into_iter().filter(|name| *name != self.name) {
            let mut delete = redis::cmd("FUNCTION");
            delete.arg("DELETE").arg(name);
            // Another replica may have deleted the library meanwhile.
            let _ = send(connection, &delete).await;
        }
        Ok(())
    }
}

async fn send(connection: &mut MultiplexedConnection, command: &redis::Cmd) -> RedisResult<Value> {
    let answer = connection.send_packed_command(command).await;
    answer.and_then(Value::extract_error)
}

/// The name of a library in the reply to FUNCTION LIST.
fn name_in(library: Value) -> Option<String> {
    let fields: std::collections::HashMap<String, Value> = from_redis_value(library).ok()?;
    let name = fields.into_iter().find(|(field, _)| field == "library_name")?.1;
    from_redis_value(name).ok()
}

/// The scripts of a backend.
#[derive(Debug, Clone, Copy)]
pub struct Scripts {
    /// The library that has them as functions.
    pub library: Option<&'static LazyLock<Library>>,
    /// Each of them.
    pub scripts: &'static [&'static LazyLock<Script>],
}

/// Loads these scripts in advance, so that no call has to be sent twice: calls that are sent at the
/// same time would lose their order. Returns how they are to be called. If the server refuses
/// functions, the scripts are loaded instead. If it refuses one of these too, [`Script::call`] sends
/// its text when it is needed.
///
/// # Errors
/// The connection's error, if the server did not reply.
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
        pipeline.cmd("SCRIPT").arg("LOAD").arg(script.source());
    }
    let answers = connection.send_packed_commands(&pipeline, 0, scripts.len()).await?;
    for refused in answers.into_iter().filter_map(|answer| answer.extract_error().err()) {
        tracing::debug!(error = %refused, "a script was not loaded ahead");
    }
    Ok(ScriptRef::Hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_library_depends_on_its_text_and_flags_are_kept() {
        let library = |prelude| Library::new(prelude, &[("go", "#!lua flags=allow-oom\nlocal function run() end")]);
        let (one, other) = (library("-- one"), library("-- other"));
        assert_ne!(one.name, other.name);
        assert_eq!(one.name, library("-- one").name);
        assert!(one.source.contains("flags = {'allow-oom'}"), "{}", one.source);
        assert!(one.source.starts_with(&format!("#!lua name={}\n", one.name)));
    }
}
