//! The program as a package for Python and for Node: no Rust is needed.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::dist::{VERSION, dist, output, root, succeeds, takes_a_lock, text};

#[test]
fn the_wheel_contains_the_program() {
    let Some(dist) = dist() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let environment = folder.path().join("environment");
    succeeds(Command::new("python3").args(["-m", "venv", text(&environment)]));
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["--quiet", "--disable-pip-version-check", "install", "--no-index"]);
    succeeds(pip.arg(dist.file("fencepost_server-", ".whl")));
    let program = environment.join("bin/fencepost");
    takes_a_lock(&[text(&program)]);

    // The helper of the client finds it, though it is not on the path.
    let mut python = Command::new(environment.join("bin/python"));
    let helper = root().join("clients/python/src/fencepost/testing.py");
    python
        .args(["-c", HELPER, text(&helper)])
        .env("PATH", "/usr/bin:/bin")
        .env_remove("FENCEPOST_BIN");
    assert_eq!(succeeds(&mut python).trim(), text(&program));
}

/// Starts a server as tests do, without the packages that the client needs, and prints its program.
const HELPER: &str = "
import importlib.util, sys
spec = importlib.util.spec_from_file_location('testing', sys.argv[1])
testing = importlib.util.module_from_spec(spec)
spec.loader.exec_module(testing)
with testing.server() as server:
    print(server.process.args[0])
";

#[test]
fn the_node_packages_contain_the_program_and_pass_signals_on() {
    let Some(dist) = dist() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(
        folder.path().join("package.json"),
        r#"{"name": "empty", "private": true}"#,
    )
    .expect("a file");
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--offline", "--no-audit", "--no-fund"])
        .arg(dist.file("npm/fencepost-server-linux-", ".tgz"))
        .arg(dist.file("npm/fencepost-server-0", ".tgz"));
    succeeds(npm.current_dir(folder.path()));
    let program = folder.path().join("node_modules/.bin/fencepost");
    takes_a_lock(&[text(&program)]);

    let ready = folder.path().join("ready");
    let mut server = Command::new(&program)
        .args(["serve", "--memory", "--listen", "127.0.0.1:0", "--ready-file"])
        .arg(&ready)
        .stderr(Stdio::null())
        .spawn()
        .expect("node runs");
    let end = Instant::now() + Duration::from_secs(30);
    while !ready.exists() {
        assert!(Instant::now() < end, "the server does not serve");
        std::thread::sleep(Duration::from_millis(20));
    }
    succeeds(Command::new("kill").arg(server.id().to_string()));
    // The server removes the file when it ends in order.
    assert_eq!(server.wait().expect("it ends").code(), Some(0));
    assert!(!ready.exists());

    // A wrong argument ends both with the program's code.
    let wrong = output(Command::new(&program).arg("--no-such-flag"));
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn each_node_package_says_for_which_platform_it_is() {
    let Some(dist) = dist() else { return };
    let archive = dist.file("npm/fencepost-server-linux-", ".tgz");
    let mut tar = Command::new("tar");
    let manifest = succeeds(tar.args(["-xzOf", text(&archive), "package/package.json"]));
    let manifest: serde_json::Value = serde_json::from_str(&manifest).expect("JSON");
    let cpu = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    assert_eq!(manifest["os"][0], "linux");
    assert_eq!(manifest["cpu"][0], cpu);
    let name = manifest["name"].as_str().expect("a name");
    let chooser: serde_json::Value =
        serde_json::from_str(&crate::dist::read("packaging/npm/package.json")).expect("JSON");
    assert_eq!(chooser["optionalDependencies"][name], VERSION);
    for (package, version) in chooser["optionalDependencies"].as_object().expect("packages") {
        assert_eq!(version, VERSION, "{package}");
    }
}
