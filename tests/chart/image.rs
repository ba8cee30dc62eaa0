//! The image: what it is made of, and where there is an engine, that it is made and runs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use crate::helm::root;
use crate::service::Served;

#[test]
fn the_image_has_no_shell_and_its_user_no_rights() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).expect("the file");
    let lines: Vec<_> = dockerfile.lines().collect();
    let bases = lines.iter().filter(|line| line.starts_with("FROM "));
    assert_eq!(bases.collect::<Vec<_>>(), [&"FROM ${BASE}"]);
    assert!(
        lines.contains(&"ARG BASE=gcr.io/distroless/static-debian12:nonroot"),
        "{lines:?}"
    );
    assert!(lines.contains(&"USER 65532:65532"), "{lines:?}");
    let made = lines
        .iter()
        .filter(|line| ["RUN ", "ADD ", "COPY "].iter().any(|word| line.starts_with(word)));
    // What `scripts/dist` packed, and nothing that runs while an image for another architecture is made.
    assert_eq!(made.collect::<Vec<_>>(), [&"ADD ${TARGETARCH}.tar /"]);
    assert!(
        lines.contains(&"ENTRYPOINT [\"/fencepost\"]"),
        "the test pod runs it by that name"
    );
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

/// The base is fetched, so it is for long runs. The program of the tests needs a C library.
#[test]
#[cfg_attr(not(feature = "soak"), ignore = "an image is made in long runs alone")]
fn the_image_is_made_and_runs_where_there_is_an_engine() {
    let Some(engine) = engine() else {
        eprintln!("skipped: neither docker nor podman can make an image here");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    ran(Command::new(root().join("scripts/dist"))
        .arg(target)
        .env("FENCEPOST_BIN", env!("CARGO_BIN_EXE_fencepost"))
        .env("FENCEPOST_DIST", folder.path()));
    let tag = format!("fencepost-test:{}", std::process::id());
    ran(Command::new(engine)
        .args(["build", "--tag", &tag, "--file", "Dockerfile"])
        .args(["--build-arg", "BASE=gcr.io/distroless/cc-debian12:nonroot"])
        .arg(folder.path().join("image"))
        .current_dir(root()));
    let hardened = ["run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL"];
    let said = ran(Command::new(engine).args(hardened).args([&tag, "--version"]));
    ran(Command::new(engine).args(["rmi", &tag]));
    let said = String::from_utf8_lossy(&said.stdout);
    assert_eq!(said.trim(), format!("fencepost {}", env!("CARGO_PKG_VERSION")));
}
