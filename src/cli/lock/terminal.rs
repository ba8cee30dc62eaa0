//! The terminal, which has one foreground process group at a time. It is the command's while it
//! runs, so that the command can read and gets the signals of keys, and this process's afterwards.

use std::io::stdin;

use nix::sys::signal::{SigSet, Signal, raise};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

use super::child::Group;

/// The terminal at standard input, if it is one.
#[derive(Debug)]
pub struct Terminal {
    own: Option<Pid>,
}

impl Terminal {
    /// Opens the terminal. Blocks SIGTTOU in this thread, so that it can make its group the
    /// foreground group while in the background.
    pub fn open() -> Self {
        let mut background_access = SigSet::empty();
        background_access.add(Signal::SIGTTOU);
        let is_terminal = tcgetpgrp(stdin()).is_ok() && background_access.thread_block().is_ok();
        Self {
            own: is_terminal.then(getpgrp),
        }
    }

    /// Makes the command's group the foreground group, if this process's group is.
    pub fn give_to(&self, group: Group) {
        self.set_foreground(self.own, Some(group.0));
    }

    /// Makes this process's group the foreground group, if the command's is.
    pub fn reclaim_from(&self, group: Group) {
        self.set_foreground(Some(group.0), self.own);
    }

    fn set_foreground(&self, from: Option<Pid>, to: Option<Pid>) {
        if let (Some(_), Some(from), Some(to)) = (self.own, from, to)
            && tcgetpgrp(stdin()) == Ok(from)
        {
            // It fails for a terminal that was closed, which its readers notice themselves.
            let _ = tcsetpgrp(stdin(), to);
        }
    }

    /// Handles a stop of the command. If the terminal stopped it, this process stops too, so that
    /// both are one job. When it is continued, the command continues if its lock is still held.
    pub fn stopped(&self, group: Group, signal: Signal, is_held: impl Fn() -> bool) {
        let Some(own) = self.own else { return };
        let accesses_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        if !accesses_terminal && signal != Signal::SIGTSTP {
            return;
        }
        let foreground = tcgetpgrp(stdin());
        // The command has accessed the terminal before it became the foreground group.
        let is_early_access = accesses_terminal && (foreground == Ok(own) || foreground == Ok(group.0));
        if !is_early_access {
            self.reclaim_from(group);
            // It fails only for an invalid signal.
            let _ = raise(Signal::SIGSTOP);
        }
        if is_held() {
            self.give_to(group);
            group.signal(Signal::SIGCONT);
        }
    }
}
