//! Parses the file of static bearer tokens: one `name:hash` per line, or a comment after `#`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::bearer::{BadBearer, BearerHash};
use crate::files;

/// The maximum number of bad lines that are reported individually.
const MAX_REPORTED: usize = 10;

/// Why a bearer file cannot be used in its current form.
#[derive(Debug, thiserror::Error)]
pub enum BearerFileError {
    /// It cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A line is not a token. The error omits the line, because it may contain a secret.
    #[error("{}:{line}: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// What is wrong.
        source: BadLine,
    },
    /// Further bad lines, beyond the ones reported individually.
    #[error("{}: {unreported} more lines cannot be used", path.display())]
    More {
        /// The file.
        path: PathBuf,
        /// Their number.
        unreported: usize,
    },
}

/// Why a line of a bearer file is not a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadLine {
    /// It is not of the form `name:hash`.
    #[error(transparent)]
    Form(#[from] BadBearer),
    /// Its hash occurred before: one token would authenticate two names.
    #[error("must have a hash of its own, not that of a bearer before it")]
    Twice,
}

/// The content of a bearer file.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The tokens of the valid lines.
    pub good: Vec<BearerHash>,
    /// The errors of the other lines.
    pub bad: Vec<BearerFileError>,
}

/// Parses a bearer file. `known` are the tokens from other sources.
pub(super) fn read(path: &Path, known: &[BearerHash]) -> Result<Lines, BearerFileError> {
    let bytes = files::read(path).map_err(|source| BearerFileError::Unreadable {
        path: path.into(),
        source,
    })?;
    let mut hashes: HashSet<_> = known.iter().map(BearerHash::hash).collect();
    let (mut lines, mut unreported) = (Lines::default(), 0);
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        match token(line, &mut hashes) {
            Ok(bearer) => lines.good.push(bearer),
            Err(source) if lines.bad.len() < MAX_REPORTED => lines.bad.push(BearerFileError::Line {
                path: path.into(),
                line: number,
                source,
            }),
            Err(_) => unreported += 1,
        }
    }
    if unreported > 0 {
        lines.bad.push(BearerFileError::More {
            path: path.into(),
            unreported,
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
    fn bad_lines_are_numbered_and_good_lines_are_used() {
        let text = [line("a", '1'), "# a comment\n\n".into(), "secret\r\n".into()].concat();
        let bytes = [text.as_bytes(), b"\xff\n", line("b", '2').as_bytes()].concat();
        let (good, bad) = read_lines(&bytes, &[]);
        let expected = [line("a", '1'), line("b", '2')].map(|line| BearerHash::parse(line.trim()).expect("a token"));
        assert_eq!(good, expected);
        let form = BadBearer.to_string();
        assert_eq!(bad, [format!("f:4: {form}"), format!("f:5: {form}")]);
    }

    #[test]
    fn a_hash_belongs_to_the_first_bearer_with_it() {
        let known = BearerHash::parse(line("known", '1').trim()).expect("a token");
        let text = [line("b", '1'), line("c", '2'), line("d", '2')].concat();
        let (good, bad) = read_lines(text.as_bytes(), std::slice::from_ref(&known));
        assert_eq!(good, [BearerHash::parse(line("c", '2').trim()).expect("a token")]);
        let twice = BadLine::Twice;
        assert_eq!(bad, [format!("f:1: {twice}"), format!("f:3: {twice}")]);
    }

    #[test]
    fn a_file_of_another_format_reports_only_the_first_lines() {
        let (good, bad) = read_lines("no token\n".repeat(500).as_bytes(), &[]);
        assert!(good.is_empty());
        assert_eq!(bad.len(), MAX_REPORTED + 1);
        assert_eq!(bad[MAX_REPORTED], "f: 490 more lines cannot be used");
    }
}
