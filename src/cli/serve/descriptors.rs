//! The open files that the system allows this process, of which each connection is one.

use fencepost::api::Settings;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The least that is kept for what is no connection of a client: stores, files, the port of the metrics.
const RESERVE: usize = 128;

/// Lets the process open as many files as the system allows it to, and answers how many that are; nothing for no
/// limit.
pub(super) fn raise() -> Option<usize> {
    let limits = getrlimit(Resource::Nofile);
    if limits.current == limits.maximum {
        return open_files(limits);
    }
    let raised = Rlimit {
        current: limits.maximum,
        ..limits
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => open_files(raised),
        Err(error) => {
            tracing::warn!(%error, "the limit of open files cannot be raised");
            open_files(limits)
        }
    }
}

fn open_files(limits: Rlimit) -> Option<usize> {
    limits.current.map(|most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// Lowers the limit of connections to what the open files suffice for beside the handshakes that may be under
/// way: past it the server could not even accept those who are to be served.
pub(super) fn fit(settings: &mut Settings, handshakes: usize, open_files: Option<usize>) {
    let Some(open_files) = open_files else { return };
    let most = connections(open_files, handshakes);
    if settings.max_connections <= most {
        tracing::info!(
            open_files,
            connections = settings.max_connections,
            "the open files suffice"
        );
        return;
    }
    tracing::warn!(
        open_files,
        connections = most,
        configured = settings.max_connections,
        "the system allows fewer open files than connection_limit needs: fewer connections are taken"
    );
    settings.max_connections = most;
}

/// How many connections there may be. Handshakes have a quarter at most: their limit alone may be as large as all
/// open files, and it is the oldest that makes room.
fn connections(open_files: usize, handshakes: usize) -> usize {
    let reserve = RESERVE.max(open_files / 16).min(open_files / 2);
    let rest = open_files - reserve;
    (rest - handshakes.min(rest / 4)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_a_reserve_of_open_files() {
        assert_eq!(connections(1_024, 0), 896);
        assert_eq!(connections(1_024, 1_000), 672);
        assert_eq!(connections(100, 0), 50);
        assert_eq!(connections(1, 0), 1);
        assert_eq!(connections(1 << 20, 1_000), (1 << 20) - (1 << 16) - 1_000);
    }

    #[test]
    fn the_limit_of_connections_is_lowered_and_never_raised() {
        for (limit, fitted) in [(10_000, 896), (10, 10)] {
            let mut settings = Settings {
                max_connections: limit,
                ..Settings::default()
            };
            fit(&mut settings, 0, Some(1_024));
            assert_eq!(settings.max_connections, fitted);
            fit(&mut settings, 0, None);
            assert_eq!(settings.max_connections, fitted);
        }
    }
}
