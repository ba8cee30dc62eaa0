//! A dry run of all steps of a release, made once for all tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// Where the project lies.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file, by its path from the root.
pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The version of the program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The target whose archive is made here. The program of the tests stands in for the static one.
pub const TARGET: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-musl"
} else {
    "x86_64-unknown-linux-musl"
};

/// The steps of a release, as `scripts/release` lists them.
pub fn steps() -> Vec<String> {
    let script = read("scripts/release");
    let list = script.split("\nsteps=(").nth(1).and_then(|rest| rest.split(')').next());
    let steps = list.expect("the steps").split(' ');
    steps.map(str::to_owned).collect()
}

/// What the steps left, and what they said.
pub struct Dist {
    pub folder: PathBuf,
    pub said: String,
}

impl Dist {
    /// The only file of a name like this.
    pub fn file(&self, start: &str, end: &str) -> PathBuf {
        let (folder, start) = match start.rsplit_once('/') {
            Some((below, start)) => (self.folder.join(below), start),
            None => (self.folder.clone(), start),
        };
        let entries = fs::read_dir(&folder).expect("a folder");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let is_named = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            name.starts_with(start) && name.ends_with(end)
        };
        let found: Vec<_> = paths.filter(is_named).collect();
        let [file] = found.as_slice() else {
            panic!("{start}*{end} in {folder:?}: {found:?}")
        };
        file.clone()
    }
}

/// Programs that publish or sign: a dry run calls none of them.
const PUBLISHERS: &[&str] = &["cosign", "docker", "gh", "mvn", "oras", "twine"];

/// What the steps need, with the Debian package that has it.
const NEEDED: &[&str] = &["helm", "jq", "npm", "objcopy", "python3"];

/// The programs of the tests before those of the system.
pub fn path(first: &Path) -> String {
    let system = std::env::var("PATH").unwrap_or_default();
    let tools = root().join("target/tools");
    format!("{}:{}:{system}", first.display(), tools.display())
}

/// Programs of these names that only run a line of shell.
pub fn stand_ins(folder: &Path, names: &[&str], line: &str) {
    fs::create_dir_all(folder).expect("a folder");
    for name in names {
        let file = folder.join(name);
        fs::write(&file, format!("#!/bin/sh\n{line}\n")).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
}

/// The dry run; nothing where a program that it needs is missing at home.
pub fn dist() -> Option<&'static Dist> {
    static DIST: LazyLock<Option<Dist>> = LazyLock::new(make);
    DIST.as_ref()
}

fn make() -> Option<Dist> {
    for program in NEEDED {
        if !has(program) {
            return None;
        }
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("install");
    drop(fs::remove_dir_all(&folder));
    let own = folder.join("programs");
    let called = folder.join("called");
    stand_ins(&own, PUBLISHERS, &format!("echo \"$0 $*\" >>{}", called.display()));
    let dist = folder.join("dist");
    let mut release = Command::new(root().join("scripts/release"));
    release
        .args(steps())
        .arg("--dry-run")
        .env("PATH", path(&own))
        .env("TARGETS", TARGET)
        .env("FENCEPOST_BIN", env!("CARGO_BIN_EXE_fencepost"))
        .env("FENCEPOST_DIST", &dist)
        .env_remove("FENCEPOST_REGISTRY");
    let said = succeeds(&mut release);
    assert!(!called.exists(), "{}", fs::read_to_string(called).unwrap_or_default());
    Some(Dist { folder: dist, said })
}

/// Whether a program is there. It must be with `CI=true`.
pub fn has(program: &str) -> bool {
    let asked = Command::new("sh")
        .args(["-c", "command -v \"$0\"", program])
        .env("PATH", path(Path::new("/usr/sbin")))
        .output();
    let is_there = asked.expect("sh runs").status.success();
    assert!(is_there || std::env::var_os("CI").is_none(), "{program} is missing");
    if !is_there {
        eprintln!("passed without a run: {program} is missing");
    }
    is_there
}

/// Runs a command.
pub fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a command that must succeed, and returns what it prints.
pub fn succeeds(command: &mut Command) -> String {
    let ran = output(command);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{command:?}: {}\n{said}{errors}", ran.status);
    said
}

/// Takes a first lock with a program that is called so.
pub fn takes_a_lock(call: &[&str]) {
    let mut first = Command::new(root().join("scripts/first-lock"));
    let said = succeeds(first.args(call).env_remove("FENCEPOST_BIN"));
    assert!(
        said.contains("\"owner\":\"me\"") && said.contains("\"fencingToken\":\"") && said.contains("released"),
        "{said}"
    );
}

/// A path as text.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
