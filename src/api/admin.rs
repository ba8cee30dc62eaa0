//! `AdminService`: the operations of operators. Each changing operation writes a line to the log
//! under the target [`AUDIT`], also if it was denied or its caller disconnected before the answer. It is refused if that
//! line cannot be queued. More denials of one identity are summed up: see [`DeniedActions`].

use std::sync::{Arc, OnceLock};

use super::authenticate::Caller;
use super::denied_actions::DeniedActions;
use super::large_reads::{Place, Step};
use super::peer::Peer;
use super::request_log::truncated;
use super::shared::Api;
use super::{convert, proto};
use crate::error::Error;
use crate::telemetry::{self, AUDIT, AuditPlace};

/// What an operator acts on.
#[derive(Debug, Clone, Copy)]
enum Object<'a> {
    Holder { lock: &'a str, token: u64 },
    Node(&'a str),
}

/// An operator's action. It ends with an audit line: who did what to which object, why, and the outcome.
/// A caller that disconnects before the outcome is known gets a line too, because the store may
/// have received the step.
struct AuditedAction<'a> {
    caller: &'a Caller,
    action: &'static str,
    namespace: &'a str,
    object: Object<'a>,
    reason: &'a str,
    /// The owner label of the holder, once it is known.
    owner: OnceLock<String>,
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
        object: Object<'a>,
        reason: &'a str,
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
            reason: truncated(reason),
            owner: OnceLock::new(),
            denied,
            is_audited: false,
            _place: place,
        })
    }

    fn ended(mut self, outcome: Result<(), Error>) -> Result<(), Error> {
        match &outcome {
            Ok(()) => self.audit("done"),
            Err(Error::PermissionDenied(_) | Error::QuotaExceeded(_)) if self.denied.sums(&self.caller.identity) => {
                self.is_audited = true;
            }
            Err(error) => self.audit(&error.to_string()),
        }
        outcome
    }

    /// Text of callers is a quoted value, so that it cannot imitate another line.
    fn audit(&mut self, outcome: &str) {
        self.is_audited = true;
        let Self {
            caller,
            action,
            namespace,
            reason,
            ..
        } = self;
        let (lock, token, node) = match self.object {
            Object::Holder { lock, token } => (Some(truncated(lock)), Some(token), None),
            Object::Node(node) => (None, None, Some(truncated(node))),
        };
        let peer = caller.peer().as_ref().map_or_else(|| "unknown".into(), Peer::to_string);
        tracing::info!(
            target: AUDIT,
            action,
            identity = caller.identity.as_str(),
            peer,
            request_id = caller.call.as_ref().map(ToString::to_string),
            namespace,
            lock,
            token,
            node,
            owner = self.owner.get(),
            reason = Some(*reason).filter(|reason| !reason.is_empty()),
            outcome = truncated(outcome),
        );
    }
}

impl Drop for AuditedAction<'_> {
    fn drop(&mut self) {
        if !self.is_audited {
            self.audit("unknown: the caller disconnected before the answer");
        }
    }
}

impl Api {
    pub(super) async fn force_release(
        self: Arc<Self>,
        caller: Caller,
        message: proto::ForceReleaseRequest,
    ) -> Result<proto::ForceReleaseResponse, Error> {
        let proto::ForceReleaseRequest {
            namespace,
            name,
            fencing_token: token,
            reason,
        } = &message;
        let object = Object::Holder {
            lock: name,
            token: *token,
        };
        let action = AuditedAction::begin((&caller, &self.denied), "force_release", namespace, object, reason)?;
        let forced = async {
            let locks = self.guarded.to_force(&caller, namespace, name)?;
            let (name, token) = convert::lock_and_token(name, *token)?;
            convert::check_reason(reason)?;
            // Only for the audit: an error is that of the release too.
            if let Ok(Some(holder)) = locks.check(&name, token).await {
                _ = action.owner.set(holder.owner.as_str().to_owned());
            }
            locks.force_release(&name, token).await
        }
        .await;
        action.ended(forced)?;
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
        let object = Object::Node(&message.node);
        let action = AuditedAction::begin((&caller, &self.denied), "admit", &message.namespace, object, "")?;
        let admitted = async {
            let locks = self.guarded.to_admit(&caller, &message.namespace)?;
            locks.admit(convert::node(&message.node)?).await
        }
        .await;
        action.ended(admitted)?;
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
            let object = Object::Holder { lock: "a", token: 7 };
            let begin =
                || AuditedAction::begin((&caller, &denied), "force_release", "jobs", object, "stuck").expect("room");
            begin().ended(Ok(())).expect("done");
            begin().ended(Err(Error::Draining)).expect_err("refused");
            drop(begin());
        });
        let lines = lines.0.lock().unwrap();
        let outcomes = ["\"done\"", "shutting down", "the caller disconnected"];
        assert_eq!(lines.len(), outcomes.len(), "{lines:?}");
        for (line, outcome) in lines.iter().zip(outcomes) {
            for field in ["lock=\"a\"", "token=7", "reason=\"stuck\"", outcome] {
                assert!(line.contains(field), "{field}: {line}");
            }
        }
    }
}
