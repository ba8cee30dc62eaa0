//! A pseudo-terminal with the program in front of it.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use nix::pty::{Winsize, openpty};

use crate::cli::program::Running;
use crate::cli::server::until;

/// A terminal and what it has shown.
pub struct Pty {
    keys: File,
    shown: Arc<Mutex<String>>,
    pub running: Running,
}

impl Pty {
    /// Runs a command in front of a terminal of its own, which does not tell its size.
    pub fn run(command: &Command) -> Self {
        Self::run_in(command, None)
    }

    /// The same with a terminal of this size.
    pub fn run_sized(command: &Command, columns: u16, rows: u16) -> Self {
        let size = Winsize {
            ws_col: columns,
            ws_row: rows,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Self::run_in(command, Some(size))
    }

    fn run_in(command: &Command, size: Option<Winsize>) -> Self {
        let pty = openpty(size.as_ref(), None).expect("a pseudo-terminal");
        // `setsid` makes it the controlling terminal, whose keys send signals.
        let mut within = Command::new("setsid");
        // A job in the background of a script is started with the keys' signals ignored.
        within.args(["--ctty", "env", "--default-signal=INT,QUIT,HUP"]);
        within.arg(command.get_program()).args(command.get_args());
        within.env_clear().env("TERM", "xterm");
        for (name, value) in command.get_envs() {
            within.env(name, value.unwrap_or_default());
        }
        let end = || pty.slave.try_clone().expect("a descriptor");
        within.stdin(end()).stdout(end()).stderr(end());
        let running = Running::new(within);
        drop(pty.slave);
        let keys = File::from(pty.master);
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut screen, showing) = (keys.try_clone().expect("a descriptor"), Arc::clone(&shown));
        thread::spawn(move || {
            let mut part = [0; 4096];
            // It ends with an error when nobody has the terminal any more.
            while let Ok(length @ 1..) = screen.read(&mut part) {
                let part = String::from_utf8_lossy(&part[..length]);
                showing.lock().expect("no panic").push_str(&part);
            }
            showing.lock().expect("no panic").push('\0');
        });
        Self { keys, shown, running }
    }

    /// Everything that it has shown so far.
    pub fn shown(&self) -> String {
        self.shown.lock().expect("no panic").clone()
    }

    /// Waits until it has shown a text.
    pub fn until_shown(&self, text: &str) {
        until(text, || self.shown().contains(text).then_some(()));
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("a terminal");
    }

    /// The exit code, and all that was shown, with lines that end as in a file.
    pub fn end(&mut self) -> (Option<i32>, String) {
        let code = self.running.end();
        until("all is shown", || self.shown().ends_with('\0').then_some(()));
        (code, self.shown().trim_end_matches('\0').replace("\r\n", "\n"))
    }
}

/// A text without colours.
pub fn uncoloured(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    first
        + &parts
            .filter_map(|part| Some(part.split_once('m')?.1))
            .collect::<String>()
}
