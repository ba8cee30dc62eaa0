use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;

/// Answers each command with OK, and says the commands that it received.
async fn serve(mut stream: DuplexStream, received: mpsc::UnboundedSender<String>) {
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut bytes).await {
        for command in String::from_utf8_lossy(&bytes[..length]).split('*').skip(1) {
            let _ = received.send(command.lines().skip(2).step_by(2).collect::<Vec<_>>().join(" "));
            stream.write_all(b"+OK\r\n").await.unwrap();
        }
    }
}

#[tokio::test]
async fn no_call_overtakes_one_that_waits_for_its_pipeline() {
    let (here, there) = duplex(4096);
    let (received, mut commands) = mpsc::unbounded_channel();
    tokio::spawn(serve(there, received));
    let settings = RedisConnectionInfo::default();
    let config = AsyncConnectionConfig::default();
    let (connection, driver) = MultiplexedConnection::new_with_config(&settings, here, config)
        .await
        .unwrap();
    let pipelined = Pipelined::over(Connection::driven(connection, driver));
    let call = |number: usize| {
        let mut command = Cmd::new();
        command.arg("CALL").arg(number);
        pipelined.call(command)
    };

    {
        let mut first = pin!(call(1));
        assert!(poll!(first.as_mut()).is_pending(), "sent directly");
        let mut second = pin!(call(2));
        assert!(poll!(second.as_mut()).is_pending(), "waits for its pipeline");
    }
    // The first was dropped before it was sent, so that a call may be direct again, before the second's pipeline was sent.
    call(3).await.unwrap();

    let mut calls = Vec::new();
    while let Ok(command) = commands.try_recv() {
        calls.extend(command.strip_prefix("CALL ").map(str::to_owned));
    }
    assert_eq!(calls, ["2", "3"]);
}
