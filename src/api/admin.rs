//! `AdminService`: the operations of operators. Each changing operation writes a line to the log
//! under the target [`AUDIT`], also if it was denied or its caller disconnected before the answer.

use tonic::{Request, Response, Status};

use super::access::GuardedNamespaces;
use super::authenticate::Caller;
use super::convert::Pages;
use super::peer::Peer;
use super::proto::admin_service_server::AdminService;
use super::settings::Settings;
use super::{convert, proto};
use crate::error::Error;
use crate::telemetry::AUDIT;

/// The maximum length of a caller's own text in an audit line, in bytes: the length of the longest
/// name.
const QUOTED_BYTES: usize = 512;

/// The service over the namespaces.
#[derive(Debug)]
pub(super) struct AdminApi {
    guarded: GuardedNamespaces,
    pages: Pages,
}

impl AdminApi {
    /// Serves these namespaces, with pages limited by the settings.
    pub(super) fn new(guarded: GuardedNamespaces, settings: &Settings) -> Self {
        Self {
            guarded,
            pages: Pages::of(settings),
        }
    }

    async fn force(&self, caller: &Caller, message: &proto::ForceReleaseRequest) -> Result<(), Error> {
        let locks = self.guarded.to_force(caller, &message.namespace, &message.name)?;
        let (name, token) = convert::lock_and_token(&message.name, message.fencing_token)?;
        locks.force_release(&name, token).await
    }

    async fn end_quarantine(&self, caller: &Caller, message: &proto::AdmitRequest) -> Result<(), Error> {
        let locks = self.guarded.to_admit(caller, &message.namespace)?;
        locks.admit(convert::node(&message.node)?).await
    }

    fn sessions(
        &self,
        caller: &Caller,
        message: &proto::ListSessionsRequest,
    ) -> Result<proto::ListSessionsResponse, Error> {
        let (streams, identity) = self.guarded.to_list_streams(caller)?;
        let page = convert::page(message.page_size, &message.page_token, "", self.pages)?;
        let (page, is_more) = streams.page(convert::number_before(&page)?, page.size, identity);
        let next = page.last().filter(|_| is_more).map(|last| last.number.to_string());
        Ok(proto::ListSessionsResponse {
            sessions: page.iter().map(|state| convert::session(state)).collect(),
            next_page_token: convert::page_token(next.as_deref()),
        })
    }
}

/// An operator's action. It ends with an audit line: who did what to which object, and the outcome.
/// A caller that disconnects before the outcome is known gets a line too, because the store may
/// have received the step.
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
            namespace: truncated(namespace),
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

    /// Text of callers is quoted, so that it cannot imitate another line.
    fn audit(&mut self, outcome: &str) {
        self.is_audited = true;
        let Self {
            caller,
            action,
            namespace,
            object,
            ..
        } = self;
        let (identity, outcome) = (caller.identity.as_str(), truncated(outcome));
        let peer = caller.peer().as_ref().map_or_else(|| "unknown".into(), Peer::to_string);
        tracing::info!(target: AUDIT, action, ?identity, %peer, ?namespace, ?object, ?outcome);
    }
}

impl Drop for AuditedAction<'_> {
    fn drop(&mut self) {
        if !self.is_audited {
            self.audit("unknown: the caller disconnected before the answer");
        }
    }
}

/// The text, truncated to [`QUOTED_BYTES`].
fn truncated(text: &str) -> &str {
    let end = (0..=text.len().min(QUOTED_BYTES)).rfind(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

#[tonic::async_trait]
impl AdminService for AdminApi {
    async fn force_release(
        &self,
        request: Request<proto::ForceReleaseRequest>,
    ) -> Result<Response<proto::ForceReleaseResponse>, Status> {
        let (_, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let object = format!("{} token {}", truncated(&message.name), message.fencing_token);
        let audited = AuditedAction::begin(&caller, "force_release", &message.namespace, object);
        let outcome = self.force(&caller, &message).await;
        audited.ended(&outcome);
        outcome?;
        Ok(Response::new(proto::ForceReleaseResponse {}))
    }

    async fn list_namespaces(
        &self,
        mut request: Request<proto::ListNamespacesRequest>,
    ) -> Result<Response<proto::ListNamespacesResponse>, Status> {
        let caller = Caller::of(request.extensions_mut());
        let namespaces = self.guarded.all(&caller)?.iter().map(convert::namespace).collect();
        Ok(Response::new(proto::ListNamespacesResponse { namespaces }))
    }

    async fn admit(&self, request: Request<proto::AdmitRequest>) -> Result<Response<proto::AdmitResponse>, Status> {
        let (_, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let audited = AuditedAction::begin(
            &caller,
            "admit",
            &message.namespace,
            truncated(&message.node).to_owned(),
        );
        let outcome = self.end_quarantine(&caller, &message).await;
        audited.ended(&outcome);
        outcome?;
        Ok(Response::new(proto::AdmitResponse {}))
    }

    async fn list_sessions(
        &self,
        mut request: Request<proto::ListSessionsRequest>,
    ) -> Result<Response<proto::ListSessionsResponse>, Status> {
        let caller = Caller::of(request.extensions_mut());
        Ok(Response::new(self.sessions(&caller, request.get_ref())?))
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

    /// Collects the audit lines.
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
    fn an_action_writes_one_audit_line_even_if_its_caller_disconnected() {
        let lines = AuditLog::default();
        let caller = Caller::of(&mut Extensions::new());
        tracing::subscriber::with_default(lines.clone(), || {
            let begin = || AuditedAction::begin(&caller, "force_release", "jobs", "a token 7".into());
            begin().ended(&Ok(()));
            begin().ended(&Err(Error::Draining));
            drop(begin());
        });
        let lines = lines.0.lock().unwrap();
        let outcomes = ["\"done\"", "shutting down", "the caller disconnected"];
        assert_eq!(lines.len(), outcomes.len(), "{lines:?}");
        for (line, outcome) in lines.iter().zip(outcomes) {
            assert!(line.contains("a token 7") && line.contains(outcome), "{line}");
        }
    }

    #[test]
    fn quoted_text_is_truncated_to_the_longest_name() {
        assert_eq!(truncated("a"), "a");
        assert_eq!(truncated(&"x".repeat(513)).len(), 512);
        assert_eq!(truncated(&"\u{fc}".repeat(300)).len(), 512);
        assert_eq!(truncated(&format!("x{}", "\u{fc}".repeat(300))).len(), 511);
    }
}
