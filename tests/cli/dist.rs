//! A release, as `scripts/dist` builds it.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::cli::program::{run, text};
use crate::cli::server::Server;

fn ran(program: impl AsRef<Path>, arguments: &[&str], folder: &Path) -> String {
    let mut command = Command::new(program.as_ref());
    command.args(arguments).current_dir(folder);
    let output = run(command);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// It is optimised and linked for many minutes, so it is for long runs.
#[test]
#[cfg_attr(not(feature = "soak"), ignore = "a release is built in long runs alone")]
fn a_release_has_a_static_program_checksums_and_a_bill_of_materials() {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        eprintln!("skipped: the program of amd64 does not run here");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    ran(root.join("scripts/dist"), &["amd64"], root);
    let dist = root.join("target/dist");
    let name = format!("fencepost-{}-linux-amd64", env!("CARGO_PKG_VERSION"));
    let checked = ran("sha256sum", &["--check", "SHA256SUMS"], &dist);
    assert_eq!(checked, format!("{name}.tar.gz: OK\n{name}.cdx.json: OK\n"));
    let folder = tempfile::tempdir().expect("a folder");
    let archive = dist.join(format!("{name}.tar.gz"));
    ran("tar", &["-xzf", archive.to_str().expect("a path")], folder.path());
    let unpacked = folder.path().join(&name);
    let version = ran(unpacked.join("fencepost"), &["--version"], &unpacked);
    assert_eq!(version, format!("fencepost {}\n", env!("CARGO_PKG_VERSION")));
    let home = tempfile::tempdir().expect("a folder");
    let server = Server::start_program(&unpacked.join("fencepost"), &home, &["--listen", "127.0.0.1:0"]);
    let lock = [
        "--addr",
        &server.address,
        "lock",
        "default/one",
        "--",
        "sh",
        "-c",
        "echo $FENCEPOST_LOCK",
    ];
    assert_eq!(ran(unpacked.join("fencepost"), &lock, &unpacked), "one\n");
    for file in ["LICENSE", "man1/fencepost-lock.1", "completions/fencepost.fish"] {
        assert!(unpacked.join(file).is_file(), "{file}");
    }
    let bill = fs::read_to_string(dist.join(format!("{name}.cdx.json"))).expect("the bill");
    let bill: Value = serde_json::from_str(&bill).expect("JSON");
    assert_eq!(bill["metadata"]["component"]["name"], "fencepost");
    let components = bill["components"].as_array().expect("components");
    let has = |name: &str| components.iter().any(|component| component["name"] == name);
    assert!(has("tonic") && has("ring"), "what the program is built from");
    assert!(!has("proptest"), "not what only its tests use");
}
