//! Checks the addresses to listen on: conflicts between them, and addresses without encryption.

use super::error::ConfigError;
use super::file::File;
use super::listen::Listen;
use super::source::Source;
use crate::api::{HAS_CONSOLE, ListenAddress};
use crate::schema::Bounded;

/// Checks all addresses in the configuration.
pub(super) fn check(file: &File, source: &Source) -> Result<(), ConfigError> {
    check_listen(file, source)?;
    check_metrics_listen(file, source)?;
    check_console_listen(file, source)?;
    check_conflicts(file, source)
}

fn check_listen(file: &File, source: &Source) -> Result<(), ConfigError> {
    if file.listen.is_empty() || !file.listen.iter().all(Listen::is_bindable) {
        let bounds = Listen::bounds().unwrap_or_default();
        return Err(source.refuse(&["listen"], format!("must be at least one address, each {bounds}")));
    }
    let open = file.listen.iter().find(|listen| !listen.0.is_local());
    match open {
        Some(Listen(address)) if !file.insecure && file.tls.is_none() => Err(source.refuse(
            &["listen"],
            format!(
                "{address} must be a loopback address or a Unix socket where there is no [tls], unless insecure = true"
            ),
        )),
        _ => Ok(()),
    }
}

fn check_metrics_listen(file: &File, source: &Source) -> Result<(), ConfigError> {
    let is_open = |address: &ListenAddress| !address.is_local() && !file.insecure && !file.metrics_insecure;
    match &file.metrics_listen {
        Some(Listen(ListenAddress::Unix(_))) => Err(source.refuse(
            &["metrics_listen"],
            "must be host:port: Prometheus reads no Unix socket",
        )),
        Some(Listen(address)) if is_open(address) && file.tls.is_none() => {
            let problem = format!(
                "{address} must be a loopback address where there is no [tls], unless metrics_insecure = true or insecure = true"
            );
            Err(source.refuse(&["metrics_listen"], problem))
        }
        _ => Ok(()),
    }
}

fn check_console_listen(file: &File, source: &Source) -> Result<(), ConfigError> {
    let refuse = |problem: &str| Err(source.refuse(&["console_listen"], problem));
    match &file.console_listen {
        Some(_) if !HAS_CONSOLE => refuse("must be absent, because this program was built without the console"),
        Some(Listen(ListenAddress::Unix(_))) => refuse("must be host:port: browsers open no Unix socket"),
        Some(Listen(address)) if !address.is_local() && !file.insecure && file.tls.is_none() => refuse(&format!(
            "{address} must be a loopback address where there is no [tls], unless insecure = true"
        )),
        _ => Ok(()),
    }
}

/// Refuses an address that cannot be bound because another one is the same or includes it.
fn check_conflicts(file: &File, source: &Source) -> Result<(), ConfigError> {
    let listen = file.listen.iter().enumerate();
    let all = listen.map(|(number, address)| (format!("[{number}]"), address));
    let all: Vec<_> = all.collect();
    for (at, (number, address)) in all.iter().enumerate() {
        if let Some((before, other)) = all[..at].iter().find(|(_, other)| other.clashes_with(address)) {
            let problem = format!(
                "must not be listened on twice, and listen{before} ({}) is the same",
                other.0
            );
            return Err(source.refuse(&["listen", number], problem));
        }
    }
    let mut others: Vec<_> = all
        .into_iter()
        .map(|(number, address)| (format!("listen{number}"), address))
        .collect();
    for (key, address) in [
        ("metrics_listen", &file.metrics_listen),
        ("console_listen", &file.console_listen),
    ] {
        let Some(address) = address else { continue };
        if let Some((name, other)) = others.iter().find(|(_, other)| other.clashes_with(address)) {
            let problem = format!("must not be listened on twice, and {name} ({}) is the same", other.0);
            return Err(source.refuse(&[key], problem));
        }
        others.push((key.to_owned(), address));
    }
    Ok(())
}
