//! `fencepost bench`: it ends when it should, and says what it measured.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cli::program::{Fixture, asking, run, text};
use crate::cli::pty::Pty;
use crate::cli::server::until;

/// How much longer than asked a run may take on a machine that does other things.
const SLACK: Duration = Duration::from_secs(30);

/// Measures for two seconds, and answers the figures of each pattern.
fn figures(fixture: &Fixture, arguments: &[&str]) -> Vec<Value> {
    let begin = Instant::now();
    let report = fixture.json(&[&["bench", "--time", "2s", "--concurrency", "8"], arguments].concat());
    let took = begin.elapsed();
    assert!(
        took >= Duration::from_secs(2) && took < Duration::from_secs(2) + SLACK,
        "{took:?}"
    );
    assert_eq!(report["interrupted"], false);
    report["figures"].as_array().expect("figures").clone()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Percentiles that rise.
fn assert_times(figures: &Value, kind: &str) {
    let times = &figures["times"][kind];
    let all = ["p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms"].map(|name| number(&times[name]));
    assert!(all[0] > 0.0 && all.is_sorted(), "{kind}: {times}");
    assert!(
        number(&times["count"]) > 0.0 && number(&times["mean_ms"]) > 0.0,
        "{kind}: {times}"
    );
}

#[test]
fn every_pattern_is_measured_in_the_time_asked() {
    let fixture = Fixture::start();
    let all = figures(&fixture, &["uncontended", "hot", "shared", "semaphore"]);
    let expected: [(&str, &str, &[&str]); 4] = [
        ("uncontended", "pairs/s", &["acquire", "release"]),
        ("hot", "hand-offs/s", &["hand_off", "acquire", "release"]),
        ("shared", "pairs/s", &["acquire", "release"]),
        ("semaphore", "pairs/s", &["acquire", "release"]),
    ];
    assert_eq!(all.len(), expected.len());
    for (figures, (pattern, unit, kinds)) in all.iter().zip(expected) {
        assert_eq!(
            (figures["pattern"].as_str(), figures["unit"].as_str()),
            (Some(pattern), Some(unit))
        );
        let (finished, seconds, rate) = (&figures["finished"], &figures["seconds"], &figures["rate"]);
        assert!(
            (number(finished) / number(seconds) - number(rate)).abs() < 1.0,
            "{figures}"
        );
        assert!(number(rate) > 1.0, "{figures}");
        for kind in kinds {
            assert_times(figures, kind);
        }
    }
    assert_eq!(fixture.said(&["list", "default"]), "no lock is in use\n");
}

#[test]
fn a_session_is_measured_as_calls_are() {
    let fixture = Fixture::start();
    for figures in figures(&fixture, &["--session", "uncontended", "hot"]) {
        assert!(number(&figures["rate"]) > 1.0, "{figures}");
        assert_times(&figures, "acquire");
    }
    assert_eq!(fixture.said(&["list", "default"]), "no lock is in use\n");
    let said = fixture.said(&["bench", "--session", "--connections", "2", "--time", "1s"]);
    assert!(said.contains(", namespace default, 2 sessions\n"), "{said}");
    // A wait that nobody wants any more is cancelled.
    let expiry = figures(&fixture, &["--session", "expiry", "--ttl", "500ms"]);
    assert_times(&expiry[0], "lateness");
}

#[test]
fn waiting_on_expiry_is_counted_from_the_end_of_each_lease() {
    let fixture = Fixture::start();
    let all = figures(&fixture, &["expiry", "--ttl", "500ms", "--keys", "2"]);
    assert_times(&all[0], "lateness");
    // Two locks, a lease of half a second on each, for two seconds.
    let finished = number(&all[0]["finished"]);
    assert!((2.0..=8.0).contains(&finished), "{}", all[0]);
}

#[test]
fn several_connections_and_a_socket_are_measured_too() {
    let fixture = Fixture::start();
    let address = format!("unix:{}", fixture.server.socket().display());
    let output = run(asking(
        &address,
        ["bench", "--time", "1s", "--connections", "3", "-o", "json"],
    ));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (number(&report["connections"]), report["address"].as_str()),
        (3.0, Some(&*address))
    );
    assert!(number(&report["figures"][0]["rate"]) > 0.0, "{report}");
}

#[test]
fn interrupted_it_prints_its_results_so_far() {
    let fixture = Fixture::start();
    let file = fixture.path("figures");
    let mut command = fixture.command(["bench", "hot", "--time", "10m", "-o", "json"]);
    command.stdout(std::fs::File::create(&file).expect("a file"));
    let mut running = crate::cli::program::Running::new(command);
    until("it is under way", || {
        let locks = fixture.said(&["list", "default", "-o", "json"]);
        locks.contains("\"firstHolder\"").then_some(())
    });
    // At least one hand-off is over when another claim holds.
    std::thread::sleep(Duration::from_millis(500));
    let told = Instant::now();
    running.signal("INT");
    assert_eq!(running.end(), Some(0));
    assert!(told.elapsed() < SLACK, "{:?}", told.elapsed());
    let report: Value = serde_json::from_str(&crate::cli::program::content(&file)).expect("JSON");
    assert_eq!(report["interrupted"], true);
    assert!(number(&report["figures"][0]["finished"]) > 0.0, "{report}");
}

#[test]
fn a_server_that_goes_away_ends_it_with_the_results_so_far() {
    let fixture = Fixture::start();
    let mut terminal = Pty::run(&fixture.command(["bench", "--time", "10m"]));
    terminal.until_shown("uncontended: 1 of 600 s, ");
    fixture.server.signal("KILL");
    let (code, shown) = terminal.end();
    assert_eq!(code, Some(123), "{shown:?}");
    assert!(shown.contains("pairs/s") && shown.contains("P99.9"), "{shown:?}");
    assert!(shown.contains("no server answers at"), "{shown:?}");
}

#[test]
fn people_see_a_table() {
    let fixture = Fixture::start();
    let said = fixture.said(&["bench", "--time", "1s", "--concurrency", "2"]);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].ends_with(", namespace default, 1 connection"), "{said}");
    assert!(
        lines[2].starts_with("uncontended: ") && lines[2].ends_with(" pairs/s"),
        "{said}"
    );
    assert!(lines[3].starts_with("2 callers, 2 locks, 1."), "{said}");
    let words: Vec<&str> = lines[4].split_whitespace().collect();
    assert_eq!(words, ["MS", "COUNT", "P50", "P90", "P99", "P99.9", "MAX"]);
    assert!(
        lines[5].starts_with("acquire ") && lines[6].starts_with("release "),
        "{said}"
    );
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let fixture = Fixture::start();
    for (arguments, code, problem) in [
        (
            &["bench", "--keys", "3"][..],
            2,
            "--keys must be at least --concurrency, 64, not 3",
        ),
        (
            &["bench", "semaphore", "--permits", "9", "--limit", "8"],
            2,
            "--permits must be 1 to --limit, 8, not 9",
        ),
        (&["bench", "--namespace", "nowhere"], 1, "there is no namespace"),
        (
            &["bench", "--session", "--namespace", "nowhere"],
            1,
            "there is no namespace",
        ),
        (
            &["bench", "--session", "--concurrency", "1001"],
            2,
            "a session takes 1000 commands at once, not 1001",
        ),
        (&["bench", "quickly"], 2, "uncontended, hot, shared, semaphore, expiry]"),
    ] {
        let output = fixture.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(text(&output.stderr).contains(problem), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
    }
}
