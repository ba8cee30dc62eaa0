//! The table of values in the README of the chart is what values.yaml says.

use std::fs;

use serde_json::Value;

use crate::helm::chart;

/// Where the table begins and ends.
const MARKS: [&str; 2] = ["<!-- values -->\n", "<!-- /values -->\n"];

/// A row for each value that a comment explains.
fn table(text: &str) -> String {
    let values: Value = serde_saphyr::from_str(text).expect("YAML");
    let (mut rows, mut path, mut comment) = (String::new(), Vec::<&str>::new(), None::<String>);
    for line in text.lines() {
        let bare = line.trim_start();
        let depth = (line.len() - bare.len()) / 2;
        if let Some(first) = bare.strip_prefix("# -- ") {
            comment = Some(first.to_owned());
        } else if let (Some(so_far), Some(more)) = (&mut comment, bare.strip_prefix("# ")) {
            *so_far += &format!(" {more}");
        } else if let Some((key, _)) = bare.split_once(':').filter(|_| !bare.starts_with(['#', '-'])) {
            path.truncate(depth);
            path.push(key);
            if let Some(said) = comment.take() {
                let value = values.pointer(&format!("/{}", path.join("/"))).expect(line);
                rows += &format!("| `{}` | `{value}` | {} |\n", path.join("."), said.replace('|', "\\|"));
            }
        }
    }
    format!("| value | default | what it does |\n| --- | --- | --- |\n{rows}")
}

#[test]
fn the_table_of_values_says_what_the_values_say() {
    let values = fs::read_to_string(chart().join("values.yaml")).expect("the values");
    let readme = chart().join("README.md");
    let text = fs::read_to_string(&readme).expect("the README");
    let (before, rest) = text.split_once(MARKS[0]).expect("where it begins");
    let (_, after) = rest.split_once(MARKS[1]).expect("where it ends");
    let wanted = [before, MARKS[0], &table(&values), MARKS[1], after].concat();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&readme, wanted).expect("the README is written");
    } else {
        assert!(
            text == wanted,
            "UPDATE_DOCS=1 cargo test --test chart values writes the table anew"
        );
    }
}
