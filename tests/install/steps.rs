//! The steps of a release, and the workflow that runs them.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::dist::{TARGET, VERSION, dist, has, output, path, read, root, stand_ins, steps, succeeds, text};

#[test]
fn every_step_of_a_release_runs_dry_and_publishes_nothing() {
    // The dry run fails if it calls a program that publishes.
    let Some(dist) = dist() else { return };
    for step in steps() {
        assert!(dist.said.contains(&format!("== {step}\n")), "{step}: {}", dist.said);
    }
    for published in [
        "cosign sign-blob ",
        "cosign attest-blob ",
        "docker buildx build --push --platform linux/amd64",
        "helm push ",
        "oras push ",
        "cargo publish ",
        "git push origin clients/go/",
        "python3 -m twine upload ",
        "npm publish --access public --provenance ",
        "mvn ",
        "gh release create ",
    ] {
        assert!(
            dist.said.contains(&format!("would run: {published}")),
            "{published}: {}",
            dist.said
        );
    }
    // Of what speaks against a release here, none is a version.
    assert!(!dist.said.contains("has version"), "{}", dist.said);
    let sums = fs::read_to_string(dist.folder.join("SHA256SUMS")).expect("the sums");
    for part in [
        ".tar.gz\n",
        ".debug\n",
        ".deb\n",
        ".rpm\n",
        ".whl\n",
        "  fencepost.rb\n",
        "  install.sh\n",
    ] {
        assert!(sums.contains(part), "{part}: {sums}");
    }
    succeeds(
        Command::new("sha256sum")
            .args(["--check", "--quiet", "SHA256SUMS"])
            .current_dir(&dist.folder),
    );
}

#[test]
fn the_workflow_runs_every_step_in_order_and_is_dry_unless_told() {
    let workflow = read(".github/workflows/release.yml");
    let runs = workflow
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- run: scripts/release "));
    let steps = steps();
    let wanted = steps.iter().map(|step| match step.as_str() {
        "programs" => step.clone(),
        _ => format!("{step} $DRY"),
    });
    assert!(runs.eq(wanted), "{workflow}");
    assert!(workflow.contains("\non:\n  workflow_dispatch:\n") && workflow.contains("        default: true\n"));
    assert!(workflow.contains("\npermissions:\n  contents: read\n"));
}

#[test]
fn a_runner_of_its_own_builds_what_no_cross_build_can() {
    let workflow = read(".github/workflows/release.yml");
    let script = read("scripts/release");
    let platforms = script
        .split("\nplatforms=(\n")
        .nth(1)
        .and_then(|rest| rest.split("\n)").next());
    let lines = platforms.expect("the platforms").lines();
    let targets: Vec<_> = lines
        .map(|line| {
            line.trim()
                .trim_start_matches('\'')
                .split(' ')
                .next()
                .expect("a target")
        })
        .collect();
    assert_eq!(targets.len(), 4, "{targets:?}");
    for target in targets {
        let runner = if target.contains("apple") { "macos-" } else { "ubuntu-" };
        let entry = workflow
            .split("- runner: ")
            .find(|entry| entry.lines().nth(1).is_some_and(|line| line.contains(target)));
        assert!(entry.is_some_and(|entry| entry.starts_with(runner)), "{target}");
        assert!(
            read("packaging/homebrew/fencepost.rb").contains(&format!("sha256 \"@{target}@\"")),
            "{target}"
        );
    }
    // The program needs a Unix; the client for Rust does not.
    assert!(workflow.contains("runner: [macos-15, windows-2025]\n"));
    assert!(workflow.contains("- run: cargo test --locked --package fencepost-client\n"));
}

/// Runs a step in earnest, with a `docker` that answers so.
fn with_docker(step: &str, answer: &str) -> (String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let programs = folder.path().join("programs");
    let called = folder.path().join("called");
    let line = |answer: &str| format!("echo \"$(basename \"$0\") $*\" >>{}\n{answer}", called.display());
    stand_ins(&programs, &["docker"], &line(answer));
    stand_ins(&programs, &["cosign", "helm", "oras"], &line(""));
    let dist = folder.path().join("dist");
    fs::create_dir_all(dist.join("image")).expect("a folder");
    for arch in ["amd64", "arm64"] {
        fs::write(dist.join(format!("image/{arch}.tar")), "").expect("a file");
    }
    let mut release = Command::new(root().join("scripts/release"));
    release
        .arg(step)
        .env("PATH", path(&programs))
        .env("FENCEPOST_DIST", &dist)
        .env("FENCEPOST_REGISTRY", "registry.example.com/fencepost");
    let ran = output(&mut release);
    assert!(!ran.status.success());
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    (said, fs::read_to_string(called).unwrap_or_default())
}

#[test]
fn no_image_and_no_chart_is_released_without_the_digests_below_them() {
    let dockerfile = read("Dockerfile");
    let lines: Vec<_> = dockerfile
        .lines()
        .filter(|line| line.starts_with("ARG BASE="))
        .collect();
    assert_eq!(lines.len(), 1);
    // A base without a digest.
    let (said, called) = with_docker("image", "echo latest");
    assert!(
        said.contains("has no digest: latest") && !called.contains("docker buildx build"),
        "{said}{called}"
    );
    // An index without one.
    let digest = format!("sha256:{}", "a".repeat(64));
    let metadata = "for word in \"$@\"; do case $word in */metadata.json) echo '{}' >\"$word\" ;; esac; done";
    let (said, called) = with_docker("image", &format!("{metadata}\necho {digest}"));
    assert!(
        called.contains(&format!(
            "--build-arg BASE=gcr.io/distroless/static-debian12:nonroot@{digest} "
        )),
        "{called}"
    );
    assert!(
        said.contains("the image has no digest: null") && !called.contains("cosign"),
        "{said}{called}"
    );
    let (said, called) = with_docker("chart", "");
    assert!(
        said.contains("the image has no digest") && called.is_empty(),
        "{said}{called}"
    );
}

#[test]
fn the_chart_of_a_release_runs_its_image_by_digest() {
    let (Some(dist), true) = (dist(), has("helm")) else {
        return;
    };
    let chart = dist.folder.join(format!("chart/fencepost-{VERSION}.tgz"));
    let mut helm = Command::new("helm");
    helm.args(["template", "locks", text(&chart), "--kube-version", "1.34.2"])
        .env("PATH", path(Path::new("/usr/sbin")));
    let rendered = succeeds(&mut helm);
    let image = format!("registry.example.com/fencepost/fencepost@sha256:{}", "0".repeat(64));
    assert!(rendered.contains(&image), "{rendered}");
}

#[test]
fn cargo_binstall_finds_the_archive_and_the_program_in_it() {
    let Some(dist) = dist() else { return };
    let manifest = read("Cargo.toml");
    let key = |name: &str| {
        let line = manifest
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} = \"")));
        let value = line.unwrap_or_else(|| panic!("no {name}")).trim_end_matches('"');
        let words = [
            ("repo", env!("CARGO_PKG_REPOSITORY")),
            ("version", VERSION),
            ("name", "fencepost"),
            ("target", TARGET),
            ("bin", "fencepost"),
        ];
        words.iter().fold(value.to_owned(), |value, (word, said)| {
            value.replace(&format!("{{ {word} }}"), said)
        })
    };
    let (releases, archive) = key("pkg-url")
        .rsplit_once('/')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .expect("a URL");
    assert!(
        read("install.sh").contains(releases.trim_end_matches(&format!("/v{VERSION}"))),
        "{releases}"
    );
    let listed = succeeds(Command::new("tar").arg("-tzf").arg(dist.folder.join(archive)));
    assert!(listed.lines().any(|line| line == key("bin-dir")), "{listed}");
    assert_eq!(key("pkg-fmt"), "tgz");
}

#[test]
fn the_debug_information_lies_beside_a_program_without_it() {
    let Some(dist) = dist() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let name = format!("fencepost-{VERSION}-{TARGET}");
    let mut tar = Command::new("tar");
    tar.arg("-xzf")
        .arg(dist.folder.join(format!("{name}.tar.gz")))
        .arg("--directory")
        .arg(folder.path());
    succeeds(&mut tar);
    let sections = |file: &Path| succeeds(Command::new("readelf").args(["--sections", "--wide"]).arg(file));
    let program = sections(&folder.path().join(name.clone()).join("fencepost"));
    assert!(
        program.contains(".gnu_debuglink") && !program.contains(".debug_line") && !program.contains(".symtab"),
        "{program}"
    );
    let debug = sections(&dist.folder.join(format!("{name}.debug")));
    assert!(debug.contains(".debug_line") && debug.contains(".symtab"), "{debug}");
}
