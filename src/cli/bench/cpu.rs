//! How much CPU time a process has used.

use std::fs;
use std::io;
use std::time::Duration;

/// The unit of CPU time in /proc, fixed at 100 per second for programs whatever the kernel's own is.
const TICK: Duration = Duration::from_millis(10);
/// Where in /proc/<pid>/stat, after the program's name in parentheses, user and system time stand.
const CPU_FIELDS: [usize; 2] = [11, 12];

/// The CPU time of a process, to the [`TICK`].
///
/// # Errors
/// The system's, such as for a process that is gone.
pub fn used(process: u32) -> io::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map_or(vec![], |(_, rest)| rest.split_whitespace().collect());
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u32>().ok());
    let [user, system] = CPU_FIELDS.map(ticks);
    match (user, system) {
        (Some(user), Some(system)) => Ok(TICK * (user + system)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no CPU time in /proc")),
    }
}
