//! The pages of `docs/`: each is in the summary, each link leads somewhere, each alert and each store has its section.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::documents::documents;
use crate::source::{files_in, read, root};

/// The pages of the book, by their path from the root.
pub fn pages() -> Vec<String> {
    let files = files_in("docs").into_iter();
    files.filter(|path| path.ends_with(".md")).collect()
}

/// The pictures of the book.
fn pictures() -> Vec<String> {
    let files = files_in("docs").into_iter();
    let is_picture = |path: &String| [".png", ".svg"].iter().any(|end| path.ends_with(end));
    files.filter(is_picture).collect()
}

/// What mdBook makes the id of a heading of.
pub fn anchor(heading: &str) -> String {
    let heading = heading.trim().to_lowercase();
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || matches!(c, '-' | '_') => Some(c),
        _ => None,
    });
    kept.collect()
}

/// The document of the root that a page consists of, if it includes one.
fn included(page: &str) -> Option<String> {
    let text = read(page);
    let path = text.strip_prefix("{{#include ")?.split("}}").next().expect("a path");
    Some(joined(page, path))
}

/// A page as it is shown, with what it includes.
fn shown(page: &str) -> String {
    included(page).map_or_else(|| read(page), |document| read(&document))
}

/// The path from the root of what a link of a file leads to.
pub fn joined(file: &str, link: &str) -> String {
    let mut path = PathBuf::from(file);
    path.pop();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            other => panic!("{file}: {link}: {other:?}"),
        }
    }
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// The relative links of a text, each with its fragment.
pub fn links(text: &str) -> Vec<(&str, &str)> {
    let outside = text.split("\n```").step_by(2);
    let links = outside.flat_map(|part| part.split("](").skip(1).filter_map(|rest| rest.split(')').next()));
    let relative = links.filter(|link| !link.contains(':'));
    relative
        .map(|link| link.split_once('#').unwrap_or((link, "")))
        .collect()
}

/// The anchors of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let outside = text.split("\n```").step_by(2);
    let headings = outside.flat_map(str::lines).filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// The sections of a page under its headings of the second level, each with its heading.
pub fn sections(text: &str) -> Vec<(&str, &str)> {
    let parts = text.split("\n## ").skip(1);
    parts.map(|part| part.split_once('\n').unwrap_or((part, ""))).collect()
}

#[test]
fn every_page_is_in_the_summary_once() {
    let summary = read("docs/SUMMARY.md");
    let mut listed: Vec<String> = links(&summary)
        .iter()
        .map(|(link, _)| joined("docs/SUMMARY.md", link))
        .collect();
    listed.sort();
    let expected: Vec<String> = pages().into_iter().filter(|page| page != "docs/SUMMARY.md").collect();
    assert_eq!(listed, expected);
}

#[test]
fn every_link_of_the_book_leads_to_a_page_of_it() {
    let (pages, pictures) = (pages(), pictures());
    // `scripts/docs` makes links to these lead to the pages that include them: those have no text where the repository shows them.
    let (including, own): (Vec<_>, Vec<_>) = pages.iter().partition(|page| included(page).is_some());
    let included: Vec<_> = including.iter().filter_map(|page| included(page)).collect();
    let mut followed = 0;
    for page in &pages {
        for (link, _) in links(&shown(page)).iter().filter(|(link, _)| !link.is_empty()) {
            let target = joined(page, link);
            let is_summary = page == "docs/SUMMARY.md" && including.contains(&&target);
            let is_there = own.contains(&&target) || pictures.contains(&target) || included.contains(&target);
            assert!(
                is_there || is_summary,
                "{page}: {link} is no text and no picture of the book"
            );
            followed += 1;
        }
    }
    assert!(followed > 50, "only {followed} links were followed");
}

#[test]
fn every_fragment_of_a_link_is_a_heading() {
    let mut followed = 0;
    for document in documents() {
        let text = if document.starts_with("docs/") {
            shown(&document)
        } else {
            read(&document)
        };
        for (link, fragment) in links(&text).into_iter().filter(|(_, fragment)| !fragment.is_empty()) {
            let there = match link {
                "" => text.clone(),
                link => shown(&joined(&document, link)),
            };
            assert!(
                anchors(&there).contains(fragment),
                "{document}: no heading {link}#{fragment}"
            );
            followed += 1;
        }
    }
    assert!(followed > 20, "only {followed} fragments were followed");
}

#[test]
fn every_file_that_a_page_includes_is_there() {
    for page in pages() {
        for rest in read(&page).split("{{#include ").skip(1) {
            let path = rest.split("}}").next().expect("an end");
            assert!(root().join(joined(&page, path)).is_file(), "{page} includes {path}");
        }
    }
}

/// What the page of a store tells, in this order.
const STORE_SECTIONS: &[&str] = &[
    "When to choose it",
    "Configuration",
    "What it promises",
    "How it fails",
    "What to watch",
];

#[test]
fn every_store_has_its_page() {
    let configuration = read("docs/configuration.md");
    let choice = configuration.lines().find(|line| line.starts_with("- `backend` "));
    let choice = choice.expect("the key that chooses the store");
    let overview = read("docs/README.md");
    for backend in crate::cargo::backends().keys() {
        assert!(choice.contains(&format!("`\"{backend}\"`")), "{backend}: {choice}");
        assert!(
            overview.to_lowercase().contains(backend),
            "{backend}: not in docs/README.md"
        );
        let page = read(&format!("docs/{backend}.md"));
        let headings: Vec<&str> = sections(&page).iter().map(|(heading, _)| *heading).collect();
        assert_eq!(headings, STORE_SECTIONS, "{backend}");
        assert!(page.contains("\n```toml\n"), "{backend}: no example of a configuration");
    }
}

/// What the runbook says of each alert, in this order.
const ALERT_PARTS: &[&str] = &["Meaning", "Check", "Do"];

#[test]
fn every_alert_has_its_section_of_the_runbook_and_no_section_lacks_its_alert() {
    let text = read("helm/fencepost/files/alerts.yaml");
    let alerts: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(alerts.len() > 5, "{alerts:?}");
    let runbooks = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("runbook_url: "));
    let runbooks: Vec<&str> = runbooks.filter_map(|link| Some(link.split_once('#')?.1)).collect();
    assert_eq!(runbooks, alerts.iter().map(|alert| anchor(alert)).collect::<Vec<_>>());
    let page = read("docs/runbook.md");
    let sections = sections(&page);
    let headings: Vec<&str> = sections.iter().map(|(heading, _)| *heading).collect();
    assert_eq!(headings, alerts, "the sections of docs/runbook.md, and the alerts");
    for (alert, text) in sections {
        let parts: Vec<&str> = text
            .split("\n**")
            .skip(1)
            .filter_map(|part| part.split(".**").next())
            .collect();
        assert_eq!(parts, ALERT_PARTS, "{alert}");
    }
}

/// The words of a text that may be metrics.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
    words.filter(|word| word.starts_with("fencepost_")).collect()
}

/// Names that begin like a metric, and are tables of the SQL stores.
const SQL_TABLES: &[&str] = &[
    "fencepost_lock",
    "fencepost_part",
    "fencepost_server",
    "fencepost_store",
];

#[test]
fn the_page_on_monitoring_has_just_the_metrics_that_there_are() {
    let source = read("src/metrics.rs") + &read("src/metrics/families.rs");
    let made: BTreeSet<&str> = source
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|text| text.starts_with("fencepost_"))
        .collect();
    assert!(made.len() > 20, "{made:?}");
    let page = read("docs/monitoring.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `fencepost_"));
    let listed: BTreeSet<String> = rows
        .filter_map(|row| Some(format!("fencepost_{}", row.split_once('`')?.0)))
        .collect();
    assert_eq!(listed.iter().map(String::as_str).collect::<BTreeSet<_>>(), made);
    for page in pages().iter().map(String::as_str).chain(["README.md"]) {
        for metric in metrics(&read(page)) {
            let is_table = SQL_TABLES.contains(&metric);
            assert!(made.contains(metric) || is_table, "{page}: there is no metric {metric}");
        }
    }
}
