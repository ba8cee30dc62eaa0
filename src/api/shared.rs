//! What the functions of methods and streams work on.

use std::sync::Arc;

use futures::stream::BoxStream;
use tonic::Status;

use super::access::GuardedNamespaces;
use super::call_metrics::CallMetrics;
use super::concurrency_limit::Permits;
use super::convert::{Bounds, Pages};
use super::denied_actions::DeniedActions;
use super::large_reads::LargeReads;

/// The messages of a stream.
pub(super) type Messages<M> = BoxStream<'static, Result<M, Status>>;

/// What all calls and streams share. Its functions are the methods of `lock`, `election` and `admin`.
#[derive(Debug)]
pub(super) struct Api {
    pub guarded: GuardedNamespaces,
    pub permits: Arc<Permits>,
    pub metrics: CallMetrics,
    pub denied: DeniedActions,
    pub bounds: Bounds,
    pub pages: Pages,
    pub large_reads: LargeReads,
    /// The size limit of a request message.
    pub request_bytes: usize,
    /// The size limit of an answer, or of a message of events.
    pub response_bytes: usize,
}
