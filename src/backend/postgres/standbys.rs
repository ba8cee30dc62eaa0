//! Which standbys must have a commit.

/// Whether each of the standbys that `synchronous_standby_names` names must have a commit before it is answered: it names one,
/// or waits for all that it names. Other standbys are not to be promoted. Of `*` nobody knows how many there are.
pub fn all_confirm(standbys: &str) -> bool {
    let (first, rest) = next_word(standbys);
    let (count, mut rest) = match first {
        Some(Word::Plain(word)) if ["first", "any"].contains(&word.to_ascii_lowercase().as_str()) => {
            let (count, rest) = next_word(rest);
            (count, rest)
        }
        first => (first, rest),
    };
    let (count, mut names) = match (count, rest.trim_start().strip_prefix('(')) {
        (Some(Word::Plain(count)), Some(list)) => {
            rest = list;
            (count.parse().unwrap_or(0), Vec::new())
        }
        // A list alone waits for its first standby.
        (Some(name), None) => (1, vec![name.name()]),
        _ => return false,
    };
    while let (Some(name), behind) = next_word(rest.trim_start().trim_start_matches(',')) {
        names.push(name.name());
        rest = behind;
    }
    names.sort();
    let length = names.len();
    names.dedup();
    count == length && length == names.len() && !names.iter().any(|name| name == "*")
}

/// A word of the setting.
enum Word {
    Plain(String),
    Quoted(String),
}

impl Word {
    /// The name, whose case does not count.
    fn name(self) -> String {
        let (Self::Plain(name) | Self::Quoted(name)) = self;
        name.to_lowercase()
    }
}

/// The next word, and what is behind it.
fn next_word(text: &str) -> (Option<Word>, &str) {
    let text = text.trim_start();
    if let Some(quoted) = text.strip_prefix('"') {
        let mut name = String::new();
        let mut rest = quoted;
        while let Some((part, behind)) = rest.split_once('"') {
            name.push_str(part);
            match behind.strip_prefix('"') {
                // Two quotes are one.
                Some(behind) => {
                    name.push('"');
                    rest = behind;
                }
                None => return (Some(Word::Quoted(name)), behind),
            }
        }
        return (None, "");
    }
    let end = text.find(|c: char| c.is_whitespace() || "(),\"".contains(c));
    match text.split_at(end.unwrap_or(text.len())) {
        ("", rest) => (None, rest),
        (word, rest) => (Some(Word::Plain(word.to_owned())), rest),
    }
}

#[cfg(test)]
mod tests {
    use super::all_confirm;

    // G171
    #[test]
    fn all_standbys_confirm_if_one_is_named_or_as_many_are_waited_for_as_are_named() {
        for (standbys, all) in [
            ("one", true),
            ("\"one\"", true),
            (" 1 (one) ", true),
            ("FIRST 1 (one)", true),
            ("any 1 (\"one\")", true),
            ("2 (one, two)", true),
            ("FIRST 2 (one,two)", true),
            ("ANY 3 (one, \"two\", three)", true),
            ("ANY 1 (\"a, \"\"b\")", true),
            ("one, two", false),
            ("1 (one, two)", false),
            ("FIRST 1 (one, two)", false),
            ("ANY 1 (one, two)", false),
            ("ANY 2 (one, two, three)", false),
            ("ANY 2 (one, ONE)", false),
            ("*", false),
            ("\"*\"", false),
            ("ANY 1 (*)", false),
            ("ANY 2 (one, *)", false),
            ("", false),
        ] {
            assert_eq!(all_confirm(standbys), all, "{standbys}");
        }
    }
}
