//! The environment variables of the program. Empty ones are as if they were not set, because that is how compose files and
//! service managers leave one out. A misspelt one is told, because it has no effect.

use std::env;

use clap::builder::Resettable;

use super::output::print_line;
use super::unprintable::plain;

const PREFIX: &str = "FENCEPOST_";
/// The variables that are no arguments: those of stores, and those that the command of `lock` gets.
const OTHERS: [&str; 6] = [
    "FENCEPOST_ETCD_PASSWORD",
    "FENCEPOST_ZOOKEEPER_PASSWORD",
    "FENCEPOST_TOKEN",
    "FENCEPOST_LEASE_ID",
    "FENCEPOST_LOCK",
    "FENCEPOST_NAMESPACE",
];
/// How many characters of a misspelt name differ at most. Kubernetes sets variables for a service with this program's
/// name, such as `FENCEPOST_SERVICE_HOST`, which are no misspellings.
const MAX_DISTANCE: usize = 2;

/// A variable with a name that resembles a known one.
#[derive(Debug, PartialEq, Eq)]
struct Misspelt {
    name: String,
    known: String,
}

/// Warns of misspelt environment variables of this process. They may be of another program, so they are no error.
pub fn warn(program: &clap::Command) {
    let set = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for Misspelt { name, known } in misspelt(&known(program), set) {
        print_line(&plain(&format!(
            "warning: there is no variable {name}: did you mean {known}?"
        )));
    }
}

/// The program, for which empty variables are not set.
pub fn without_empty(program: clap::Command) -> clap::Command {
    let is_empty = |argument: &clap::Arg| {
        let value = argument.get_env().and_then(env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    let program = program.mut_args(|argument| match is_empty(&argument) {
        true => argument.env(Resettable::Reset),
        false => argument,
    });
    program.mut_subcommands(without_empty)
}

fn known(program: &clap::Command) -> Vec<String> {
    let arguments = program.get_subcommands().flat_map(clap::Command::get_arguments);
    let variables = arguments.filter_map(|argument| argument.get_env()?.to_str());
    variables.chain(OTHERS).map(str::to_owned).collect()
}

fn misspelt(known: &[String], set: impl Iterator<Item = String>) -> impl Iterator<Item = Misspelt> {
    let unknown = set.filter(|name| name.starts_with(PREFIX) && !known.contains(name));
    unknown.filter_map(|name| {
        let near = known
            .iter()
            .map(|known| (strsim::levenshtein(&name, known), known))
            .min()?;
        (near.0 <= MAX_DISTANCE).then(|| Misspelt {
            known: near.1.clone(),
            name: name.clone(),
        })
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn meant(name: &str) -> Option<String> {
        let set = std::iter::once(name.to_owned());
        let known = known(&Cli::command());
        let found = misspelt(&known, set).next();
        found.map(|misspelt| misspelt.known)
    }

    #[test]
    fn a_misspelt_variable_is_told_from_those_of_others() {
        for name in ["FENCEPOST_ADRR", "FENCEPOST_ADDRS", "FENCEPOST_ADR"] {
            assert_eq!(meant(name).as_deref(), Some("FENCEPOST_ADDR"), "{name}");
        }
        assert_eq!(meant("FENCEPOST_LOG_LEVL").as_deref(), Some("FENCEPOST_LOG_LEVEL"));
        for name in [
            "FENCEPOST_ADDR",
            "FENCEPOST_TOKEN",
            "FENCEPOST_ETCD_PASSWORD",
            "PATH",
            // What Kubernetes sets.
            "FENCEPOST_SERVICE_HOST",
            "FENCEPOST_SERVICE_PORT",
            "FENCEPOST_SERVICE_PORT_GRPC",
            "FENCEPOST_PORT",
            "FENCEPOST_PORT_50051_TCP",
            "FENCEPOST_PORT_50051_TCP_ADDR",
            "FENCEPOST_PORT_50051_TCP_PROTO",
            "FENCEPOST_HEADLESS_SERVICE_HOST",
        ] {
            assert_eq!(meant(name), None, "{name}");
        }
    }
}
