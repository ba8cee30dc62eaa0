//! The options of the server may also stand before the command: `fencepost --addr HOST:PORT get default/a`.

use std::ffi::{OsStr, OsString};

use clap::Args;
use clap::builder::Resettable;

use super::server::Server;

/// The arguments with the options of the server that stand before the command moved behind it.
pub fn ordered(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let mut ordered: Vec<OsString> = arguments.next().into_iter().collect();
    let (mut moved, options) = (Vec::new(), options());
    while let Some(word) = arguments.next() {
        match option(&options, &word) {
            Some(ValuePlace::Within) => moved.push(word),
            Some(ValuePlace::Next) => moved.extend([Some(word), arguments.next()].into_iter().flatten()),
            None => {
                ordered.push(word);
                break;
            }
        }
    }
    ordered.extend(moved);
    ordered.extend(arguments);
    ordered
}

/// The program, in which a variable that names a server or a store counts only if no argument names one.
pub fn over_variables(program: clap::Command, arguments: &[OsString]) -> clap::Command {
    let places = ["addr", "store", "config"].map(str::to_owned);
    let mut words = arguments.iter().take_while(|word| *word != "--");
    if words.all(|word| option(&places, word).is_none()) {
        return program;
    }
    let is_place = move |argument: &clap::Arg| matches!(argument.get_long(), Some("addr" | "store"));
    program.mut_subcommands(|command| {
        command.mut_args(|argument| match is_place(&argument) {
            true => argument.env(Resettable::Reset),
            false => argument,
        })
    })
}

/// Where the value of an option is.
enum ValuePlace {
    /// After its `=`.
    Within,
    /// In the next argument.
    Next,
}

/// Whether a word is one of these options.
fn option(options: &[String], word: &OsStr) -> Option<ValuePlace> {
    let name = word.to_str()?.strip_prefix("--")?;
    let (name, value) = match name.split_once('=') {
        Some((name, _)) => (name, ValuePlace::Within),
        None => (name, ValuePlace::Next),
    };
    options.iter().any(|option| option == name).then_some(value)
}

/// The names of the server's options, each of which has a value.
fn options() -> Vec<String> {
    let server = Server::augment_args(clap::Command::new("server"));
    let names = server.get_arguments().filter_map(|argument| argument.get_long());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn options_of_the_server_move_behind_the_command_and_others_stay() {
        for (given, expected) in [
            ("fencepost get default/a", "fencepost get default/a"),
            (
                "fencepost --addr h:1 get default/a",
                "fencepost get --addr h:1 default/a",
            ),
            (
                "fencepost --addr=h:1 --bearer-file f list --addr i:2",
                "fencepost list --addr=h:1 --bearer-file f --addr i:2",
            ),
            ("fencepost --version --addr h:1", "fencepost --version --addr h:1"),
            ("fencepost --addr h:1 --help", "fencepost --help --addr h:1"),
            ("fencepost --addr", "fencepost --addr"),
            ("fencepost --address h:1 get a", "fencepost --address h:1 get a"),
        ] {
            assert_eq!(ordered(words(given)), words(expected), "{given}");
        }
    }
}
