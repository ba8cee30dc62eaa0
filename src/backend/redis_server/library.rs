//! The scripts of a backend as one function library, which a server compiles once and not at each call.
//!
//! The library's name ends with the hash of its text, so servers of two versions use one Redis side by side. A
//! server that refuses functions is called by scripts of the same text. Whoever loads a library deletes the others
//! where there are more than [`KEPT`]: a version that still uses one loads it again, as after FUNCTION FLUSH.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisResult, Value, from_redis_value};

use super::script::{Script, ScriptRef};

/// How many libraries of all versions a server keeps at most.
pub const KEPT: usize = 8;

/// What the name of each library begins with.
const PREFIX: &str = "fencepost_";

/// What a verb's script or function does: `start` returns an error reply or nothing, and `run` the answer.
const BODY: &str = "local refused = start()\nif refused then return refused end\nreturn run()\n";

/// A library of verbs.
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
    /// The first line of its script.
    shebang: &'static str,
    /// What defines `run`.
    text: &'static str,
}

impl Verb {
    fn new(name: &'static str, text: &'static str) -> Self {
        let (shebang, text) = text.split_once('\n').unwrap_or((text, ""));
        Self { name, shebang, text }
    }

    /// Its flags as the list that `register_function` takes.
    fn flags(&self) -> String {
        let flags = self.shebang.split_once("flags=").map_or("", |(_, flags)| flags);
        let quoted = flags.split(',').filter(|flag| !flag.is_empty());
        quoted.map(|flag| format!("'{flag}'")).collect::<Vec<_>>().join(", ")
    }

    fn registered(&self, library: &str) -> String {
        let (name, text, flags) = (self.name, self.text, self.flags());
        format!(
            "do\n{text}\nredis.register_function{{function_name = '{library}_{name}', flags = {{{flags}}}, \
             callback = function(keys, args)\nKEYS, ARGV = keys, args\n{BODY}end}}\nend\n"
        )
    }
}

impl Library {
    /// A library of these verbs: each defines `run` behind its first line, which has the flags of a script, and
    /// `prelude`, which defines `start`, stands before them.
    pub fn new(prelude: &str, verbs: &[(&'static str, &'static str)]) -> Self {
        let verbs: Vec<Verb> = verbs.iter().map(|(name, text)| Verb::new(name, text)).collect();
        let source = |name: &str| {
            let functions: String = verbs.iter().map(|verb| verb.registered(name)).collect();
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

    /// The script of a verb, which is called as a function where a server has the library.
    ///
    /// # Panics
    /// Where the library has no such verb.
    pub fn script(&self, name: &str) -> Script {
        let verb = self.verbs.iter().find(|verb| verb.name == name);
        let Verb { shebang, text, .. } = verb.expect("a verb of the library");
        let source = format!("{shebang}\n{}\n{text}\n{BODY}", self.prelude);
        Script::new(&source).with_function(format!("{}_{name}", self.name))
    }

    /// Loads the library, if the server does not have it, and makes sure that its functions may be called.
    ///
    /// # Errors
    /// What the server answered, or that it did not.
    pub async fn load(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(&self.source);
        let is_new = match ask(connection, &load).await {
            Ok(_) => true,
            Err(error) if error.detail().is_some_and(|detail| detail.contains("already exists")) => false,
            Err(error) => return Err(error),
        };
        let mut known = redis::cmd("FCALL");
        known.arg(format!("{}_known", self.name)).arg(0);
        ask(connection, &known).await?;
        if is_new && let Err(error) = self.delete_others(connection).await {
            tracing::debug!(%error, "libraries of other versions were not deleted");
        }
        Ok(())
    }

    /// Deletes all other libraries where there are more than [`KEPT`].
    async fn delete_others(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let mut list = redis::cmd("FUNCTION");
        list.arg("LIST").arg("LIBRARYNAME").arg(format!("{PREFIX}*"));
        let listed: Vec<Value> = from_redis_value(ask(connection, &list).await?)?;
        let names: Vec<String> = listed.into_iter().filter_map(name_in).collect();
        if names.len() <= KEPT {
            return Ok(());
        }
        for name in names.into_iter().filter(|name| *name != self.name) {
            let mut delete = redis::cmd("FUNCTION");
            delete.arg("DELETE").arg(name);
            // Another server may have deleted it meanwhile.
            let _ = ask(connection, &delete).await;
        }
        Ok(())
    }
}

async fn ask(connection: &mut MultiplexedConnection, command: &redis::Cmd) -> RedisResult<Value> {
    let answer = connection.send_packed_command(command).await;
    answer.and_then(Value::extract_error)
}

/// The name of a library in the answer to FUNCTION LIST.
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
    fn the_name_of_a_library_changes_with_its_text_and_flags_are_kept() {
        let library = |prelude| Library::new(prelude, &[("go", "#!lua flags=allow-oom\nlocal function run() end")]);
        let (one, other) = (library("-- one"), library("-- other"));
        assert_ne!(one.name, other.name);
        assert_eq!(one.name, library("-- one").name);
        assert!(one.source.contains("flags = {'allow-oom'}"), "{}", one.source);
        assert!(one.source.starts_with(&format!("#!lua name={}\n", one.name)));
    }
}
