//! Writing to standard output and error, whose reader may be gone.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write};

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use fencepost::client::{Answer, json};

use super::Failure;
use super::unprintable::{escaped, escaped_json, plain};

/// How an answer is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// For scripts: a line of JSON for each answer, with the fields of the API
    Json,
}

/// How to show answers.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Output {
    /// How to show the answer
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: Format,
}

impl Output {
    /// Shows an answer: as JSON, or as what `text` makes of it. Whether somebody still reads.
    pub fn show<A: Answer>(self, answer: &A, text: impl FnOnce(&A) -> String) -> Result<Reader, Failure> {
        let shown = match self.output {
            Format::Text => text(answer),
            Format::Json => escaped_json(&json(answer).map_err(Failure::runtime)?) + "\n",
        };
        print(&shown).map_err(Failure::runtime)
    }
}

/// Who is at the other end of standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Somebody.
    There,
    /// Nobody any more: they have seen enough.
    Gone,
}

/// Writes to standard output. A reader that went away has seen enough.
///
/// # Errors
/// Those of the system, but for a closed pipe.
pub fn print(text: &str) -> io::Result<Reader> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(closed) if closed.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        done => done.map(|()| Reader::There),
    }
}

/// Writes a line to standard error. Where that is closed, the exit code has to do.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes an error and what caused it to standard error, in one line unless the error itself has several.
pub fn complain(error: &(dyn Error + 'static)) {
    complain_of(&escaped(&with_causes(error)));
}

/// Writes an error with words of a server, in one line: it cannot add lines that look like this program's own.
pub fn complain_of_answer(error: &(dyn Error + 'static)) {
    complain_of(&plain(&with_causes(error)));
}

fn complain_of(text: &str) {
    let word = Paint::of(&io::stderr()).red("error:");
    say(&format!("{word} {text}"));
}

fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut told = error.to_string();
    let mut line = told.clone();
    for cause in std::iter::successors(error.source(), |cause| (*cause).source()) {
        let cause = cause.to_string();
        if !told.contains(&cause) {
            // Writing to a String cannot fail.
            let _ = write!(line, ": {cause}");
        }
        told = cause;
    }
    line
}

/// Colours, where there is a terminal that wants them.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// For what is written there: never with NO_COLOR, nor on a terminal that knows none.
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

/// Whether the terminal can do nothing but print.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}
