//! `AdminService`: what operators do by hand. What changes anything leaves a line in the log, under
//! the target [`AUDIT`], and so does what was denied, and what a caller left before it was answered.

use tonic::{Request, Response, Status};

use super::access::GuardedNamespaces;
use super::authenticate::Caller;
use super::connection::Peer;
use super::proto::admin_service_server::AdminService;
use super::{convert, proto, status};
use crate::error::Error;
use crate::telemetry::AUDIT;

/// How much of a caller's own text stands in a line of the audit, in bytes: as long as the longest name.
const SHOWN_BYTES: usize = 512;

/// The namespaces in the hands of their operators.
#[derive(Debug)]
pub(super) struct AdminApi {
    guarded: GuardedNamespaces,
}

impl AdminApi {
    /// Serves these namespaces.
    pub(super) fn new(guarded: GuardedNamespaces) -> Self {
        Self { guarded }
    }

    async fn force(&self, caller: &Caller, ask: &proto::ForceReleaseRequest) -> Result<(), Error> {
        let held = self.guarded.to_force(caller, &ask.namespace, &ask.name)?;
        let (name, token) = convert::lock_and_token(&ask.name, ask.fencing_token)?;
        held.force(name, token).await
    }

    async fn end_quarantine(&self, caller: &Caller, ask: &proto::AdmitRequest) -> Result<(), Error> {
        let locks = self.guarded.to_admit(caller, &ask.namespace)?;
        locks.admit(convert::node(&ask.node)?).await
    }
}

/// What an operator does. It ends with a line of the audit: who did what to whom, and what came of it. A
/// caller that leaves before that is known has its line too, for the store may have been asked already.
struct AuditedAction<'a> {
    caller: &'a Caller,
    action: &'static str,
    namespace: &'a str,
    object: String,
    is_audited: bool,
}

impl<'a> AuditedAction<'a> {
    fn begin(caller: &'a Caller, action: &'static str, namespace: &'a str, object: String) -> Self {
        Self {
            caller,
            action,
            namespace: shown(namespace),
            object,
            is_audited: false,
        }
    }

    fn ended(mut self, outcome: &Result<(), Error>) {
        match outcome {
            Ok(()) => self.audit("done"),
            Err(error) => self.audit(&error.to_string()),
        }
    }

    /// Text of callers is quoted, so that it cannot pretend to be another line.
    fn audit(&mut self, outcome: &str) {
        self.is_audited = true;
        let Self {
            caller,
            action,
            namespace,
            object,
            ..
        } = self;
        let (identity, outcome) = (caller.identity.as_str(), shown(outcome));
        let peer = caller.peer().as_ref().map_or_else(|| "unknown".into(), Peer::to_string);
        tracing::info!(target: AUDIT, action, ?identity, %peer, ?namespace, ?object, ?outcome);
    }
}

impl Drop for AuditedAction<'_> {
    fn drop(&mut self) {
        if !self.is_audited {
            self.audit("unknown: the caller left before the answer");
        }
    }
}

/// As much of a text as is shown.
fn shown(text: &str) -> &str {
    let end = (0..=text.len().min(SHOWN_BYTES)).rfind(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

#[tonic::async_trait]
impl AdminService for AdminApi {
    async fn force_release(
        &self,
        request: Request<proto::ForceReleaseRequest>,
    ) -> Result<Response<proto::ForceReleaseResponse>, Status> {
        let (_, mut extensions, ask) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let object = format!("{} token {}", shown(&ask.name), ask.fencing_token);
        let act = AuditedAction::begin(&caller, "force_release", &ask.namespace, object);
        let outcome = self.force(&caller, &ask).await;
        act.ended(&outcome);
        outcome.map_err(status::of)?;
        Ok(Response::new(proto::ForceReleaseResponse {}))
    }

    async fn list_namespaces(
        &self,
        mut request: Request<proto::ListNamespacesRequest>,
    ) -> Result<Response<proto::ListNamespacesResponse>, Status> {
        let caller = Caller::of(request.extensions_mut());
        let all = self.guarded.all(&caller).map_err(status::of)?;
        let namespaces = all.iter().map(convert::namespace).collect();
        Ok(Response::new(proto::ListNamespacesResponse { namespaces }))
    }

    async fn admit(&self, request: Request<proto::AdmitRequest>) -> Result<Response<proto::AdmitResponse>, Status> {
        let (_, mut extensions, ask) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let act = AuditedAction::begin(&caller, "admit", &ask.namespace, shown(&ask.node).to_owned());
        let outcome = self.end_quarantine(&caller, &ask).await;
        act.ended(&outcome);
        outcome.map_err(status::of)?;
        Ok(Response::new(proto::AdmitResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Write};
    use std::sync::{Arc, Mutex};

    use http::Extensions;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// The lines of the audit.
    #[derive(Clone, Default)]
    struct AuditLog(Arc<Mutex<Vec<String>>>);

    struct AuditLine(String);

    impl Visit for AuditLine {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            write!(self.0, "{field}={value:?} ").unwrap();
        }
    }

    impl Subscriber for AuditLog {
        fn enabled(&self, of: &Metadata<'_>) -> bool {
            of.target() == AUDIT
        }

        fn event(&self, event: &Event<'_>) {
            let mut line = AuditLine(String::new());
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn an_act_leaves_one_line_also_when_its_caller_left() {
        let lines = AuditLog::default();
        let caller = Caller::of(&mut Extensions::new());
        tracing::subscriber::with_default(lines.clone(), || {
            let begin = || AuditedAction::begin(&caller, "force_release", "jobs", "a token 7".into());
            begin().ended(&Ok(()));
            begin().ended(&Err(Error::Draining));
            drop(begin());
        });
        let lines = lines.0.lock().unwrap();
        let outcomes = ["\"done\"", "shutting down", "the caller left"];
        assert_eq!(lines.len(), outcomes.len(), "{lines:?}");
        for (line, outcome) in lines.iter().zip(outcomes) {
            assert!(line.contains("a token 7") && line.contains(outcome), "{line}");
        }
    }

    #[test]
    fn as_much_of_a_text_is_shown_as_a_name_may_be_long() {
        assert_eq!(shown("a"), "a");
        assert_eq!(shown(&"x".repeat(513)).len(), 512);
        assert_eq!(shown(&"\u{fc}".repeat(300)).len(), 512);
        assert_eq!(shown(&format!("x{}", "\u{fc}".repeat(300))).len(), 511);
    }
}
