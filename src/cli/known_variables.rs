//! The environment variables of the program: one whose name is misspelt is an error, because it would have no effect.

use std::env;

use super::Failure;

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
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no variable {name}: did you mean {known}?")]
struct Misspelt {
    name: String,
    known: String,
}

/// Checks the names of the environment variables of this process.
///
/// # Errors
/// A misspelt one.
pub fn check(program: &clap::Command) -> Result<(), Failure> {
    let set = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    match misspelt(&known(program), set) {
        Some(misspelt) => Err(Failure::usage(misspelt)),
        None => Ok(()),
    }
}

fn known(program: &clap::Command) -> Vec<String> {
    let arguments = program.get_subcommands().flat_map(clap::Command::get_arguments);
    let variables = arguments.filter_map(|argument| argument.get_env()?.to_str());
    variables.chain(OTHERS).map(str::to_owned).collect()
}

fn misspelt(known: &[String], set: impl Iterator<Item = String>) -> Option<Misspelt> {
    let mut unknown = set.filter(|name| name.starts_with(PREFIX) && !known.contains(name));
    unknown.find_map(|name| {
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
        misspelt(&known(&Cli::command()), set).map(|misspelt| misspelt.known)
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
