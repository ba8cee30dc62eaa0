//! A client's driver: a program that speaks JSON lines, as README.md beside this file says.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Longer than any step takes on a busy machine, unless a scenario gives its own bound.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than a virtual machine takes to start beside others.
const START: Duration = Duration::from_secs(40);

/// One of the clients under test.
#[derive(Debug, Clone)]
pub struct Client {
    pub name: String,
    /// The program that becomes the driver.
    pub program: PathBuf,
    /// What `hello` says: the optional operations, and the ways in which a block can fail.
    pub can: Vec<String>,
    pub booms: Vec<String>,
}

impl Client {
    /// Asks a driver what it can do.
    pub fn of(name: &str, program: &Path) -> Self {
        let mut client = Self {
            name: name.to_owned(),
            program: program.to_owned(),
            can: Vec::new(),
            booms: Vec::new(),
        };
        let hello = client.start("127.0.0.1:1").hello();
        let words = |key: &str| {
            let words = hello[key].as_array().into_iter().flatten();
            words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
        };
        (client.can, client.booms) = (words("can"), words("boom"));
        client
    }

    pub fn can(&self, what: &str) -> bool {
        self.can.iter().any(|can| can == what)
    }

    pub fn start(&self, address: &str) -> Driver {
        self.start_with(address, &[])
    }

    /// Starts a driver, and waits until it reads commands.
    pub fn start_with(&self, address: &str, environment: &[(&str, &str)]) -> Driver {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FENCEPOST_")) {
            command.env_remove(name);
        }
        command
            .env("FENCEPOST_ADDR", address)
            .env("FENCEPOST_OWNER", &self.name);
        command.envs(environment.iter().copied());
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let driver = Driver::over(process.unwrap_or_else(|error| panic!("{}: {error}", self.program.display())));
        driver.hello();
        driver
    }
}

/// An event with the moment of its arrival.
pub type Seen = (Instant, Value);

#[derive(Default)]
struct Events {
    seen: Mutex<(Vec<Seen>, bool)>,
    changed: Condvar,
}

/// A running driver; killed in the end.
pub struct Driver {
    process: Child,
    stdin: Option<ChildStdin>,
    events: Arc<Events>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        // They fail only for a process that has ended.
        self.signal(Signal::SIGCONT);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Driver {
    fn over(mut process: Child) -> Self {
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take().expect("a pipe"));
        let events = Arc::new(Events::default());
        let shared = Arc::clone(&events);
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or_else(|_| json!({"event": "garbage", "line": line}));
                shared
                    .seen
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
                    .push((Instant::now(), event));
                shared.changed.notify_all();
            }
            shared.seen.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
            shared.changed.notify_all();
        });
        Self { process, stdin, events }
    }

    fn hello(&self) -> Value {
        self.wait(START, "hello", |event| event["event"] == "hello").1
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn signal(&self, signal: Signal) {
        // It fails only for a process that has ended.
        let _ = kill(Pid::from_raw(self.process.id().cast_signed()), signal);
    }

    pub fn send(&mut self, command: &Value) {
        let line = format!("{command}\n");
        let stdin = self.stdin.as_mut().expect("an open pipe");
        stdin.write_all(line.as_bytes()).expect("the driver reads");
    }

    /// A command with an id; `fields` are its others.
    pub fn tell(&mut self, op: &str, id: &str, fields: Value) {
        let mut command = fields;
        command["op"] = op.into();
        command["id"] = id.into();
        self.send(&command);
    }

    /// Sends an acquire of a lock whose id is its name.
    pub fn acquire(&mut self, name: &str, ttl: u64, wait: impl Into<Option<i64>>) {
        let mut fields = json!({"name": name, "ttl": ttl});
        if let Some(wait) = wait.into() {
            fields["wait"] = wait.into();
        }
        self.tell("acquire", name, fields);
    }

    /// Acquires, and waits for the grant: its token.
    pub fn hold(&mut self, name: &str, ttl: u64) -> u64 {
        self.acquire(name, ttl, 10_000);
        self.granted(name)
    }

    pub fn granted(&self, id: &str) -> u64 {
        self.event(id, "granted")["token"].as_u64().expect("a token")
    }

    pub fn release(&mut self, id: &str) {
        self.tell("release", id, json!({}));
        self.event(id, "released");
    }

    /// Whether the lock counts as held: the token of `check`.
    pub fn check(&mut self, id: &str) -> Option<u64> {
        let before = self.all(id, &["ok", "notheld"]).len();
        self.tell("check", id, json!({}));
        self.until(PATIENCE, "the answer to check", |driver| {
            let answers = driver.all(id, &["ok", "notheld"]);
            answers.get(before).map(|(_, answer)| answer["token"].as_u64())
        })
    }

    /// The first event of an id and a kind.
    pub fn event(&self, id: &str, kind: &str) -> Value {
        self.event_within(PATIENCE, id, kind).1
    }

    /// The same within a time. An end of another kind is a failure at once.
    pub fn event_within(&self, patience: Duration, id: &str, kind: &str) -> Seen {
        self.wait(patience, &format!("{kind} of {id}"), |event| {
            let is_end = ["failed", "released", "unsupported"]
                .iter()
                .any(|end| event["event"] == *end);
            assert!(
                event["id"] != id || !is_end || event["event"] == kind,
                "{kind} of {id} expected: {event}"
            );
            event["id"] == id && event["event"] == kind
        })
    }

    /// The end of an acquire that fails: its kind.
    pub fn failed(&self, patience: Duration, id: &str) -> Seen {
        self.event_within(patience, id, "failed")
    }

    pub fn fails_as(&self, id: &str, kind: &str) -> Value {
        let failed = self.failed(PATIENCE, id).1;
        assert_eq!(failed["kind"], kind, "{failed}");
        failed
    }

    /// All events of an id and these kinds so far.
    pub fn all(&self, id: &str, kinds: &[&str]) -> Vec<Seen> {
        let seen = self.events.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of = |event: &Value| event["id"] == id && kinds.iter().any(|kind| event["event"] == *kind);
        seen.0.iter().filter(|(_, event)| is_of(event)).cloned().collect()
    }

    /// The first event that matches.
    pub fn wait(&self, patience: Duration, what: &str, matches: impl Fn(&Value) -> bool) -> Seen {
        let (end, mut looked) = (Instant::now() + patience, 0);
        let mut seen = self.events.seen.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            while looked < seen.0.len() {
                if matches(&seen.0[looked].1) {
                    return seen.0[looked].clone();
                }
                looked += 1;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!seen.1, "the driver ended before {what}:\n{}", shown(&seen.0));
            assert!(!left.is_zero(), "no {what} within {patience:?}:\n{}", shown(&seen.0));
            seen = self
                .events
                .changed
                .wait_timeout(seen, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Waits for a condition of this driver.
    pub fn until<T>(&self, patience: Duration, what: &str, condition: impl Fn(&Self) -> Option<T>) -> T {
        until(patience, what, || condition(self))
    }

    /// Tells it to return from its main, and waits for that.
    pub fn exit(mut self, patience: Duration) {
        self.send(&json!({"op": "exit", "id": "exit"}));
        drop(self.stdin.take());
        let ended: ExitStatus = until(patience, "the end of the process", || {
            self.process.try_wait().expect("a child")
        });
        assert!(ended.success(), "{ended}");
    }
}

fn shown(seen: &[Seen]) -> String {
    let skipped = seen.len().saturating_sub(20);
    seen[skipped..].iter().fold(String::new(), |mut text, (at, event)| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "  {:.1} s ago: {event}", at.elapsed().as_secs_f64());
        text
    })
}

/// Polls a condition.
pub fn until<T>(patience: Duration, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + patience;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "not within {patience:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
