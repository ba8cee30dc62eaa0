//! What `top` shows on a terminal, and what its keys do.

use fencepost::api::proto::{Holder, LockState};

use super::super::inspect;
use super::super::lock_name::LockName;
use super::super::screen::Size;
use super::super::unprintable::plain;
use super::figures::LockFigures;
use super::keys::Key;
use super::sample::Sample;
use super::view;

/// The lists of locks, or one lock that was chosen from them.
#[derive(Debug, Default)]
pub struct App {
    /// Only locks whose names have this text are shown.
    pub filter: String,
    is_typing: bool,
    pub sample: Option<Sample>,
    /// Which of the shown locks is chosen.
    chosen: usize,
    pub opened: Option<Opened>,
    /// What a key has done, until the next one.
    pub notice: Option<String>,
    /// Why the figures are old.
    pub problem: Option<String>,
}

/// A lock that is shown with its holders and its queue.
#[derive(Debug)]
pub struct Opened {
    pub lock: LockName,
    pub state: LockState,
    /// Which of its holders is chosen.
    chosen: usize,
    /// The holder about whose release by force is asked.
    asked: Option<Holder>,
}

/// What follows a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Show what has changed.
    Draw,
    /// Look again, at what is shown now.
    Look,
    /// Release by force the holder of this lock with this token.
    Force(LockName, u64),
    /// End.
    End,
}

impl App {
    /// What the key does on a terminal of this size.
    pub fn press(&mut self, key: Key, size: Size) -> Next {
        self.notice = None;
        if self.opened.is_some() {
            return self.press_in_lock(key);
        }
        if self.is_typing {
            return self.type_filter(key);
        }
        let shown = self.shown(size).len();
        match key {
            Key::Up => self.chosen = self.chosen.min(shown).saturating_sub(1),
            Key::Down => self.chosen = (self.chosen + 1).min(shown.saturating_sub(1)),
            Key::Char('/') => self.is_typing = true,
            Key::Char('q') => return Next::End,
            Key::Escape => {
                self.filter.clear();
                return Next::Look;
            }
            Key::Enter => {
                let chosen = self.shown(size).get(self.chosen).map(|lock| LockName {
                    namespace: lock.namespace.clone(),
                    name: lock.name.clone(),
                });
                self.opened = chosen.map(|lock| Opened {
                    lock,
                    state: LockState::default(),
                    chosen: 0,
                    asked: None,
                });
                return Next::Look;
            }
            _ => {}
        }
        Next::Draw
    }

    fn type_filter(&mut self, key: Key) -> Next {
        match key {
            Key::Char(character) => self.filter.push(character),
            Key::Erase => drop(self.filter.pop()),
            Key::Escape => {
                self.filter.clear();
                self.is_typing = false;
            }
            Key::Enter => self.is_typing = false,
            Key::Up | Key::Down => return Next::Draw,
        }
        Next::Look
    }

    fn press_in_lock(&mut self, key: Key) -> Next {
        let Some(opened) = &mut self.opened else {
            return Next::Draw;
        };
        if let Some(holder) = opened.asked.take() {
            return match key {
                Key::Char('y') => Next::Force(opened.lock.clone(), holder.fencing_token),
                _ => Next::Draw,
            };
        }
        let last = opened.state.holders.len().saturating_sub(1);
        match key {
            Key::Up => opened.chosen = opened.chosen.min(last).saturating_sub(1),
            Key::Down => opened.chosen = (opened.chosen + 1).min(last),
            Key::Char('f') => opened.asked = opened.state.holders.get(opened.chosen.min(last)).cloned(),
            Key::Char('q') => return Next::End,
            Key::Escape => {
                self.opened = None;
                return Next::Look;
            }
            _ => {}
        }
        Next::Draw
    }

    /// The locks that the lists show, in their order.
    fn shown(&self, size: Size) -> Vec<&LockFigures> {
        let Some(sample) = &self.sample else {
            return Vec::new();
        };
        let rows = view::rows_of_each(sample, size.rows);
        let lists = [&sample.queues, &sample.holds];
        lists.into_iter().flat_map(|list| list.iter().take(rows)).collect()
    }

    /// The whole screen. `about` is the first line of the lists, where there is nothing else to say.
    pub fn frame(&self, about: &str, size: Size) -> String {
        let told = self.notice.as_ref().or(self.problem.as_ref()).cloned();
        if let Some(opened) = &self.opened {
            let title = told.unwrap_or_else(|| opened.title());
            return view::frame(&title, &inspect::text(&opened.state), size);
        }
        let title = match told {
            Some(told) => told,
            None if self.is_typing => format!("names with: {}_", plain(&self.filter)),
            None if !self.filter.is_empty() => format!("names with {}: Escape shows all", plain(&self.filter)),
            None => about.to_owned(),
        };
        let Some(sample) = &self.sample else {
            return view::frame(&title, "", size);
        };
        let chosen = self.chosen.min(self.shown(size).len().saturating_sub(1));
        let tables = view::tables(sample, view::rows_of_each(sample, size.rows), Some(chosen));
        view::frame(&title, &tables.join("\n"), size)
    }
}

impl Opened {
    /// What its keys do, or the question.
    fn title(&self) -> String {
        let last = self.state.holders.len().saturating_sub(1);
        let lock = plain(&self.lock.to_string());
        if let Some(Holder {
            owner, fencing_token, ..
        }) = &self.asked
        {
            let owner = plain(owner);
            return format!(
                "release {lock} by force, held by {owner} with token {fencing_token}? y: yes, other keys: no"
            );
        }
        match self.state.holders.get(self.chosen.min(last)) {
            Some(Holder {
                owner, fencing_token, ..
            }) => {
                format!(
                    "Escape: back, f: release {} with token {fencing_token} by force",
                    plain(owner)
                )
            }
            None => "Escape: back".to_owned(),
        }
    }
}
