//! Output to standard output and standard error.

use std::error::Error;
use std::io::{self, Write};
use std::time::Duration;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use fencepost::api::json::{Answer, json};
pub use fencepost::error::with_causes;

use super::Failure;
use super::unprintable::{escaped, escaped_json, plain};

/// The format of a response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// For scripts: one JSON object a line, with the fields of the API
    Json,
}

/// The output option.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Output {
    /// The output format
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: Format,
}

impl Output {
    /// Prints a response as JSON or as the text that `text` returns. Returns whether the reader still reads.
    pub fn show<A: Answer>(self, answer: &A, text: impl FnOnce(&A) -> String) -> Result<Reader, Failure> {
        let shown = match self.output {
            Format::Text => text(answer),
            Format::Json => json_line(answer)?,
        };
        print(&shown).map_err(Failure::runtime)
    }
}

/// A line with the JSON of a message.
pub fn json_line<A: Answer>(message: &A) -> Result<String, Failure> {
    let json = json(message).map_err(Failure::runtime)?;
    Ok(escaped_json(&json) + "\n")
}

/// [`json_line`], for a message that does not name its namespace: it gets the field `namespace`.
pub fn json_line_in<A: Answer>(namespace: &str, message: &A) -> Result<String, Failure> {
    json_line_with(&[("namespace", namespace)], message)
}

/// [`json_line`], with these fields before those of the message.
pub fn json_line_with<A: Answer>(fields: &[(&str, &str)], message: &A) -> Result<String, Failure> {
    let json = json(message).map_err(Failure::runtime)?;
    let fields = fields
        .iter()
        .map(|(key, value)| format!("\"{key}\":{},", serde_json::json!(value)));
    let line = format!(
        "{{{}{}",
        fields.collect::<String>(),
        json.strip_prefix('{').unwrap_or(&json)
    );
    // A message without a field has none before its end.
    let line = line
        .strip_suffix(",}")
        .map_or(line.clone(), |fields| format!("{fields}}}"));
    Ok(escaped_json(&line) + "\n")
}

/// The state of the reader of standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// It reads.
    Open,
    /// It has closed the pipe.
    Closed,
}

/// Writes to standard output. A closed pipe is not an error: the reader needs no more.
///
/// # Errors
/// The system's errors, except for a closed pipe.
pub fn print(text: &str) -> io::Result<Reader> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(closed) if closed.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Closed),
        done => done.map(|()| Reader::Open),
    }
}

/// Writes a line to standard error. If that fails, only the exit code reports the error.
pub fn print_line(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes an error with its causes to standard error, in one line unless the error itself has several.
pub fn print_error(error: &(dyn Error + 'static)) {
    print_error_line(&escaped(&with_causes(error)));
}

/// Writes an error with a server's message, in one line: the server must not be able to imitate this program's
/// messages.
pub fn print_response_error(error: &(dyn Error + 'static)) {
    print_error_line(&plain(&with_causes(error)));
}

fn print_error_line(text: &str) {
    let word = Paint::of(&io::stderr()).red("error:");
    print_line(&format!("{word} {text}"));
}

/// A duration in seconds, with one decimal.
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Colours, if the terminal supports them.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// For a stream: no colours with NO_COLOR, or on a terminal without them.
    pub fn of(stream: &impl RawStream) -> Self {
        Self {
            on: AutoStream::choice(stream) != ColorChoice::Never,
        }
    }

    pub fn bold(self, text: &str) -> String {
        self.in_code("1", text)
    }

    pub fn red(self, text: &str) -> String {
        self.in_code("31", text)
    }

    pub fn green(self, text: &str) -> String {
        self.in_code("32", text)
    }

    pub fn yellow(self, text: &str) -> String {
        self.in_code("33", text)
    }

    fn in_code(self, code: &str, text: &str) -> String {
        if self.on {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Whether the terminal supports no escape codes.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}
