//! The terminal, which belongs to one process group at a time: lent to the command, so that it can
//! read and gets the keys' signals, and taken back for whoever comes after.

use std::io::stdin;

use nix::sys::signal::{SigSet, Signal, raise};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

use super::child::Group;

/// The terminal at standard input, if there is one.
#[derive(Debug)]
pub struct Terminal {
    own: Option<Pid>,
}

impl Terminal {
    /// Finds it. From now on this thread may take it back also from behind.
    pub fn at_hand() -> Self {
        let mut from_behind = SigSet::empty();
        from_behind.add(Signal::SIGTTOU);
        let found = tcgetpgrp(stdin()).is_ok() && from_behind.thread_block().is_ok();
        Self {
            own: found.then(getpgrp),
        }
    }

    /// Lends it to the command, if it is ours.
    pub fn lend(&self, group: Group) {
        self.hand_over(self.own, Some(group.0));
    }

    /// Takes it back, if the command has it.
    pub fn take_back(&self, group: Group) {
        self.hand_over(Some(group.0), self.own);
    }

    fn hand_over(&self, from: Option<Pid>, to: Option<Pid>) {
        if let (Some(_), Some(from), Some(to)) = (self.own, from, to)
            && tcgetpgrp(stdin()) == Ok(from)
        {
            // It fails for a terminal that is gone, which its readers learn by themselves.
            let _ = tcsetpgrp(stdin(), to);
        }
    }

    /// The command was stopped. If by the terminal, this process stops with it as one job, and both
    /// go on together, but the command only while its lock is held.
    pub fn stopped(&self, group: Group, signal: Signal, is_held: impl Fn() -> bool) {
        let Some(own) = self.own else { return };
        let reads = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        if !reads && signal != Signal::SIGTSTP {
            return;
        }
        let front = tcgetpgrp(stdin());
        // It asked for the terminal in the moment before it was lent.
        let soon = reads && (front == Ok(own) || front == Ok(group.0));
        if !soon {
            self.take_back(group);
            // It fails for no signal that there is.
            let _ = raise(Signal::SIGSTOP);
        }
        if is_held() {
            self.lend(group);
            group.signal(Signal::SIGCONT);
        }
    }
}
