//! Tables of text.

use std::io;

use super::output::Paint;

/// The separator of columns.
const GAP: &str = "  ";

/// Rows below a header, with each column as wide as its widest cell.
#[derive(Debug)]
pub struct Table<const N: usize> {
    head: [&'static str; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// An empty table.
    pub fn new(head: [&'static str; N]) -> Self {
        Self { head, rows: Vec::new() }
    }

    /// Adds rows.
    pub fn with(mut self, rows: impl IntoIterator<Item = [String; N]>) -> Self {
        self.rows.extend(rows);
        self
    }

    /// The lines of the table. The header is bold on a terminal.
    pub fn text(&self) -> String {
        let paint = Paint::of(&io::stdout());
        let head = line(&self.head.map(str::to_owned), self.widths());
        let rows = self.rows.iter().map(|row| line(row, self.widths()) + "\n");
        paint.bold(&head) + "\n" + &rows.collect::<String>()
    }

    fn widths(&self) -> [usize; N] {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.head[column].chars().count()]).max().unwrap_or(0)
        };
        std::array::from_fn(width)
    }
}

fn line<const N: usize>(cells: &[String; N], widths: [usize; N]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
    padded.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
}

/// Names and values, one pair per line.
pub fn pairs(all: &[(&str, String)]) -> String {
    let paint = Paint::of(&io::stdout());
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = all
        .iter()
        .map(|(name, value)| format!("{}{GAP}{value}\n", paint.bold(&format!("{name:width$}"))));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".to_owned(), "1".to_owned()], ["längere".to_owned(), String::new()]];
        let text = Table::new(["NAME", "N"]).with(rows).text();
        assert_eq!(text, "NAME     N\na        1\nlängere\n");
    }
}
