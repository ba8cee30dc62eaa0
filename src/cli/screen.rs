//! The size of the terminal.

use std::io;
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// A number of columns and rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub columns: usize,
    pub rows: usize,
}

/// The size of the terminal at standard output. None for a pipe, a file, and a terminal that does not tell its size.
pub fn size() -> Option<Size> {
    size_of(&io::stdout())
}

/// The size of the terminal at this output.
pub fn size_of(output: &impl AsFd) -> Option<Size> {
    let size = tcgetwinsize(output).ok()?;
    let size = Size {
        columns: size.ws_col.into(),
        rows: size.ws_row.into(),
    };
    (size.columns > 0 && size.rows > 0).then_some(size)
}
