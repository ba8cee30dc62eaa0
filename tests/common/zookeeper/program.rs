//! Where a ZooKeeper is: that of the machine's packages, or a current one that Maven fetches.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The jars of a package, with the logger that they leave to their user.
const PACKAGED: [&str; 2] = ["/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar"];

/// Jars that a JVM can run as a server.
#[derive(Debug)]
pub struct Program {
    classpath: String,
}

impl Program {
    /// The command that runs a class of it, without the class.
    pub fn java(&self) -> Vec<&str> {
        // Three servers share a busy machine, so they get the first compiler alone, a small heap and one collector
        // thread. Nobody cuts the power: what the kernel has is safe over a kill.
        let usual = [
            "java",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-Xshare:auto",
            "-Xms32m",
            "-Xmx128m",
            "-XX:-UsePerfData",
            "-Dzookeeper.forceSync=no",
            "-Dzookeeper.preAllocSize=1024",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        ];
        let mut command = usual.to_vec();
        command.extend(["-cp", &self.classpath]);
        command
    }
}

/// The one for most tests: a current one, else that of the packages.
pub fn program() -> Option<&'static Program> {
    current().or_else(packaged)
}

/// A program without which a test is skipped at home and fails in CI.
pub fn found(program: Option<&'static Program>) -> Option<&'static Program> {
    crate::is_there(program.is_some(), "ZooKeeper, nor Maven to fetch one");
    program
}

/// The one that the machine's own packages bring: an old one, such as Debian's 3.8.
pub fn packaged() -> Option<&'static Program> {
    static PROGRAM: OnceLock<Option<Program>> = OnceLock::new();
    let find = || {
        let is_there = Path::new(PACKAGED[0]).exists() && runs("java");
        is_there.then(|| Program {
            classpath: PACKAGED.join(":"),
        })
    };
    PROGRAM.get_or_init(find).as_ref()
}

/// A current one: the jars of the directory that `ZOOKEEPER` of the environment names, else those that Maven has
/// fetched into the target directory.
pub fn current() -> Option<&'static Program> {
    static PROGRAM: OnceLock<Option<Program>> = OnceLock::new();
    let find = || {
        runs("java").then_some(())?;
        let directory = std::env::var_os("ZOOKEEPER").map(PathBuf::from).or_else(fetched)?;
        Some(Program {
            classpath: format!("{}/*", directory.display()),
        })
    };
    PROGRAM.get_or_init(find).as_ref()
}

fn runs(program: &str) -> bool {
    Command::new(program)
        .arg("-version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Fetches the jars, unless a test run before this one has.
fn fetched() -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/zookeeper/pom.xml");
    let directory = crate::kept("zookeeper");
    // Several test programs may come at once: one fetches, the others wait.
    let lock = std::fs::File::create(directory.join("lock")).ok()?;
    lock.lock().ok()?;
    // A directory for each state of the file, so that a change of the version is noticed.
    let jars = directory.join(format!("jars-{:016x}", hash(&std::fs::read(source).ok()?)));
    if !jars.exists() {
        let unfinished = directory.join("unfinished");
        std::fs::remove_dir_all(&unfinished).ok();
        let status = Command::new("mvn")
            .args(["--quiet", "--batch-mode", "-Dstyle.color=never", "--file", source])
            .args(["dependency:copy-dependencies", "-DincludeScope=runtime"])
            .arg(format!("-DoutputDirectory={}", unfinished.display()))
            .stdout(Stdio::null())
            .status()
            .ok()?;
        status.success().then_some(())?;
        std::fs::rename(unfinished, &jars).ok()?;
    }
    Some(jars)
}

fn hash(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
