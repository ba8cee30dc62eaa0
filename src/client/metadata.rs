//! Changes what a lease shows to operators.

use std::collections::BTreeMap;

use super::{Client, Error};
use crate::api::proto::UpdateMetadataRequest;
use crate::api::proto::lock_service_client::LockServiceClient;

impl Client {
    /// Replaces the metadata of a lease; its TTL stays as it is.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when it has ended, and [`Error::Refused`] with `UNSUPPORTED` if the store cannot do this.
    pub async fn update_metadata(&self, lease_id: &str, metadata: BTreeMap<String, String>) -> Result<(), Error> {
        let request = UpdateMetadataRequest {
            lease_id: lease_id.to_owned(),
            metadata,
        };
        let updated = self.calls.call(request, |channel, request| async move {
            LockServiceClient::new(channel).update_metadata(request).await
        });
        updated.await.map(drop)
    }
}
