//! `AdminService`: the operations of operators. Each changing operation writes a line to the log
//! under the target [`AUDIT`], also if it was denied or its caller disconnected before the answer. It is refused if that
//! line cannot be queued. More denials of one identity are summed up: see [`DeniedActions`].

use std::sync::Arc;

use super::authenticate::Caller;
use super::denied_actions::DeniedActions;
use super::large_reads::{Place, Step};
use super::peer::Peer;
use super::shared::Api;
use super::{convert, proto};
use crate::error::Error;
use crate::telemetry::{self, AUDIT, AuditPlace};

/// The maximum length of a caller's own text in an audit line, in bytes: the length of the longest
/// name.
const QUOTED_BYTES: usize = 512;

/// An operator's action. It ends with an audit line: who did what to which object, and the outcome.
/// A caller that disconnects before the outcome is known gets a line too, because the store may
/// have received the step.
struct AuditedAction<'a> {
    caller: &'a Caller,
    action: &'static str,
    namespace: &'a str,
    object: String,
    denied: &'a DeniedActions,
    is_audited: bool,
    _place: AuditPlace,
}

impl<'a> AuditedAction<'a> {
    /// Begins an action, if its line can be queued.
    fn begin(
        (caller, denied): (&'a Caller, &'a DeniedActions),
        action: &'static str,
        namespace: &'a str,
        object: String,
    ) -> Result<Self, Error> {
        let place = telemetry::reserve_audit_line();
        let place = place.ok_or_else(|| Error::Overloaded {
            what: "the audit log: too many of its lines are not written yet".into(),
        })?;
        Ok(Self {
            caller,
            action,
            namespace: truncated(namespace),
            object,
            denied,
            is_audited: false,
            _place: place,
        })
    }

    async fn run(self, action: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let outcome = action.await;
        self.ended(&outcome);
        outcome
    }

    fn ended(mut self, outcome: &Result<(), Error>) {
        match outcome {
            Ok(()) => self.audit("done"),
            Err(Error::PermissionDenied(_) | Error::QuotaExceeded(_)) if self.denied.sums(&self.caller.identity) => {
                self.is_audited = true;
            }
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

impl Api {
    pub(super) async fn force_release(
        self: Arc<Self>,
        caller: Caller,
        message: proto::ForceReleaseRequest,
    ) -> Result<proto::ForceReleaseResponse, Error> {
        let object = format!("{} token {}", truncated(&message.name), message.fencing_token);
        let forced = async {
            let locks = self.guarded.to_force(&caller, &message.namespace, &message.name)?;
            let (name, token) = convert::lock_and_token(&message.name, message.fencing_token)?;
            locks.force_release(&name, token).await
        };
        let action = AuditedAction::begin((&caller, &self.denied), "force_release", &message.namespace, object);
        action?.run(forced).await?;
        Ok(proto::ForceReleaseResponse {})
    }

    pub(super) async fn list_namespaces(
        self: Arc<Self>,
        caller: Caller,
        _: proto::ListNamespacesRequest,
    ) -> Result<proto::ListNamespacesResponse, Error> {
        let namespaces = self.guarded.all(&caller)?.iter().map(convert::namespace).collect();
        Ok(proto::ListNamespacesResponse { namespaces })
    }

    pub(super) async fn admit(
        self: Arc<Self>,
        caller: Caller,
        message: proto::AdmitRequest,
    ) -> Result<proto::AdmitResponse, Error> {
        let object = truncated(&message.node).to_owned();
        let admitted = async {
            let locks = self.guarded.to_admit(&caller, &message.namespace)?;
            locks.admit(convert::node(&message.node)?).await
        };
        let action = AuditedAction::begin((&caller, &self.denied), "admit", &message.namespace, object);
        action?.run(admitted).await?;
        Ok(proto::AdmitResponse {})
    }

    pub(super) async fn list_sessions(
        self: Arc<Self>,
        caller: Caller,
        message: proto::ListSessionsRequest,
    ) -> Result<(proto::ListSessionsResponse, Option<Place>), Error> {
        let place = self.large_reads.enter(Step::Convert, &caller).await;
        let (streams, identity) = self.guarded.to_list_streams(&caller)?;
        let page = convert::page(message.page_size, &message.page_token, "", self.pages)?;
        let (page, is_more) = streams.page(convert::number_before(&page)?, page.size, identity);
        let next = page.last().filter(|_| is_more).map(|last| last.number.to_string());
        let page = proto::ListSessionsResponse {
            sessions: convert::sessions(&page, self.response_bytes / 2),
            next_page_token: convert::page_token(next.as_deref()),
        };
        Ok((page, Some(place)))
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
        let (caller, denied) = (Caller::of(&mut Extensions::new()), DeniedActions::default());
        tracing::subscriber::with_default(lines.clone(), || {
            let begin =
                || AuditedAction::begin((&caller, &denied), "force_release", "jobs", "a token 7".into()).expect("room");
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
