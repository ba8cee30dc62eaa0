//! Writing to standard output and error, whose reader may be gone.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Writes to standard output. A reader that went away has seen enough.
///
/// # Errors
/// Those of the system, but for a closed pipe.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(closed) if closed.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Writes an error and what caused it to standard error, in one line. Where that is closed, the
/// exit code has to do.
pub fn complain(error: &(dyn Error + 'static)) {
    let mut line = format!("error: {error}");
    let mut told = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| (*cause).source()) {
        let cause = cause.to_string();
        if !told.contains(&cause) {
            // Writing to a String cannot fail.
            let _ = write!(line, ": {cause}");
        }
        told = cause;
    }
    let _ = writeln!(io::stderr(), "{line}");
}
