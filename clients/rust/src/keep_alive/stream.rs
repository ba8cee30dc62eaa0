//! The stream on which the beats are sent.

use futures::channel::mpsc::{UnboundedSender, unbounded};
use tonic::{Request, Streaming};

use crate::calls::Calls;
use crate::connections::CallChannel;
use crate::error::Failed;
use crate::proto::keep_alive_response::Event;
use crate::proto::lock_service_client::LockServiceClient;
use crate::proto::{KeepAliveRequest, KeepAliveResponse};

/// An open stream. Dropping it ends it.
pub struct BeatStream {
    beats: UnboundedSender<KeepAliveRequest>,
    events: Streaming<KeepAliveResponse>,
    channel: CallChannel,
}

impl BeatStream {
    /// Opens a stream with its first beat, so that an intermediary that holds back a response until it has a message
    /// does not hold up the stream.
    ///
    /// # Errors
    /// The errors of the call; no response within 5 s. The channel was replaced if another server may answer.
    pub async fn open(calls: &Calls, channel: CallChannel, first: KeepAliveRequest) -> Result<Self, Failed> {
        let opened = calls.open(
            &channel,
            first,
            |channel, request: Request<KeepAliveRequest>| async move {
                let (beats, messages) = unbounded();
                let request = request.map(|first| {
                    // It fails only without a receiver.
                    let _ = beats.unbounded_send(first);
                    messages
                });
                let response = LockServiceClient::new(channel).keep_alive(request).await?;
                Ok(response.map(|events| (beats, events)))
            },
        );
        let (beats, events) = opened.await?;
        Ok(Self { beats, events, channel })
    }

    /// Sends a beat.
    pub fn send(&self, beat: KeepAliveRequest) {
        // It fails only if the stream has ended, which the next event shows.
        let _ = self.beats.unbounded_send(beat);
    }

    /// The next event.
    ///
    /// # Errors
    /// Why the stream ended. The channel was replaced if another server may answer.
    ///
    /// # Cancellation safety
    /// Dropping the future loses no event.
    pub async fn next(&mut self, calls: &Calls) -> Result<Event, Failed> {
        loop {
            let failed = match self.events.message().await {
                Ok(Some(KeepAliveResponse { event: Some(event) })) => return Ok(event),
                // An event of a later version.
                Ok(Some(KeepAliveResponse { event: None })) => continue,
                Ok(None) => Failed::no_response(&self.channel.address, "the stream ended"),
                Err(status) => Failed::of(&status, &self.channel.address),
            };
            calls.replace_channel(&self.channel, &failed);
            return Err(failed);
        }
    }

    /// The channel of the stream.
    pub fn channel(&self) -> &CallChannel {
        &self.channel
    }
}
