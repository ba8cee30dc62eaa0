//! The limit of open files of this process. Each connection needs one.

use fencepost::api::Settings;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The minimum number of open files that are reserved for other uses: stores, files, the monitoring port.
const RESERVE: usize = 128;

/// Raises the limit of open files to its maximum and returns it; `None`: no limit.
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
            tracing::warn!(%error, "the limit of open files was not raised");
            open_files(limits)
        }
    }
}

fn open_files(limits: Rlimit) -> Option<usize> {
    limits.current.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Lowers the connection limit to what the open files allow besides the concurrent handshakes. Above it the server
/// could not accept further connections at all.
pub(super) fn fit(settings: &mut Settings, handshakes: usize, open_files: Option<usize>) {
    let Some(open_files) = open_files else { return };
    let max_connections = connections(open_files, handshakes);
    if settings.max_connections <= max_connections {
        tracing::info!(
            open_files,
            connections = settings.max_connections,
            "the limit of open files is sufficient"
        );
        return;
    }
    tracing::warn!(
        open_files,
        connections = max_connections,
        configured = settings.max_connections,
        "the system allows fewer open files than connection_limit needs: the connection limit is lowered"
    );
    settings.max_connections = max_connections;
}

/// The number of connections that fit. Handshakes get at most a quarter, because their limit may be as large as all
/// open files, and above it only the oldest handshake is aborted.
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
    fn the_connection_limit_is_lowered_and_never_raised() {
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
