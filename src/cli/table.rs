//! Tables of text.

use std::io;

use super::output::Paint;
use super::screen;
use super::width::{cut, width};

/// The separator of columns.
const GAP: &str = "  ";
/// A column becomes no narrower than this, so that something of its text remains.
const NARROWEST: usize = 8;

/// Rows below a header, with each column as wide as its widest cell. Where that is wider than the terminal, the columns
/// that may shrink become narrower. Rows may come in several parts, of which only the first has the header.
#[derive(Debug)]
pub struct Table<const N: usize> {
    head: [&'static str; N],
    shrinking: &'static [&'static str],
    /// The widths of the part before, from which the next one begins, so that the parts are aligned.
    widths: [usize; N],
    has_head: bool,
}

impl<const N: usize> Table<N> {
    /// An empty table.
    pub fn new(head: [&'static str; N]) -> Self {
        Self {
            head,
            shrinking: &[],
            widths: head.map(width),
            has_head: false,
        }
    }

    /// Lets the columns with these headers become narrower: a cut name can still be recognised, but a cut number is
    /// another number.
    pub fn shrinking(mut self, columns: &'static [&'static str]) -> Self {
        self.shrinking = columns;
        self
    }

    /// The lines of these rows, and of the header before the first of them. The header is bold on a terminal.
    pub fn rows(&mut self, rows: impl IntoIterator<Item = [String; N]>) -> String {
        self.rows_within(screen::size().map(|size| size.columns), rows)
    }

    fn rows_within(&mut self, columns: Option<usize>, rows: impl IntoIterator<Item = [String; N]>) -> String {
        let rows: Vec<[String; N]> = rows.into_iter().collect();
        for row in &rows {
            for (widest, cell) in self.widths.iter_mut().zip(row) {
                *widest = width(cell).max(*widest);
            }
        }
        if let Some(columns) = columns {
            self.shrink_to(columns);
        }
        let mut text = String::new();
        if !std::mem::replace(&mut self.has_head, true) {
            let paint = Paint::of(&io::stdout());
            text = paint.bold(&self.line(&self.head.map(str::to_owned))) + "\n";
        }
        text.extend(rows.iter().map(|row| self.line(row) + "\n"));
        text
    }

    /// Takes from the widest column as long as the lines are too long.
    fn shrink_to(&mut self, columns: usize) {
        let least = self.head.map(|head| width(head).max(NARROWEST));
        let gaps = GAP.len() * N.saturating_sub(1);
        while self.widths.iter().sum::<usize>() + gaps > columns {
            let may_shrink =
                |column: &usize| self.shrinking.contains(&self.head[*column]) && self.widths[*column] > least[*column];
            let Some(widest) = (0..N).filter(may_shrink).max_by_key(|column| self.widths[*column]) else {
                return;
            };
            self.widths[widest] -= 1;
        }
    }

    fn line(&self, cells: &[String; N]) -> String {
        let padded = cells
            .iter()
            .zip(&self.head)
            .zip(self.widths)
            .map(|((cell, head), room)| {
                let cell = if self.shrinking.contains(head) {
                    cut(cell, room)
                } else {
                    cell.clone()
                };
                let blank = room.saturating_sub(width(&cell));
                cell + &" ".repeat(blank)
            });
        padded.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    }
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

    fn row<const N: usize>(cells: [&str; N]) -> [String; N] {
        cells.map(str::to_owned)
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let text = Table::new(["NAME", "N"]).rows_within(None, [row(["a", "1"]), row(["längere", ""])]);
        assert_eq!(text, "NAME     N\na        1\nlängere\n");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let text = Table::new(["NAME", "N"]).rows_within(None, [row(["東京", "1"]), row(["Zoë", "2"])]);
        assert_eq!(text, "NAME  N\n東京  1\nZoë   2\n");
    }

    #[test]
    fn only_texts_become_narrower_the_widest_one_first() {
        let cells = ["reports/2026/november/europe", "1795258800000000", "somebody"];
        let mut table = Table::new(["LOCK", "TOKEN", "OWNER"]).shrinking(&["LOCK", "OWNER"]);
        let text = table.rows_within(Some(44), [row(cells)]);
        let expected = "\
LOCK              TOKEN             OWNER
reports/…/europe  1795258800000000  somebody
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| width(line) <= 44), "{text}");
        // With no column to take from, the line is longer than the terminal rather than without a number.
        let text = Table::new(["TOKEN"]).rows_within(Some(4), [row(["1795258800000000"])]);
        assert_eq!(text, "TOKEN\n1795258800000000\n");
    }

    #[test]
    fn later_rows_continue_the_table() {
        let mut table = Table::new(["NAME", "N"]);
        let first = table.rows_within(None, [row(["reports", "1"])]);
        assert_eq!(first, "NAME     N\nreports  1\n");
        assert_eq!(table.rows_within(None, [row(["a", "2"])]), "a        2\n");
        assert_eq!(table.rows_within(None, [row(["reports-2", "3"])]), "reports-2  3\n");
    }
}
