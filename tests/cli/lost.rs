//! A lease that is or may be lost ends the command in time.
//!
//! The command writes down the time again and again, so its last line says how long it really lived.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::runtime::Runtime;

use crate::cli::forwarder::{Answers, Forwarder};
use crate::cli::program::{Fixture, Running, asking, content, until_written};
use crate::cli::server::until;

const TTL: Duration = Duration::from_secs(3);
/// The time between two lines of a command that runs, in seconds, at most.
const USUAL_GAP: f64 = 0.04;

/// Seconds since 1970, as `date` has them.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("a date").as_secs_f64()
}

/// How the command takes a TERM.
#[derive(Debug, Clone, Copy)]
enum Temper {
    Obeys,
    Stubborn,
}

/// A command under a lock that writes the time down.
struct Clockwork {
    running: Running,
    file: PathBuf,
}

impl Clockwork {
    fn start(fixture: &Fixture, address: &str, temper: Temper) -> Self {
        let file = fixture.path(&format!("{temper:?}"));
        let trap = match temper {
            Temper::Obeys => "",
            Temper::Stubborn => "trap '' TERM;",
        };
        let line = format!("{trap} while :; do date +%s.%N >> {}; sleep 0.02; done", file.display());
        let lock = format!("default/{temper:?}");
        let command = asking(address, ["lock", &lock, "--ttl", "3s", "--", "sh", "-c", &line]);
        let running = Running::new(command);
        until_written(&file);
        Self { running, file }
    }

    /// When it wrote.
    fn times(&self) -> Vec<f64> {
        let text = content(&self.file);
        let whole = text.lines().filter(|line| line.contains('.'));
        whole.map(|line| line.parse().expect("a time")).collect()
    }

    /// When it last wrote.
    fn last(&self) -> f64 {
        *self.times().last().expect("a line")
    }

    /// How long it lived after `cut`, less the times for which the machine did not let it run.
    fn lived_since(&self, cut: f64) -> f64 {
        let times = self.times();
        let gaps = times.windows(2).map(|two| two[1] - two[0] - USUAL_GAP);
        times.last().expect("a line") - cut - gaps.filter(|gap| *gap > 0.0).sum::<f64>()
    }

    /// Waits for its end: it must be said with the code for a lost lease, and the command must have
    /// been over when the last lease that it can have had since `cut` ended.
    fn ends_in_time_since(mut self, cut: f64, what: &str) {
        assert_eq!(self.running.end(), Some(122), "{what}");
        let lived = self.lived_since(cut);
        assert!(lived <= TTL.as_secs_f64(), "{what}: it lived {lived} s");
        let still = content(&self.file).len();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(content(&self.file).len(), still, "{what}: it lives on");
    }
}

fn both(fixture: &Fixture, address: &str) -> [Clockwork; 2] {
    [Temper::Obeys, Temper::Stubborn].map(|temper| Clockwork::start(fixture, address, temper))
}

// G166
#[test]
fn a_killed_server_ends_the_command_in_time() {
    let fixture = Fixture::start();
    let both = both(&fixture, &fixture.server.address);
    fixture.server.signal("KILL");
    let cut = now();
    for clockwork in both {
        clockwork.ends_in_time_since(cut, "killed");
    }
}

// G166
#[test]
fn a_server_that_is_stopped_for_longer_than_the_ttl_ends_the_command_in_time() {
    let fixture = Fixture::start();
    let both = both(&fixture, &fixture.server.address);
    fixture.server.signal("STOP");
    let cut = now();
    for clockwork in both {
        clockwork.ends_in_time_since(cut, "stopped");
    }
    let told = now() - cut;
    assert!(told < TTL.as_secs_f64() + 3.0, "only told after {told} s");
    fixture.server.signal("CONT");
    fixture.said(&["lock", "default/Stubborn", "--wait", "30s", "--", "true"]);
}

// G166
#[test]
fn a_connection_that_brings_no_answers_ends_the_command_in_time() {
    let fixture = Fixture::start();
    let runtime = Runtime::new().expect("a runtime");
    let forwarder = runtime.block_on(Forwarder::before(fixture.server.port()));
    let both = both(&fixture, &forwarder.address());
    forwarder.answers(Answers::Lost);
    let cut = now();
    for clockwork in both {
        clockwork.ends_in_time_since(cut, "cut off");
    }
}

#[test]
fn a_connection_that_was_cut_is_made_anew_and_the_command_goes_on() {
    let fixture = Fixture::start();
    let runtime = Runtime::new().expect("a runtime");
    let forwarder = runtime.block_on(Forwarder::before(fixture.server.port()));
    let clockwork = Clockwork::start(&fixture, &forwarder.address(), Temper::Obeys);
    forwarder.answers(Answers::Lost);
    std::thread::sleep(TTL / 3);
    forwarder.cut();
    let cut = now();
    until("it outlives what it had", || {
        (clockwork.last() - cut > TTL.as_secs_f64() * 1.5).then_some(())
    });
    assert_eq!(fixture.count("default/Obeys", "holderCount"), 1);
}

// G166
#[test]
fn a_lease_that_is_taken_by_force_ends_the_command_with_the_next_renewal() {
    let fixture = Fixture::start();
    let both = both(&fixture, &fixture.server.address);
    for clockwork in &both {
        let lock = format!(
            "default/{}",
            clockwork
                .file
                .file_name()
                .and_then(|name| name.to_str())
                .expect("a name")
        );
        let state = fixture.json(&["get", &lock]);
        let token = state["holders"][0]["fencingToken"]
            .as_str()
            .expect("a token")
            .to_owned();
        fixture.said(&["force-release", &lock, &token]);
    }
    let cut = now();
    for clockwork in both {
        clockwork.ends_in_time_since(cut, "forced");
    }
}

// G166
#[test]
fn a_lease_of_any_mode_that_is_taken_by_force_ends_the_command_at_once() {
    let fixture = Fixture::start();
    let modes: [&[&str]; 3] = [&[], &["--shared"], &["--permits", "1", "--limit", "2"]];
    for (number, mode) in modes.into_iter().enumerate() {
        let (lock, file) = (format!("default/{number}"), fixture.path(&number.to_string()));
        let line = format!("echo ready > {}; exec sleep 1000", file.display());
        let command = [&["lock", &lock, "--ttl", "1h"], mode, &["--", "sh", "-c", &line]].concat();
        let mut running = fixture.begin(&command);
        until_written(&file);
        let token = fixture.json(&["get", &lock])["holders"][0]["fencingToken"].clone();
        fixture.said(&["force-release", &lock, token.as_str().expect("a token")]);
        assert_eq!(running.end(), Some(122), "{mode:?}");
    }
}

// G166
#[test]
fn a_keeper_that_is_killed_takes_the_command_with_it() {
    let fixture = Fixture::start();
    let clockwork = Clockwork::start(&fixture, &fixture.server.address, Temper::Stubborn);
    clockwork.running.signal("KILL");
    let cut = now();
    until("the command is over", || {
        let before = clockwork.last();
        std::thread::sleep(Duration::from_millis(200));
        (clockwork.last() == before).then_some(())
    });
    let lived = clockwork.lived_since(cut);
    assert!(lived <= 1.0, "it lived {lived} s");
}

// G166
#[test]
fn a_keeper_that_is_stopped_does_not_let_the_command_outlive_its_lease() {
    let fixture = Fixture::start();
    let clockwork = Clockwork::start(&fixture, &fixture.server.address, Temper::Stubborn);
    clockwork.running.signal("STOP");
    let cut = now();
    std::thread::sleep(TTL + Duration::from_millis(500));
    let lived = clockwork.lived_since(cut);
    assert!(lived <= TTL.as_secs_f64(), "it lived {lived} s");
    clockwork.running.signal("CONT");
    clockwork.ends_in_time_since(cut, "stopped");
}
