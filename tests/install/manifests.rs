//! What registries show of each package, and what the documents say of them.

use crate::dist::{VERSION, read, root};

const REPOSITORY: &str = "https://github.com/fencepost/fencepost";

#[test]
fn every_manifest_says_whose_package_it_is_and_where_its_source_lies() {
    let wanted: &[(&str, &[&str])] = &[
        (
            "Cargo.toml",
            &[
                "license = ",
                "authors = ",
                "repository = ",
                "homepage = ",
                "keywords = ",
                "categories = ",
                "readme = ",
            ],
        ),
        (
            "clients/rust/Cargo.toml",
            &[
                "license = ",
                "authors = ",
                "repository = ",
                "homepage = ",
                "keywords = ",
                "categories = ",
                "readme = ",
            ],
        ),
        (
            "clients/python/pyproject.toml",
            &[
                "license = ",
                "license-files = ",
                "authors = ",
                "classifiers = ",
                "Homepage = ",
                "Repository = ",
                "Changelog = ",
                "Issues = ",
            ],
        ),
        (
            "packaging/python/pyproject.toml",
            &[
                "license = ",
                "license-files = ",
                "authors = ",
                "classifiers = ",
                "Homepage = ",
                "Repository = ",
                "Changelog = ",
                "Issues = ",
            ],
        ),
        (
            "clients/typescript/package.json",
            &[
                "\"license\": ",
                "\"author\": ",
                "\"repository\": ",
                "\"homepage\": ",
                "\"bugs\": ",
                "\"keywords\": ",
            ],
        ),
        (
            "packaging/npm/package.json",
            &[
                "\"license\": ",
                "\"author\": ",
                "\"repository\": ",
                "\"homepage\": ",
                "\"bugs\": ",
                "\"keywords\": ",
            ],
        ),
        (
            "clients/java/pom.xml",
            &[
                "<licenses>",
                "<developers>",
                "<scm ",
                "<url>",
                "<issueManagement>",
                "maven-source-plugin",
                "maven-javadoc-plugin",
                "maven-gpg-plugin",
            ],
        ),
        (
            "helm/fencepost/Chart.yaml",
            &[
                "home: ",
                "sources:\n",
                "maintainers:\n",
                "icon: ",
                "artifacthub.io/license: ",
            ],
        ),
        (
            "packaging/linux/nfpm.yaml",
            &["homepage: ", "license: ", "maintainer: ", "description: "],
        ),
        (
            "Dockerfile",
            &[
                ".title=",
                ".source=",
                ".licenses=",
                ".version=",
                ".revision=",
                ".created=",
                ".base.name=",
                ".description=",
                ".url=",
            ],
        ),
    ];
    for (manifest, parts) in wanted {
        let text = read(manifest);
        for part in parts.iter().chain([&REPOSITORY]) {
            assert!(text.contains(part), "{manifest} lacks {part}");
        }
    }
    for module in ["client", "proto", "shedlock", "spring", "testing"] {
        let pom = read(&format!("clients/java/fencepost-{module}/pom.xml"));
        assert!(pom.contains("<name>") && pom.contains("<description>"), "{module}");
    }
    assert!(read("clients/go/go.mod").starts_with("module github.com/fencepost/fencepost/clients/go\n"));
}

#[test]
fn the_licence_is_in_each_package() {
    let licence = read("LICENSE");
    // Links, which crates and wheels follow.
    assert_eq!(read("clients/rust/LICENSE"), licence);
    assert_eq!(read("clients/python/LICENSE"), licence);
    assert!(read("clients/typescript/build-package").contains("\ncp ../../LICENSE .\n"));
    assert!(read("clients/java/pom.xml").contains("<include>LICENSE</include>"));
}

/// The commands that fetch a package by its name.
const FETCHES: &[&str] = &[
    "pip install",
    "pip3 install",
    "npm install",
    "npx",
    "yarn add",
    "pnpm add",
    "uv add",
    "brew install",
    "apt install",
    "apt-get install",
];

#[test]
fn no_page_installs_a_name_that_is_not_published() {
    assert_eq!(VERSION, "0.1.0", "once a release is published, this test ends");
    let mut pages = vec![
        "README.md".to_owned(),
        "packaging/python/README.md".to_owned(),
        "packaging/npm/README.md".to_owned(),
    ];
    let docs = std::fs::read_dir(root().join("docs")).expect("the pages");
    let docs = docs.map(|entry| entry.expect("a page").file_name().into_string().expect("UTF-8"));
    pages.extend(
        docs.filter(|name| name.ends_with(".md"))
            .map(|name| format!("docs/{name}")),
    );
    pages.extend(["go", "java", "python", "rust", "typescript"].map(|client| format!("clients/{client}/README.md")));
    for page in pages {
        for line in read(&page).lines() {
            for fetch in FETCHES {
                let Some((_, rest)) = line.split_once(fetch) else {
                    continue;
                };
                let names = rest.split(['`', '|']).next().unwrap_or_default().split_whitespace();
                let by_name = names.filter(|word| {
                    word.starts_with("fencepost") && *word != "fencepost" && !word.contains('.') && !word.contains('/')
                });
                assert_eq!(by_name.count(), 0, "{page}: {line}");
            }
        }
    }
}
