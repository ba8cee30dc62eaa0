//! `fencepost campaign` and `observe`: lead an election while a command runs, and see who leads.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use fencepost::api::proto::ObserveResponse;
use fencepost::name::{InvalidField, Metadata};
use fencepost_client::Client;

use super::Failure;
use super::direct::Purpose;
use super::following::follow;
use super::lock::{self, Lock};
use super::lock_name::LockName;
use super::lock_request::LockRequest;
use super::server::{Call, Server};
use super::unprintable::plain;

const CAMPAIGN_HELP: &str = "\
The election is the lock of the same name: the command runs while this process leads, as under
`fencepost lock`, whose help lists the variables of the command and the exit codes.

Examples:
  fencepost campaign default/mailer --value \"$HOSTNAME:8025\" --wait 24h --ttl 10s -- send-mail
  fencepost observe default/mailer --output json | jq -r '.leader.value'";

/// Lead an election while a command runs.
#[derive(Debug, clap::Args)]
#[command(after_help = CAMPAIGN_HELP)]
pub struct Campaign {
    /// The election
    #[arg(value_name = "NAMESPACE/NAME")]
    election: LockName,
    /// What observers see of this leader, such as its address
    #[arg(long, value_name = "TEXT", default_value = "", value_parser = value)]
    value: String,
    /// The time to wait for the leadership, such as 24h; without it, it is tried once
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
    /// The TTL of the leadership without a renewal, such as 10s [default: the namespace's]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,
    /// The label that observers see [default: user@host:process]
    #[arg(long, value_name = "LABEL")]
    candidate: Option<String>,
    /// Print the place in the queue and the leader to standard error at each change, also without a terminal
    #[arg(long, requires = "wait")]
    progress: bool,
    /// The time between TERM and KILL when the command must end; at most a quarter of the TTL
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    grace: Duration,
    #[command(flatten)]
    server: Server,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Observe an election.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  fencepost observe default/mailer -o json | jq -r .leader.value")]
pub struct Observe {
    /// The election
    #[arg(value_name = "NAMESPACE/NAME")]
    election: LockName,
}

fn value(text: &str) -> Result<String, InvalidField> {
    Metadata::of_value(text.to_owned()).map(|_| text.to_owned())
}

/// Runs the command while this process leads.
pub fn campaign(args: Campaign) -> Result<ExitCode, Failure> {
    let mut request = LockRequest::of_candidate(args.election, args.candidate, args.value);
    (request.wait, request.ttl, request.progress) = (args.wait, args.ttl, args.progress);
    lock::run(Lock::of(request, args.grace, args.server, args.command))
}

/// Prints the leader, then each change, until the process is interrupted or no server answers for a minute.
pub fn observe(Call { args, server, output }: Call<Observe>) -> Result<(), Failure> {
    let LockName { namespace, name } = &args.election;
    let observe = async |client: &Client| client.observe(namespace, name).await;
    let purpose = Purpose::within([namespace.as_str()]);
    let followed = follow((&server, purpose), observe, |leader| output.show(leader, text));
    followed.map_err(|failure| failure.about(&args.election))
}

fn text(seen: &ObserveResponse) -> String {
    let Some(leader) = &seen.leader else {
        return "nobody leads\n".to_owned();
    };
    let (candidate, token) = (plain(&leader.candidate), leader.fencing_token);
    format!("{candidate} leads with token {token}: {}\n", plain(&leader.value))
}
