//! The width of texts on a terminal, where a character takes no, one or two columns, and a colour takes none.

use unicode_width::UnicodeWidthChar;

/// What stands for the part that was cut out.
const ELLIPSIS: char = '…';

/// A character, or the escape code of a colour.
enum Piece<'a> {
    Character(char),
    Colour(&'a str),
}

/// The pieces of a text whose only escape codes are those of this program's colours: `\x1b[1m`.
fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.starts_with("\x1b[")
            && let Some(end) = rest.find('m')
        {
            let (code, after) = rest.split_at(end + 1);
            rest = after;
            return Some(Piece::Colour(code));
        }
        let mut characters = rest.chars();
        let first = characters.next()?;
        rest = characters.as_str();
        Some(Piece::Character(first))
    })
}

fn columns(character: char) -> usize {
    character.width().unwrap_or(0)
}

/// How many columns a text takes.
pub fn width(text: &str) -> usize {
    let all = pieces(text).map(|piece| match piece {
        Piece::Character(character) => columns(character),
        Piece::Colour(_) => 0,
    });
    all.sum()
}

/// The text in at most `room` columns, with its colours. The middle is cut out, because names often differ only at
/// their ends.
pub fn cut(text: &str, room: usize) -> String {
    let all = width(text);
    if all <= room {
        return text.to_owned();
    }
    let kept = room.saturating_sub(1);
    let (front, back) = (kept.div_ceil(2), kept / 2);
    let (mut short, mut at, mut is_cut) = (String::new(), 0, false);
    for piece in pieces(text) {
        match piece {
            Piece::Colour(code) => short.push_str(code),
            Piece::Character(character) => {
                let end = at + columns(character);
                // A combining mark stays with the character before it.
                let is_of_end = at > all - back || (at == all - back && end > at);
                if is_of_end || (end <= front && !is_cut) {
                    short.push(character);
                } else if !is_cut && room > 0 {
                    short.push(ELLIPSIS);
                    is_cut = true;
                }
                at = end;
            }
        }
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_combining_marks_take_no_column_and_wide_characters_two() {
        assert_eq!(width("\x1b[31maway\x1b[0m: 東京"), 10);
        assert_eq!(width("Zoe\u{308}"), 3);
    }

    #[test]
    fn a_text_is_cut_in_its_middle_and_keeps_its_colours() {
        assert_eq!(cut("reports/europe", 14), "reports/europe");
        assert_eq!(cut("reports/europe", 8), "repo…ope");
        assert_eq!(cut("\x1b[31maway\x1b[0m: no route", 7), "\x1b[31mawa…\x1b[0mute");
        assert_eq!(cut("東京東京東京", 6), "東…京");
        for room in 0..20 {
            for text in ["reports/europe", "東京東京東京", "Zoe\u{308} Zoe\u{308} Zoe\u{308}"] {
                assert!(width(&cut(text, room)) <= room, "{room}: {}", cut(text, room));
            }
        }
    }
}
