//! The CPU time of a process.

use std::fs;
use std::io;
use std::time::Duration;

/// The unit of CPU time in /proc: 1/100 s on all kernels.
const TICK: Duration = Duration::from_millis(10);
/// The indices of user and system time in /proc/<pid>/stat, counted after the program's name in parentheses.
const CPU_FIELDS: [usize; 2] = [11, 12];

/// The CPU time of a process, in units of 10 ms.
///
/// # Errors
/// The system's error, for example if the process has ended.
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
