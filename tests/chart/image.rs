//! The image: what it is made of, and where there is an engine, that it is made and runs.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::helm::root;
use crate::service::Served;

/// The stages of the image: each `FROM` with the lines below it.
fn stages(dockerfile: &str) -> Vec<(&str, Vec<&str>)> {
    let lines = dockerfile.lines().filter(|line| !line.starts_with('#'));
    lines.fold(Vec::new(), |mut stages, line| {
        match (line.strip_prefix("FROM "), stages.last_mut()) {
            (Some(image), _) => stages.push((image, Vec::new())),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => {}
        }
        stages
    })
}

#[test]
fn the_image_has_no_shell_and_its_user_no_rights() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).expect("the file");
    let stages = stages(&dockerfile);
    let [(build, built), (image, lines)] = stages.as_slice() else {
        panic!("{stages:?}")
    };
    let rust = fs::read_to_string(root().join("Cargo.toml")).expect("the manifest");
    let version = rust
        .split("rust-version = \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    assert!(
        build.contains(&format!("rust:{}-", version.expect("a version"))),
        "{build}"
    );
    assert!(
        built.iter().any(|line| line.contains("--locked --release")),
        "{built:?}"
    );
    assert!(image.contains("distroless"), "{image}");
    assert!(lines.contains(&"USER 65532:65532"), "{lines:?}");
    assert!(
        !lines
            .iter()
            .any(|line| line.starts_with("RUN ") || line.starts_with("ADD ")),
        "{lines:?}"
    );
    assert!(
        lines.contains(&"ENTRYPOINT [\"/fencepost\"]"),
        "the test pod runs it by that name"
    );
}

/// What `.dockerignore` lets into the build: everything is out but what it names.
fn context() -> BTreeSet<String> {
    let ignored = fs::read_to_string(root().join(".dockerignore")).expect("the file");
    let mut rules = ignored
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    assert_eq!(rules.next(), Some("*"), "nothing is in unasked");
    let named = rules.map(|rule| {
        rule.strip_prefix('!')
            .unwrap_or_else(|| panic!("{rule} lets nothing in"))
    });
    named.map(str::to_owned).collect()
}

/// Copies the context of the build to a folder, as an engine gets it.
fn copy_context(to: &Path) {
    for name in context() {
        let mut copy = Command::new("cp");
        copy.args(["-r", "--parents", &name]).arg(to).current_dir(root());
        let copied = copy.status();
        assert!(
            copied.expect("cp runs").success(),
            "{name} is in .dockerignore, and nowhere else"
        );
    }
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path());
    let below = entries.map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    below.flatten().collect()
}

/// A path without its `..`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
        plain
    })
}

#[test]
fn what_the_image_copies_is_let_into_its_build() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).expect("the file");
    let stages = stages(&dockerfile);
    let (_, built) = &stages[0];
    let copies: Vec<_> = built.iter().filter_map(|line| line.strip_prefix("COPY ")).collect();
    assert!(!copies.is_empty(), "{built:?}");
    let context = context();
    for copy in copies {
        let mut paths: Vec<_> = copy.split_whitespace().filter(|word| !word.starts_with("--")).collect();
        paths.pop().expect("where it goes");
        for path in paths {
            assert!(root().join(path).exists(), "{path}");
            let first = path.split('/').next().expect("a part");
            assert!(
                path == "." || context.contains(first),
                "{path} is kept out by .dockerignore"
            );
        }
    }
}

#[test]
fn what_the_build_of_the_image_reads_is_let_into_it() {
    let folder = tempfile::tempdir().expect("a folder");
    copy_context(folder.path());
    // All that the manifest names, such as benches, must be there, or Cargo reads no further.
    let manifest = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--locked",
            "--offline",
            "--no-deps",
            "--format-version",
            "1",
        ])
        .current_dir(folder.path())
        .output()
        .expect("cargo runs");
    assert!(
        manifest.status.success(),
        "{}",
        String::from_utf8_lossy(&manifest.stderr)
    );
    assert!(folder.path().join("Cargo.lock").is_file(), "the build is --locked");
    let mut included = 0;
    for file in files(&folder.path().join("src")) {
        let text = fs::read_to_string(&file).expect("a text");
        for rest in text.split("include_str!(\"").skip(1) {
            let path = rest.split('"').next().expect("an end");
            let path = plain(&file.parent().expect("a folder").join(path));
            assert!(
                path.starts_with(folder.path()) && path.is_file(),
                "{path:?} of {file:?}"
            );
            included += 1;
        }
    }
    assert!(included >= 10, "{included}");
}

#[test]
fn the_line_of_the_quick_start_serves_whoever_reaches_the_container() {
    let page = fs::read_to_string(root().join("docs/quickstart.md")).expect("the page");
    let line = page
        .lines()
        .find(|line| line.starts_with("$ docker run "))
        .expect("a line");
    let (engines, own) = line.split_once(" fencepost ").expect("the name of the image");
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    for argument in own.split(' ') {
        // A port of its own for each that the line publishes.
        let address = argument.strip_prefix("0.0.0.0:");
        if let Some(port) = address {
            assert!(
                engines.contains(&format!("--publish 127.0.0.1:{port}:{port} ")),
                "{line}"
            );
        }
        server.arg(address.map_or(argument, |_| "0.0.0.0:0"));
    }
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).expect("the file");
    let data = engines.split("--volume fencepost:").nth(1).expect("a volume");
    assert!(
        dockerfile.contains(&format!("ENV FENCEPOST_DATA_DIR={data}\n")),
        "{line}"
    );
    server.env_clear().env("FENCEPOST_DATA_DIR", folder.path());
    let mut server = Served(server.stderr(Stdio::piped()).spawn().expect("the program starts"));
    let log = BufReader::new(server.0.stderr.take().expect("a pipe"));
    let mut lines = log.lines().map_while(Result::ok);
    let serving = lines.find(|line| line.contains("serving on ")).expect("it serves");
    assert!(serving.contains("serving on 0.0.0.0:"), "{serving}");
}

/// What runs containers here: it is asked whether it can.
fn engine() -> Option<&'static str> {
    let works = |engine: &&str| {
        let asked = Command::new(engine).arg("info").output();
        asked.is_ok_and(|asked| asked.status.success())
    };
    ["docker", "podman"].into_iter().find(works)
}

fn ran(command: &mut Command) -> Output {
    let ran = command.output().expect("the engine runs");
    assert!(
        ran.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
    ran
}

/// It is fetched and linked for many minutes, so it is for long runs.
#[test]
#[cfg_attr(not(feature = "soak"), ignore = "an image is made in long runs alone")]
fn the_image_is_made_and_runs_where_there_is_an_engine() {
    let Some(engine) = engine() else {
        eprintln!("skipped: neither docker nor podman can make an image here");
        return;
    };
    let tag = format!("fencepost-test:{}", std::process::id());
    ran(Command::new(engine)
        .args(["build", "--tag", &tag, "."])
        .current_dir(root()));
    let hardened = ["run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL"];
    let said = ran(Command::new(engine).args(hardened).args([&tag, "--version"]));
    ran(Command::new(engine).args(["rmi", &tag]));
    let said = String::from_utf8_lossy(&said.stdout);
    assert_eq!(said.trim(), format!("fencepost {}", env!("CARGO_PKG_VERSION")));
}
