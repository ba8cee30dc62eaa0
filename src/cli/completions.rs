//! `fencepost completions`: scripts for shells. They complete commands and flags themselves, and ask the server for the
//! names of namespaces and locks by [`names`].

mod names;

use clap::builder::ValueHint;
use clap::{Arg, CommandFactory};
use clap_complete::{Shell, generate};

use super::output::print;
use super::server::Server;
use super::{Cli, Failure};

const HELP: &str = "\
The scripts complete the names of namespaces and of locks in use too, of the server at FENCEPOST_ADDR.

Examples:
  bash:  source <(fencepost completions bash)
  zsh:   fencepost completions zsh > \"${fpath[1]}/_fencepost\"
  fish:  fencepost completions fish > ~/.config/fish/completions/fencepost.fish";

const BASH: &str = r#"
_fencepost_names() {
    _fencepost "$@"
    local word="${COMP_WORDS[COMP_CWORD]}"
    case "${COMP_WORDS[1]} $word" in
        *" -"*) ;;
        COMMANDS)
            COMPREPLY+=($(compgen -W "$(fencepost completions --names="$word" 2>/dev/null)" -- "$word"))
            if [[ ${COMPREPLY[0]} == */ ]]; then compopt -o nospace 2>/dev/null; fi ;;
    esac
}
complete -F _fencepost_names -o nosort -o bashdefault -o default fencepost
"#;

const ZSH: &str = r#"
_fencepost_names() {
    local -a names
    names=(${(f)"$(fencepost completions --names="$PREFIX" 2>/dev/null)"})
    compadd -S '' -- $names
}
"#;

const FISH: &str = r#"
complete -c fencepost -n "__fish_seen_subcommand_from COMMANDS" -f -a '(fencepost completions --names="$(commandline -ct)" 2>/dev/null)'
"#;

/// Print a completion script.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Completions {
    /// The shell
    #[arg(required_unless_present = "names")]
    shell: Option<Shell>,
    /// Print the names that begin with this word instead, one on a line
    #[arg(long, value_name = "WORD", hide = true)]
    names: Option<String>,
    #[command(flatten)]
    server: Server,
}

/// Prints the script, or the names.
pub fn run(args: Completions) -> Result<(), Failure> {
    let text = match (args.shell, args.names) {
        (_, Some(word)) => names::beginning_with(&args.server, &word),
        (Some(shell), None) => script(shell).map_err(Failure::runtime)?,
        (None, None) => String::new(),
    };
    print(&text).map(drop).map_err(Failure::runtime)
}

fn script(shell: Shell) -> Result<String, std::string::FromUtf8Error> {
    let mut program = Cli::command();
    let named = program
        .get_subcommands()
        .filter(|command| command.get_arguments().any(is_name));
    let named: Vec<String> = named.map(|command| command.get_name().to_owned()).collect();
    if shell == Shell::Zsh {
        // A hint that no argument has stands for the function that completes names.
        program = program.mut_subcommands(|command| {
            command.mut_args(|argument| match is_name(&argument) {
                true => argument.value_hint(ValueHint::Hostname),
                false => argument,
            })
        });
    }
    let mut script = Vec::new();
    generate(shell, &mut program, "fencepost", &mut script);
    let script = String::from_utf8(script)?;
    Ok(match shell {
        Shell::Bash => {
            let patterns: Vec<String> = named.iter().map(|name| format!("{name}\" \"*")).collect();
            script + &BASH.replace("COMMANDS", &patterns.join("|"))
        }
        Shell::Fish => script + &FISH.replace("COMMANDS", &named.join(" ")),
        Shell::Zsh => script
            .replace(":_hosts'", ":_fencepost_names'")
            .replacen("\n\n", &format!("\n{ZSH}\n"), 1),
        _ => script,
    })
}

/// Whether an argument is the name of a namespace or of a lock.
fn is_name(argument: &Arg) -> bool {
    let names = argument.get_value_names().unwrap_or_default();
    names.iter().any(|name| name.starts_with("NAMESPACE"))
}
