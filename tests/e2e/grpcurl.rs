//! Calls with grpcurl, and what it prints.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use super::server::Server;

/// How requests and answers are written.
#[derive(Debug, Clone, Copy)]
pub enum Format {
    /// What people type.
    Json,
    /// Says also what JSON cannot, such as a Duration that is not normalised.
    Text,
}

/// A server and the grpcurl that calls it.
pub struct Caller {
    program: PathBuf,
    /// Where to call, as grpcurl's own arguments.
    target: Vec<String>,
}

/// An error as grpcurl shows it.
#[derive(Debug)]
pub struct Refused(pub String);

impl Refused {
    /// Asserts the code and the reason.
    #[track_caller]
    pub fn is(&self, code: &str, reason: &str) {
        assert!(self.0.contains(&format!("Code: {code}\n")), "{code}: {self:?}");
        assert!(self.0.contains(reason), "{reason}: {self:?}");
        assert!(self.0.contains("fencepost"), "no domain: {self:?}");
    }

    /// Asserts that this field, or one within it, was refused.
    #[track_caller]
    pub fn is_of_field(&self, field: &str) {
        self.is("InvalidArgument", "INVALID_FIELD");
        assert!(self.0.contains(&format!("Message: {field}")), "{field}: {self:?}");
        assert!(self.0.contains("google.rpc.BadRequest"), "no BadRequest: {self:?}");
    }
}

impl Caller {
    /// Calls the TCP address of a server; nothing, with the reason printed, where grpcurl is
    /// missing at home.
    pub fn of(server: &Server) -> Option<Self> {
        Self::at(vec![server.address.clone()])
    }

    /// The same for its Unix socket.
    pub fn of_socket(server: &Server) -> Option<Self> {
        let socket = server.socket().to_str().expect("a path in UTF-8").to_owned();
        Self::at(vec![format!("unix://{socket}")])
    }

    fn at(target: Vec<String>) -> Option<Self> {
        let program = find();
        if program.is_none() {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "grpcurl is missing");
            println!("passed without a run: grpcurl is missing");
        }
        program.map(|program| Self { program, target })
    }

    fn command(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("-plaintext").args(flags).args(&self.target);
        command
    }

    /// Asks grpcurl itself, such as `list`.
    pub fn ask(&self, words: &[&str]) -> String {
        let output = self.command(&[]).args(words).output().expect("grpcurl runs");
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Begins a call; its messages and its error come on the child's pipes.
    pub fn begin(&self, format: Format, method: &str, request: &str) -> Child {
        let format = match format {
            Format::Json => "json",
            Format::Text => "text",
        };
        let mut call = self
            .command(&["-format", format, "-d", "@"])
            .arg(format!("fencepost.v1.{method}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("grpcurl runs");
        // It fails only where grpcurl has ended, which its answer tells better.
        let _ = call.stdin.take().expect("a pipe").write_all(request.as_bytes());
        call
    }

    /// Calls a method with a request in JSON: `LockService/Acquire`.
    pub fn call(&self, method: &str, request: Value) -> Result<Value, Refused> {
        let call = self.begin(Format::Json, method, &request.to_string());
        let answer = answer(call.wait_with_output().expect("grpcurl ends"))?;
        Ok(serde_json::from_str(&answer).expect("JSON"))
    }

    /// The same with a request in the text format, for its error alone.
    pub fn try_text(&self, method: &str, request: &str) -> Result<String, Refused> {
        let call = self.begin(Format::Text, method, request);
        answer(call.wait_with_output().expect("grpcurl ends"))
    }

    /// The health of a service by its name, or nothing where the server knows none.
    pub fn health(&self, service: &str) -> Option<String> {
        let request = serde_json::json!({ "service": service }).to_string();
        let output = self
            .command(&["-d", &request])
            .arg("grpc.health.v1.Health/Check")
            .output()
            .expect("grpcurl runs");
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        answer["status"].as_str().map(str::to_owned)
    }
}

/// What a call printed, or its error.
pub fn answer(output: Output) -> Result<String, Refused> {
    let text = |bytes| String::from_utf8(bytes).expect("text");
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(Refused(text(output.stderr)))
    }
}

/// grpcurl on the PATH, or where `scripts/test` builds it.
fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools").into();
    std::env::split_paths(&path)
        .chain([built])
        .map(|folder| folder.join("grpcurl"))
        .find(|program| program.is_file())
}
