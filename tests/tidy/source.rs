//! The project's files as the rules read them: code without comments and strings, and the paths
//! that it names.

use std::fs;
use std::path::Path;

/// Where the project lies.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file, by its path from the root.
pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The paths from the root of all files in a folder and those below it, in order.
pub fn files_in(folder: &str) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        for path in entries.map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() {
                folders.push(path)
            } else {
                files.push(from_root(&path))
            }
        }
    }
    files.sort();
    files
}

fn from_root(path: &Path) -> String {
    let path = path.strip_prefix(root()).expect("a path below the root");
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Where the code of the queue and the engines lies.
pub const CORE: &str = "core/src";
/// Where the client's code lies.
const CLIENT: &str = "clients/rust/src";
/// The folders of tests.
pub const TESTS: [&str; 2] = ["core/tests", "tests"];

/// A Rust file.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its path from the root.
    pub path: String,
    /// Its code, line by line as in the file, with blanks for comments and what strings hold.
    pub code: String,
}

/// A path that the code names, in full: `crate::name::Ttl`, `tonic::Status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// In which line.
    pub line: usize,
    /// Its segments.
    pub segments: Vec<String>,
}

impl Source {
    /// Reads a Rust file.
    pub fn read(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            code: blanked(&read(path)),
        }
    }

    /// The Rust files of a folder.
    pub fn all_in(folder: &str) -> Vec<Self> {
        let files = files_in(folder);
        files
            .iter()
            .filter(|path| path.ends_with(".rs"))
            .map(|path| Self::read(path))
            .collect()
    }

    /// The files of the library, the program and the client, which the rules read as the library's module `client`. The
    /// modules of `core` are the library's, which offers them all.
    pub fn all() -> Vec<Self> {
        let mut all = Self::all_in("src");
        all.extend(Self::all_in(CORE));
        // The client's own.
        all.retain(|source| !root().join(&source.path).is_symlink());
        all.extend(Self::all_in(CLIENT));
        all
    }

    /// What is built into the library, the program and the client: their files without their tests.
    pub fn product() -> Vec<Self> {
        let mut all = Self::all();
        all.retain(|source| !source.path.ends_with("/tests.rs") && !source.path.contains("/tests/"));
        for source in &mut all {
            source.code = without_tests(&source.code);
        }
        all
    }

    /// The module that the file is: `["backend", "embedded"]`.
    pub fn module(&self) -> Vec<String> {
        let path = self.path.strip_prefix("src/").unwrap_or(&self.path);
        let path = path.strip_prefix(CORE).or(path.strip_prefix(CLIENT)).unwrap_or(path);
        let path = path.strip_suffix(".rs").unwrap_or(path);
        let parts = path
            .split('/')
            .filter(|part| !matches!(*part, "" | "lib" | "main" | "mod"));
        self.base().into_iter().chain(parts.map(str::to_owned)).collect()
    }

    /// The manifest of its package.
    pub fn manifest(&self) -> String {
        let folder = self.path.split_once("src/").map_or("", |(folder, _)| folder);
        format!("{folder}Cargo.toml")
    }

    /// Whether it is a file of the client.
    pub fn is_of_client(&self) -> bool {
        self.path.starts_with(CLIENT)
    }

    /// What `crate` stands for.
    fn base(&self) -> Vec<String> {
        self.is_of_client().then(|| "client".to_owned()).into_iter().collect()
    }

    /// The paths that the code names, with `use` groups spread out and `self` and `super` resolved.
    pub fn paths(&self) -> Vec<Named> {
        let tokens = tokens(&self.code);
        let mut found = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let before = at.checked_sub(1).map_or("", |before| tokens[before].text);
            at = if tokens[at].is_word() && !matches!(before, "::" | ".") {
                spread(&tokens, at, &[], &mut found)
            } else {
                at + 1
            };
        }
        found.retain(|named| named.segments.len() > 1);
        found.into_iter().map(|named| self.resolved(named)).collect()
    }

    /// Whether its code names this crate.
    pub fn names(&self, name: &str) -> bool {
        let tokens = tokens(&self.code);
        let is_first = |at: usize| at == 0 || tokens[at - 1].text != "::";
        let mut pairs = tokens.windows(2).enumerate();
        pairs.any(|(at, pair)| pair[0].text == name && pair[1].text == "::" && is_first(at))
    }

    fn resolved(&self, named: Named) -> Named {
        let mut base = self.module();
        let mut rest = named.segments.as_slice();
        match rest[0].as_str() {
            "crate" => {
                base = self.base();
                rest = &rest[1..];
            }
            "fencepost" => {
                base.clear();
                rest = &rest[1..];
            }
            "fencepost_client" => {
                base = vec!["client".to_owned()];
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|segment| segment == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            _ => return named,
        }
        let whole = ["crate".to_owned()].into_iter().chain(base).chain(rest.iter().cloned());
        Named {
            line: named.line,
            segments: whole.collect(),
        }
    }
}

/// Where something is wrong: `file:line: what`.
pub fn place(source: &Source, line: usize, what: impl std::fmt::Display) -> String {
    format!("{}:{line}: {what}", source.path)
}

/// One token of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    /// As it is written; `::` is one.
    pub text: &'a str,
    /// In which line it stands, from 1.
    pub line: usize,
}

impl Token<'_> {
    /// Whether it is an identifier or a keyword.
    pub fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// The tokens of blanked code.
pub fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let word = rest
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            let length = match word {
                0 if rest.starts_with("::") => 2,
                0 => first.len_utf8(),
                word => word,
            };
            let (text, after) = rest.split_at(length);
            tokens.push(Token { text, line: number + 1 });
            rest = after.trim_start();
        }
    }
    tokens
}

/// Collects the path that begins at a token, or all of them where it has a group. Answers where it
/// ends.
fn spread(tokens: &[Token<'_>], start: usize, prefix: &[String], found: &mut Vec<Named>) -> usize {
    let mut segments = prefix.to_vec();
    let mut at = start;
    loop {
        segments.push(tokens[at].text.to_owned());
        at += 1;
        let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
        match tokens.get(at + 1) {
            Some(next) if text(at) == "::" && next.text == "{" => {
                return spread_group(tokens, at + 2, &segments, found);
            }
            Some(next) if text(at) == "::" && (next.is_word() || next.text == "*") => at += 1,
            _ => break,
        }
    }
    let line = tokens[start].line;
    found.push(Named { line, segments });
    at
}

/// The same for what stands behind the brace of a group.
fn spread_group(tokens: &[Token<'_>], start: usize, prefix: &[String], found: &mut Vec<Named>) -> usize {
    let mut at = start;
    while at < tokens.len() {
        at = match tokens[at].text {
            "}" => return at + 1,
            "," => at + 1,
            _ => spread(tokens, at, prefix, found),
        };
    }
    at
}

/// Code without the items under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mut rest = code;
    let mut kept = String::new();
    while let Some(at) = ["#[cfg(test)]", "#[cfg(all(test"]
        .iter()
        .filter_map(|mark| rest.find(mark))
        .min()
    {
        let item = &rest[at..];
        let body = item.find("]\n").map_or(0, |end| end + 1);
        let end = body + item_length(&item[body..]);
        kept.push_str(&rest[..at]);
        kept.extend(item[..end].chars().filter(|c| *c == '\n'));
        rest = &item[end..];
    }
    kept + rest
}

/// How long the item is with which code begins: to its `;`, or to the end of its block.
fn item_length(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            ';' if depth == 0 => return at + 1,
            '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// A text with blanks for its comments and what its strings and characters hold.
fn blanked(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let hidden = hidden_length(rest);
        let length = if hidden > 0 { hidden } else { c.len_utf8() };
        let (part, after) = rest.split_at(length);
        if hidden > 0 {
            code.extend(part.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        } else {
            code.push_str(part);
        }
        rest = after;
    }
    code
}

/// How long the comment, string or character is with which a text begins; zero for anything else.
fn hidden_length(text: &str) -> usize {
    let to = |end: Option<usize>| end.unwrap_or(text.len());
    if text.starts_with("//") {
        return to(text.find('\n'));
    }
    if text.starts_with("/*") {
        return to(text.find("*/").map(|end| end + 2));
    }
    if text.starts_with("r\"") || text.starts_with("r#") {
        let hashes = text[1..].len() - text[1..].trim_start_matches('#').len();
        if text[1 + hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let body = 2 + hashes;
            return to(text[body..].find(&close).map(|end| body + end + close.len()));
        }
    }
    match text.as_bytes() {
        [b'"', ..] => to(closing(text, '"')),
        // A quote that nothing closes right behind one character begins a lifetime.
        [b'\'', b'\\', ..] => to(closing(text, '\'')),
        [b'\'', ..] => text
            .char_indices()
            .nth(2)
            .filter(|(_, c)| *c == '\'')
            .map_or(0, |(at, _)| at + 1),
        _ => 0,
    }
}

/// Where a quoted text ends, behind its closing quote.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[test]
fn comments_and_strings_are_blank_and_code_is_not() {
    let text = "let a = \"x \\\" y\"; // b\nlet c: &'static str = r#\"d\"#; /* e\n */ f('g', '\\'', h)";
    let words: Vec<&str> = blanked(text).leak().split_whitespace().collect();
    let expected = [
        "let", "a", "=", ";", "let", "c:", "&'static", "str", "=", ";", "f(", ",", ",", "h)",
    ];
    assert_eq!(words, expected);
    assert_eq!(blanked(text).lines().count(), text.lines().count());
}

#[test]
fn groups_of_paths_are_spread_and_resolved() {
    let source = Source {
        path: "src/locks/undo.rs".into(),
        code: "use super::{Room, a::{self, B}};\nuse std::fmt;\nfn f() { crate::c::d(); x.y::<z>(); }".into(),
    };
    let named: Vec<String> = source
        .paths()
        .iter()
        .map(|named| format!("{} {}", named.line, named.segments.join("::")))
        .collect();
    let expected = [
        "1 crate::locks::Room",
        "1 crate::locks::a::self",
        "1 crate::locks::a::B",
        "2 std::fmt",
        "3 crate::c::d",
    ];
    assert_eq!(named, expected);
}

#[test]
fn items_for_tests_are_left_out() {
    let code = "a();\n#[cfg(test)]\nmod tests {\n  b { c }\n}\nd();\n#[cfg(all(test, feature = ))]\nmod tests;\ne();\n";
    assert_eq!(without_tests(code), "a();\n\n\n\n\nd();\n\n\ne();\n");
}
