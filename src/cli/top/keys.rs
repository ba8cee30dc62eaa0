//! The keys of the terminal.

use std::io::{self, Read, stdin};
use std::thread;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Up,
    Down,
    Enter,
    Escape,
    Erase,
    Char(char),
}

/// The keys of the terminal at standard input. The terminal does not show them until this is dropped.
#[derive(Debug)]
pub struct Keys {
    before: Termios,
    keys: UnboundedReceiver<Key>,
}

impl Keys {
    /// Begins to read keys.
    ///
    /// # Errors
    /// The system's; also where standard input is no terminal.
    pub fn open() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(stdin(), OptionalActions::Now, &quiet)?;
        let (sender, keys) = unbounded_channel();
        thread::spawn(move || read(&sender));
        Ok(Self { before, keys })
    }

    /// The next key.
    ///
    /// # Cancellation safety
    /// When dropped, no key is lost.
    pub async fn next(&mut self) -> Key {
        match self.keys.recv().await {
            Some(key) => key,
            // The terminal is closed, which its signal tells.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // It fails only for a terminal that is closed.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

fn read(sender: &UnboundedSender<Key>) {
    let mut part = [0; 256];
    while let Ok(length @ 1..) = stdin().lock().read(&mut part) {
        let pressed = keys(&String::from_utf8_lossy(&part[..length]));
        if pressed.into_iter().any(|key| sender.send(key).is_err()) {
            return;
        }
    }
}

/// The keys that a terminal sends as this text. Those that are not known are left out.
fn keys(text: &str) -> Vec<Key> {
    let (mut rest, mut keys) = (text, Vec::new());
    while let Some(first) = rest.chars().next() {
        let sequence = rest.strip_prefix("\x1b[").or_else(|| rest.strip_prefix("\x1bO"));
        if let Some(sequence) = sequence {
            let end = sequence
                .find(|c: char| ('@'..='~').contains(&c))
                .unwrap_or(sequence.len());
            let (parameters, after) = sequence.split_at(end);
            let last = after.chars().next();
            match (parameters, last) {
                ("", Some('A')) => keys.push(Key::Up),
                ("", Some('B')) => keys.push(Key::Down),
                _ => {}
            }
            rest = &after[last.map_or(0, char::len_utf8)..];
            continue;
        }
        rest = &rest[first.len_utf8()..];
        match first {
            '\n' | '\r' => keys.push(Key::Enter),
            '\x1b' => keys.push(Key::Escape),
            '\x7f' | '\x08' => keys.push(Key::Erase),
            control if control.is_control() => {}
            character => keys.push(Key::Char(character)),
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart_and_unknown_ones_left_out() {
        let all = keys("\x1b[A\x1bOBä\n\x7f\x1b[15~\x01q\x1b");
        let expected = [
            Key::Up,
            Key::Down,
            Key::Char('ä'),
            Key::Enter,
            Key::Erase,
            Key::Char('q'),
            Key::Escape,
        ];
        assert_eq!(all, expected);
    }
}
