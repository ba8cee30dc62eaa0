//! The file of static bearer tokens: a line of `name:hash` each, or a comment after `#`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::bearer::{BadBearer, BearerHash};
use crate::files;

/// How many bad lines are told one by one.
const MAX_TOLD: usize = 10;

/// Why a bearer file cannot be used as it stands.
#[derive(Debug, thiserror::Error)]
pub enum BearerFileError {
    /// It cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line of it is no token. The line itself is not shown: it may be a secret.
    #[error("{}:{line}: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// Why.
        source: BadLine,
    },
    /// More lines than are told one by one are no tokens.
    #[error("{}: {more} more lines cannot be used", path.display())]
    More {
        /// The file.
        path: PathBuf,
        /// How many.
        more: usize,
    },
}

/// Why a line of a bearer file is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadLine {
    /// It does not have the form of one.
    #[error(transparent)]
    Form(#[from] BadBearer),
    /// Its hash was given before: one token would prove two names.
    #[error("must have a hash of its own, not that of a bearer before it")]
    Twice,
}

/// What a bearer file says.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The tokens of its good lines.
    pub good: Vec<BearerHash>,
    /// What is wrong with the other lines.
    pub bad: Vec<BearerFileError>,
}

/// Reads a bearer file. `known` are the tokens that were given before.
pub(super) fn read(path: &Path, known: &[BearerHash]) -> Result<Lines, BearerFileError> {
    let bytes = files::read(path).map_err(|source| BearerFileError::Unreadable {
        path: path.into(),
        source,
    })?;
    let mut hashes: HashSet<_> = known.iter().map(BearerHash::hash).collect();
    let (mut lines, mut more) = (Lines::default(), 0);
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        match token(line, &mut hashes) {
            Ok(bearer) => lines.good.push(bearer),
            Err(source) if lines.bad.len() < MAX_TOLD => lines.bad.push(BearerFileError::Line {
                path: path.into(),
                line: number,
                source,
            }),
            Err(_) => more += 1,
        }
    }
    if more > 0 {
        lines.bad.push(BearerFileError::More {
            path: path.into(),
            more,
        });
    }
    Ok(lines)
}

fn token(line: &[u8], hashes: &mut HashSet<super::bearer::Hash>) -> Result<BearerHash, BadLine> {
    let bearer = BearerHash::parse(str::from_utf8(line).map_err(|_| BadBearer)?)?;
    if hashes.insert(bearer.hash()) {
        Ok(bearer)
    } else {
        Err(BadLine::Twice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, digit: char) -> String {
        format!("{name}:{}\n", digit.to_string().repeat(64))
    }

    fn read_lines(bytes: &[u8], known: &[BearerHash]) -> (Vec<BearerHash>, Vec<String>) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bearers");
        std::fs::write(&path, bytes).expect("a file");
        let lines = read(&path, known).expect("it is there");
        let bad = lines.bad.iter().map(ToString::to_string);
        let strip = |text: String| text.replace(&path.display().to_string(), "f");
        (lines.good, bad.map(strip).collect())
    }

    #[test]
    fn bad_lines_are_numbered_and_the_others_count() {
        let text = [line("a", '1'), "# a comment\n\n".into(), "secret\r\n".into()].concat();
        let bytes = [text.as_bytes(), b"\xff\n", line("b", '2').as_bytes()].concat();
        let (good, bad) = read_lines(&bytes, &[]);
        let expected = [line("a", '1'), line("b", '2')].map(|line| BearerHash::parse(line.trim()).expect("a token"));
        assert_eq!(good, expected);
        let form = BadBearer.to_string();
        assert_eq!(bad, [format!("f:4: {form}"), format!("f:5: {form}")]);
    }

    #[test]
    fn a_hash_counts_for_the_first_bearer_that_has_it() {
        let known = BearerHash::parse(line("known", '1').trim()).expect("a token");
        let text = [line("b", '1'), line("c", '2'), line("d", '2')].concat();
        let (good, bad) = read_lines(text.as_bytes(), std::slice::from_ref(&known));
        assert_eq!(good, [BearerHash::parse(line("c", '2').trim()).expect("a token")]);
        let twice = BadLine::Twice;
        assert_eq!(bad, [format!("f:1: {twice}"), format!("f:3: {twice}")]);
    }

    #[test]
    fn a_file_that_is_something_else_tells_of_a_few_lines_only() {
        let (good, bad) = read_lines("no token\n".repeat(500).as_bytes(), &[]);
        assert!(good.is_empty());
        assert_eq!(bad.len(), MAX_TOLD + 1);
        assert_eq!(bad[MAX_TOLD], "f: 490 more lines cannot be used");
    }
}
