//! The names of all tests, as `binary::module::test`; those of the library, the program and the client begin
//! with `lib`, `bin` and `fencepost_client`.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{CORE, Source, TESTS, Token, files_in, read, root, tokens};

/// All tests of the project.
pub fn all_tests() -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    let mut themes = Themes::default();
    let tests_of_all = TESTS.into_iter().flat_map(Source::all_in);
    let sources: Vec<_> = Source::all().into_iter().chain(tests_of_all).collect();
    for source in &sources {
        let module = module(&source.path);
        let tokens = tokens(&source.code);
        tests.extend(plain_tests(&tokens).into_iter().map(|test| format!("{module}::{test}")));
        themes.read(&module, &tokens);
    }
    tests.extend(themes.tests());
    tests.extend(crate::faults::tests(&sources, module));
    tests
}

/// The module that a file is, under its test binary.
fn module(path: &str) -> String {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    if let Some(client) = path.strip_prefix("clients/rust/src/") {
        return format!("fencepost_client::{}", client.replace('/', "::"));
    }
    let path = path
        .strip_prefix(CORE)
        .map_or(path.to_owned(), |module| format!("src{module}"));
    let inner = match path.strip_prefix("src/") {
        Some("main") => "bin".to_owned(),
        Some("lib") => "lib".to_owned(),
        Some(cli) if cli.starts_with("cli") => format!("bin/{cli}"),
        Some(module) => format!("lib/{module}"),
        None => path.trim_start_matches("core/").trim_start_matches("tests/").to_owned(),
    };
    let inner = inner
        .strip_suffix("/main")
        .or(inner.strip_suffix("/mod"))
        .unwrap_or(&inner);
    inner.replace('/', "::")
}

/// The functions under a test attribute, with the inline modules around them.
fn plain_tests(tokens: &[Token<'_>]) -> Vec<String> {
    let mut tests = Vec::new();
    let mut blocks: Vec<Option<&str>> = Vec::new();
    let (mut module, mut is_test) = (None, false);
    for (at, token) in tokens.iter().enumerate() {
        let next = tokens.get(at + 1).map_or("", |token| token.text);
        match token.text {
            "mod" => module = Some(next),
            ";" => module = None,
            "{" => blocks.push(module.take()),
            "}" => drop(blocks.pop()),
            "test" => is_test |= opens_attribute(&tokens[..at]),
            "fn" if std::mem::take(&mut is_test) && next != "$" => {
                let path = blocks.iter().flatten().copied().chain([next]);
                tests.push(path.collect::<Vec<_>>().join("::"));
            }
            _ => {}
        }
    }
    tests
}

/// Whether the word behind these tokens is the last one of an attribute's path: `#[tokio::test`.
fn opens_attribute(before: &[Token<'_>]) -> bool {
    let path = before
        .iter()
        .rev()
        .take_while(|token| token.is_word() || token.text == "::")
        .count();
    let start = before.len() - path;
    start >= 2 && before[start - 1].text == "[" && before[start - 2].text == "#"
}

/// The tables of tests that macros make: `macro_rules! suite { … suite_theme!( … theme { case, … }) }`
/// names the cases of each theme, and `suite!(backend, …)` makes a test of each for a backend.
#[derive(Default)]
struct Themes {
    cases: BTreeMap<String, Vec<String>>,
    uses: Vec<(String, String)>,
}

impl Themes {
    fn read(&mut self, module: &str, tokens: &[Token<'_>]) {
        let texts: Vec<&str> = tokens.iter().map(|token| token.text).collect();
        let mut table = None;
        for at in 0..texts.len() {
            match texts[at..] {
                ["macro_rules", "!", name, "{", ..] => table = Some(name),
                [theme, "!", "(", ..] if theme.ends_with("_theme") => {
                    let cases = theme_cases(&texts[at..]);
                    self.cases
                        .entry(table.unwrap_or_default().to_owned())
                        .or_default()
                        .extend(cases);
                }
                [table, "!", "(", backend, ",", ..] if table.ends_with("_suite") => {
                    self.uses.push((table.to_owned(), format!("{module}::{backend}")));
                }
                _ => {}
            }
        }
    }

    fn tests(&self) -> impl Iterator<Item = String> + '_ {
        self.uses.iter().flat_map(|(table, backend)| {
            let cases = self
                .cases
                .get(table)
                .unwrap_or_else(|| panic!("no table of cases named {table}"));
            cases.iter().map(move |case| format!("{backend}::{case}"))
        })
    }
}

/// The cases of one theme, as `theme::case`.
fn theme_cases(texts: &[&str]) -> Vec<String> {
    let open = texts
        .iter()
        .position(|text| *text == "{")
        .expect("the cases of a theme");
    let theme = texts[open - 1];
    let cases = texts[open + 1..].iter().take_while(|text| **text != "}").copied();
    let cases: Vec<&str> = cases.collect();
    let firsts = cases.split(|text| *text == ",").filter_map(|case| match case {
        ["@", _, case, ..] | [case, ..] => Some(case),
        [] => None,
    });
    firsts.map(|case| format!("{theme}::{case}")).collect()
}

#[test]
fn tests_are_found_in_modules_and_in_tables() {
    let code = "mod a { #[test] fn one() { } #[tokio::test(x)] async fn two() {} fn three() {} }\n#[test] fn four() {}";
    assert_eq!(plain_tests(&tokens(code)), ["a::one", "a::two", "four"]);
    let mut themes = Themes::default();
    themes.read(
        "b",
        &tokens("macro_rules! c_suite { ($x) => { c_theme!($x, d { e, @m f: G + H, }); } }"),
    );
    themes.read("b", &tokens("c_suite!(i, j, ());"));
    assert_eq!(themes.tests().collect::<Vec<_>>(), ["b::i::d::e", "b::i::d::f"]);
}

#[test]
fn every_test_binary_is_listed() {
    let tests = all_tests();
    let files: Vec<String> = TESTS.into_iter().flat_map(files_in).collect();
    let roots = files.iter().filter_map(|path| {
        path.trim_start_matches("core/")
            .strip_prefix("tests/")?
            .strip_suffix(".rs")
    });
    let binaries = roots.filter_map(|root| root.strip_suffix("/main").or((!root.contains('/')).then_some(root)));
    // Those that only gather modules: their tests are listed under the modules.
    let binaries = binaries.filter(|binary| !["program", "redis"].contains(binary));
    for binary in binaries.chain(["lib"]) {
        assert!(
            tests.iter().any(|test| test.starts_with(&format!("{binary}::"))),
            "no test of {binary} was found"
        );
    }
}

#[test]
fn the_test_binaries_that_the_script_tells_apart_exist() {
    let script = read("scripts/test");
    for list in ["longest=", "alone="] {
        let line = script.lines().find_map(|line| line.strip_prefix(list));
        let line = line.unwrap_or_else(|| panic!("scripts/test has no {list}"));
        let names = line.trim_matches(['(', ')']).split(' ');
        for name in names {
            let of_one_file = root().join(format!("tests/{name}.rs"));
            let of_many = root().join(format!("tests/{name}/main.rs"));
            assert!(
                of_one_file.is_file() || of_many.is_file(),
                "{list}: there is no test binary {name}"
            );
        }
    }
}
