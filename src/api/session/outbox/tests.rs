use futures::future::poll_fn;

use super::*;
use crate::api::proto::SessionResponse;
use crate::api::proto::session_event::{Ask, CommandError, CommandResult, Event, command_result::Outcome};

/// The result of a command that failed with a message of this many bytes.
fn failed(id: u64, bytes: usize) -> Outgoing {
    let error = CommandError {
        message: "x".repeat(bytes),
        ..CommandError::default()
    };
    let result = CommandResult {
        id,
        outcome: Some(Outcome::Error(error)),
    };
    let event = Some(Event::Result(result));
    SessionEvent { event }.into()
}

#[tokio::test]
async fn a_message_knows_its_length_whatever_its_events_are() {
    let (outbox, reader) = outbox(None);
    let ask = SessionEvent {
        event: Some(Event::Ask(Ask {})),
    };
    let (mut events, sizes) = (vec![ask.into()], [0, 1, 100, 127, 128, 16_384, MESSAGE_BYTES, 3]);
    events.extend((1..).zip(sizes).map(|(id, bytes)| failed(id, bytes)));
    outbox.send(events).expect("no limit was reached");
    let unread = outbox.unread();
    outbox.end(Ok(()));
    let (mut taken, mut length) = (0, 0);
    while let Some(message) = poll_fn(|cx| reader.poll_events(cx)).await {
        let message = message.expect("no error");
        taken += message.events.len();
        length += message.length;
        let events = message.events;
        assert_eq!(message.length, SessionResponse { events }.encoded_len());
    }
    assert_eq!((taken, length), (1 + sizes.len(), unread));
}
