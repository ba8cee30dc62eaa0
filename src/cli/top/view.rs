//! The figures as tables, as a screen, and as JSON.

use std::time::Duration;

use serde_json::json;

use super::super::admin::health;
use super::super::output::seconds;
use super::super::screen::Size;
use super::super::table::Table;
use super::super::unprintable::{escaped_json, plain};
use super::super::width::cut;
use super::figures::{LockFigures, NamespaceFigures};
use super::sample::Sample;

/// The lines of the screen that are no rows of a table: the title, three headers, and three blank lines.
const OTHER_LINES: usize = 7;
/// Moves the cursor to the first line.
const HOME: &str = "\x1b[H";
/// Erases the rest of a line, and all below it.
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// The tables that are not empty, each with at most so many rows. A mark is before the lock that is chosen, counted over
/// both tables of locks, if one may be.
pub fn tables(sample: &Sample, rows: usize, chosen: Option<usize>) -> Vec<String> {
    let mut tables = vec![namespaces(&sample.namespaces, rows)];
    if !sample.queues.is_empty() {
        tables.push(queues(&sample.queues, rows, chosen));
    }
    if !sample.holds.is_empty() {
        let before = sample.queues.len().min(rows);
        // None of these has the largest number.
        let chosen = chosen.map(|chosen| chosen.checked_sub(before).unwrap_or(usize::MAX));
        tables.push(holds(&sample.holds, rows, chosen));
    }
    tables
}

/// A title and a text, in place of what the terminal shows.
pub fn frame(title: &str, text: &str, size: Size) -> String {
    let text = format!("{title}\n\n{text}");
    // A line break in the last line would scroll the title away.
    let lines = text
        .lines()
        .take(size.rows)
        .map(|line| cut(line, size.columns) + CLEAR_LINE);
    format!("{HOME}{}{CLEAR_BELOW}", lines.collect::<Vec<_>>().join("\n"))
}

/// A third of the lines for each table; those that the namespaces do not need are for the locks.
pub fn rows_of_each(sample: &Sample, lines: usize) -> usize {
    let lines = lines.saturating_sub(OTHER_LINES);
    let third = lines / 3;
    let rows = match sample.namespaces.len() {
        few if few <= third => {
            let of_locks = [&sample.queues, &sample.holds].map(|locks| usize::from(!locks.is_empty()));
            (lines - few) / of_locks.iter().sum::<usize>().max(1)
        }
        _ => third,
    };
    rows.max(1)
}

fn namespaces(all: &[NamespaceFigures], rows: usize) -> String {
    let head = [
        "NAMESPACE",
        "STORE",
        "LOCKS",
        "HOLD",
        "WAIT",
        "LONGEST QUEUE",
        "LONGEST HOLD",
        "HEALTH",
    ];
    let mut table = Table::new(head).shrinking(&["NAMESPACE", "HEALTH"]);
    table.rows(all.iter().take(rows).map(|figures| {
        let count = |count: u64| format!("{count}{}", if figures.is_partial { "+" } else { "" });
        let problem = figures
            .problem
            .as_deref()
            .map(|problem| format!(": {}", plain(problem)));
        [
            plain(&figures.info.name),
            plain(&figures.info.backend),
            count(figures.locks),
            count(figures.holders),
            count(figures.waiters),
            figures.longest_queue.to_string(),
            short(figures.longest_hold),
            health(&figures.info) + &problem.unwrap_or_default(),
        ]
    }))
}

fn queues(all: &[LockFigures], rows: usize, chosen: Option<usize>) -> String {
    let head = ["LONGEST QUEUES", "WAIT", "HOLD", "HELD FOR", "LEFT", "FIRST HOLDER"];
    let mut table = Table::new(head).shrinking(&["LONGEST QUEUES", "FIRST HOLDER"]);
    table.rows(all.iter().take(rows).enumerate().map(|(at, lock)| {
        [
            mark(at, chosen) + &name(lock),
            lock.waiters.to_string(),
            lock.holders.to_string(),
            short(lock.held_for),
            left(lock),
            plain(&lock.owner),
        ]
    }))
}

fn holds(all: &[LockFigures], rows: usize, chosen: Option<usize>) -> String {
    let head = ["LONGEST HOLDS", "HELD FOR", "LEFT", "WAIT", "FIRST HOLDER"];
    let mut table = Table::new(head).shrinking(&["LONGEST HOLDS", "FIRST HOLDER"]);
    table.rows(all.iter().take(rows).enumerate().map(|(at, lock)| {
        [
            mark(at, chosen) + &name(lock),
            short(lock.held_for),
            left(lock),
            lock.waiters.to_string(),
            plain(&lock.owner),
        ]
    }))
}

/// What is before the name of a lock, where one may be chosen.
fn mark(at: usize, chosen: Option<usize>) -> String {
    let mark = match chosen {
        None => "",
        Some(chosen) if chosen == at => "> ",
        Some(_) => "  ",
    };
    mark.to_owned()
}

fn name(lock: &LockFigures) -> String {
    plain(&format!("{}/{}", lock.namespace, lock.name))
}

fn left(lock: &LockFigures) -> String {
    lock.held_for.map_or_else(String::new, |_| seconds(lock.left))
}

/// A time in whole seconds, such as `1h 2m 3s`.
fn short(time: Option<Duration>) -> String {
    time.map_or_else(String::new, |time| {
        humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
    })
}

/// An object in each line: one for each namespace, then one for each lock of the tables.
pub fn json_lines(sample: &Sample) -> String {
    let namespaces = sample.namespaces.iter().map(|figures| {
        json!({
            "type": "namespace",
            "namespace": figures.info.name,
            "backend": figures.info.backend,
            "health": figures.info.health().as_str_name(),
            "reason": figures.problem.as_ref().unwrap_or(&figures.info.reason),
            "lockCount": figures.locks,
            "holderCount": figures.holders,
            "waiterCount": figures.waiters,
            "longestQueue": figures.longest_queue,
            "longestHold": figures.longest_hold.map(duration),
            "isPartial": figures.is_partial,
        })
    });
    let only_held = sample.holds.iter().filter(|lock| !sample.queues.contains(lock));
    let locks = sample.queues.iter().chain(only_held).map(|lock| {
        json!({
            "type": "lock",
            "namespace": lock.namespace,
            "name": lock.name,
            "holderCount": lock.holders,
            "waiterCount": lock.waiters,
            "owner": lock.owner,
            "heldFor": lock.held_for.map(duration),
            "remainingTtl": lock.held_for.map(|_| duration(lock.left)),
        })
    });
    let lines = namespaces.chain(locks);
    lines.map(|line| escaped_json(&line.to_string()) + "\n").collect()
}

/// A duration as in the JSON of the API.
fn duration(time: Duration) -> String {
    format!("{:.3}s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(namespaces: usize, locks: usize) -> Sample {
        let lock = LockFigures {
            namespace: "default".to_owned(),
            name: "a name that is longer than the terminal is wide".to_owned(),
            holders: 1,
            waiters: 1,
            owner: "me".to_owned(),
            held_for: Some(Duration::from_secs(3)),
            left: Duration::from_secs(1),
        };
        Sample {
            namespaces: (0..namespaces).map(|_| NamespaceFigures::default()).collect(),
            queues: vec![lock.clone(); locks],
            holds: vec![lock; locks],
        }
    }

    #[test]
    fn a_screen_is_never_larger_than_the_terminal() {
        for rows in 1..60 {
            for columns in [1, 20, 80] {
                for (namespaces, locks) in [(1, 100), (100, 100), (2, 0)] {
                    let size = Size { columns, rows };
                    let sample = sample(namespaces, locks);
                    let tables = tables(&sample, rows_of_each(&sample, size.rows), Some(0));
                    let frame = frame("a title", &tables.join("\n"), size);
                    let lines: Vec<&str> = frame.lines().collect();
                    assert!(lines.len() <= rows, "{rows}: {}", lines.len());
                    for line in lines {
                        let line = line.trim_start_matches(HOME).trim_end_matches(CLEAR_BELOW);
                        let shown = line.trim_end_matches(CLEAR_LINE);
                        assert!(
                            super::super::super::width::width(shown) <= columns,
                            "{columns}: {shown:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_lines_that_namespaces_do_not_need_show_locks() {
        assert_eq!(rows_of_each(&sample(1, 9), 24), 8);
        assert_eq!(rows_of_each(&sample(1, 0), 24), 16);
        assert_eq!(rows_of_each(&sample(100, 9), 24), 5);
        assert_eq!(rows_of_each(&sample(100, 9), 3), 1);
    }
}
