//! Counts the open sessions by the name and version that their clients say.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::IntGaugeVec;

/// How many names with their versions have a series of their own, because clients choose them.
const NAMED: usize = 64;
/// The labels of sessions of all others.
const OTHER: [&str; 2] = ["other", "other"];

/// The series. Clones share them.
#[derive(Debug, Clone)]
pub struct Clients {
    gauge: IntGaugeVec,
    open: Arc<Mutex<BTreeMap<[String; 2], usize>>>,
}

/// An open session, counted until it is dropped.
#[derive(Debug)]
pub struct OpenClient {
    clients: Clients,
    labels: [String; 2],
}

impl Clients {
    pub(super) fn new(gauge: IntGaugeVec) -> Self {
        Self {
            gauge,
            open: Arc::default(),
        }
    }

    /// Counts a session of this client.
    pub fn opened(&self, name: &str, version: &str) -> OpenClient {
        let mut open = self.open.lock();
        let mut labels = [name, version].map(str::to_owned);
        if open.len() >= NAMED && !open.contains_key(&labels) {
            labels = OTHER.map(str::to_owned);
        }
        *open.entry(labels.clone()).or_default() += 1;
        self.gauge.with_label_values(&labels).inc();
        OpenClient {
            clients: self.clone(),
            labels,
        }
    }
}

impl Drop for OpenClient {
    fn drop(&mut self) {
        let Clients { gauge, open } = &self.clients;
        let mut open = open.lock();
        gauge.with_label_values(&self.labels).dec();
        let Some(sessions) = open.get_mut(&self.labels) else {
            return;
        };
        *sessions -= 1;
        if *sessions == 0 {
            open.remove(&self.labels);
            // It fails only where the series is gone.
            let _ = gauge.remove_label_values(&self.labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Opts;
    use prometheus::core::Collector;

    use super::*;

    // G214
    #[test]
    fn names_beyond_the_limit_share_a_series_that_ends_with_their_sessions() {
        let gauge = IntGaugeVec::new(Opts::new("sessions", "Sessions."), &["client", "version"]).unwrap();
        let clients = Clients::new(gauge.clone());
        let named: Vec<_> = (0..NAMED + 9)
            .map(|number| clients.opened("a", &number.to_string()))
            .collect();
        let again = clients.opened("a", "0");
        let value = |labels: [&str; 2]| gauge.with_label_values(&labels).get();
        assert_eq!((value(["a", "0"]), value(["a", "1"]), value(OTHER)), (2, 1, 9));
        drop((named, again));
        assert_eq!(gauge.collect()[0].get_metric().len(), 0);
    }
}
