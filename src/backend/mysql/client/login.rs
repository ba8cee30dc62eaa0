//! The handshake of a server, and the login.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use super::ClientError;
use super::answers::error;
use super::packets::{Packets, Values};
use super::public_key::encrypted;
use crate::backend::login::Credentials;

/// What the client asks of a server: long flags, a database, the protocol of 4.1, transactions, passwords that are not sent,
/// several statements in a packet, their results, and plugins for passwords.
const CAPABILITIES: u32 = 0x0004 | 0x0008 | 0x0200 | 0x2000 | 0x8000 | 0x1_0000 | 0x2_0000 | 0x8_0000;
/// What says that this is no client of MariaDB's own extensions.
const PLAIN: u32 = 1;
/// TLS.
const TLS: u32 = 0x0800;
/// How long a packet may be, as the server is told.
const PACKET: u32 = 1 << 30;
/// The character set utf8mb4.
const CHARACTERS: u8 = 45;
/// The bytes of a challenge.
const CHALLENGE: usize = 20;
/// The plugins for passwords.
const NATIVE: &str = "mysql_native_password";
const CACHING: &str = "caching_sha2_password";
/// How many packets a server may send before it accepts a login.
const TURNS: usize = 8;

/// What a server says first.
#[derive(Debug)]
pub struct Handshake {
    /// Its version.
    pub version: String,
    /// The number of the session.
    pub session: u32,
    capabilities: u32,
    challenge: Vec<u8>,
    plugin: String,
    /// Whether nobody else reads what is sent, or can be taken for the server.
    is_secret: bool,
}

impl Handshake {
    /// Reads it.
    ///
    /// # Errors
    /// [`ClientError`] if the server refuses the connection, or is too old.
    pub async fn read(packets: &mut Packets, is_secret: bool) -> Result<Self, ClientError> {
        let packet = packets.receive().await?;
        if let Some(error) = error(&packet) {
            return Err(error);
        }
        let mut values = Values(&packet);
        if values.number(1)? != 10 {
            return Err(ClientError::protocol("it is no MariaDB or MySQL"));
        }
        let version = text(values.line());
        let session = values.number(4)? as u32;
        let mut challenge = values.bytes(8)?.to_vec();
        values.bytes(1)?;
        let low = values.number(2)? as u32;
        values.bytes(3)?;
        let capabilities = low | (values.number(2)? as u32) << 16;
        let length = usize::from(values.bytes(1)?[0]);
        values.bytes(10)?;
        challenge.extend_from_slice(values.bytes(length.saturating_sub(8).max(13))?);
        challenge.truncate(CHALLENGE);
        if capabilities & CAPABILITIES != CAPABILITIES {
            return Err(ClientError::protocol("is older than MariaDB 10.6 or MySQL 8.0"));
        }
        Ok(Self {
            version,
            session,
            capabilities,
            challenge,
            plugin: text(values.line()),
            is_secret,
        })
    }

    /// The packet that asks for TLS.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] if the server has none.
    pub fn tls_request(&self) -> Result<Vec<u8>, ClientError> {
        match self.capabilities & TLS {
            0 => Err(ClientError::protocol("has no TLS, and there is a ca_file")),
            _ => Ok(head(CAPABILITIES | PLAIN | TLS)),
        }
    }

    /// Logs in.
    ///
    /// # Errors
    /// [`ClientError`] if the server does not accept it, or asks for what is not known.
    pub async fn log_in(
        &self,
        packets: &mut Packets,
        database: &str,
        credentials: &Credentials,
    ) -> Result<(), ClientError> {
        let has_tls = credentials.tls.is_some();
        let (user, password) = match &credentials.login {
            Some(login) => (login.user.as_str(), login.password.as_bytes()),
            None => ("", &b""[..]),
        };
        let mut challenge = self.challenge.clone();
        // Another one is what the server has for users in general, and not that of this one.
        let mut plugin = [NATIVE, CACHING]
            .into_iter()
            .find(|plugin| *plugin == self.plugin)
            .unwrap_or(NATIVE);
        let answer = scrambled(plugin, password, &challenge);
        let mut packet = head(CAPABILITIES | PLAIN | if has_tls { TLS } else { 0 });
        for bytes in [
            user.as_bytes(),
            &[0, answer.len() as u8],
            &answer,
            database.as_bytes(),
            &[0],
        ] {
            packet.extend_from_slice(bytes);
        }
        packet.extend_from_slice(plugin.as_bytes());
        packet.push(0);
        packets.send(&packet).await?;
        for _ in 0..TURNS {
            let packet = packets.receive().await?;
            if let Some(error) = error(&packet) {
                return Err(error);
            }
            match packet.as_slice() {
                [0, ..] => return Ok(()),
                [0xfe, rest @ ..] => {
                    let mut values = Values(rest);
                    plugin = known(&text(values.line()))?;
                    challenge = values.0.iter().copied().take(CHALLENGE).collect();
                    packets.send(&scrambled(plugin, password, &challenge)).await?;
                }
                // The server knows the password from an earlier login.
                [1, 3] if plugin == CACHING => {}
                [1, 4] if plugin == CACHING && has_tls => packets.send(&[password, &[0]].concat()).await?,
                [1, ..] if plugin == CACHING && !has_tls && !self.is_secret => {
                    return Err(ClientError::protocol(
                        "asks for the password, which anybody in between could read, and the connection is not encrypted: \
                         set ca_file",
                    ));
                }
                [1, 4] if plugin == CACHING => packets.send(&[2]).await?,
                [1, key @ ..] if plugin == CACHING && !has_tls => {
                    packets.send(&encrypted(password, &challenge, key)?).await?;
                }
                _ => break,
            }
        }
        Err(ClientError::protocol("its login is not known"))
    }
}

/// What a login and a request for TLS begin with.
fn head(capabilities: u32) -> Vec<u8> {
    let mut packet = [capabilities.to_le_bytes(), PACKET.to_le_bytes()].concat();
    packet.push(CHARACTERS);
    packet.extend_from_slice(&[0; 23]);
    packet
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A plugin that the client has.
fn known(name: &str) -> Result<&'static str, ClientError> {
    let known = [NATIVE, CACHING].into_iter().find(|plugin| *plugin == name);
    known.ok_or_else(|| {
        let name: String = name.chars().take(64).collect();
        ClientError::protocol(format!(
            "the user logs in by the plugin {name:?}, and this client knows {NATIVE} and {CACHING}"
        ))
    })
}

/// What proves that the client knows the password.
fn scrambled(plugin: &str, password: &[u8], challenge: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let hash = |parts: &[&[u8]]| {
        let mut context = Context::new(if plugin == NATIVE {
            &SHA1_FOR_LEGACY_USE_ONLY
        } else {
            &SHA256
        });
        parts.iter().for_each(|part| context.update(part));
        context.finish()
    };
    let once = hash(&[password]);
    let twice = hash(&[once.as_ref()]);
    let mask = match plugin {
        NATIVE => hash(&[challenge, twice.as_ref()]),
        _ => hash(&[twice.as_ref(), challenge]),
    };
    once.as_ref()
        .iter()
        .zip(mask.as_ref())
        .map(|(byte, mask)| byte ^ mask)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_scrambled_as_servers_expect_it() {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let challenge: Vec<u8> = (1..=20).collect();
        for (plugin, expected) in [
            (NATIVE, "b32bb3a583e1340c0a1108d58b1be49781ad8c2f"),
            (
                CACHING,
                "746ebe205d56a0707acb3e796e834e0dd7b1d61743b26bd5202c7a623230c7c9",
            ),
        ] {
            assert_eq!(hex(scrambled(plugin, b"secret", &challenge)), expected, "{plugin}");
            assert!(scrambled(plugin, b"", &challenge).is_empty());
        }
    }

    // G202
    #[tokio::test]
    async fn no_server_on_another_machine_is_given_the_password_without_tls() {
        use tokio::io::AsyncWriteExt;
        let credentials = Credentials {
            login: Some(crate::backend::login::Login {
                user: "fencepost".into(),
                password: "secret".into(),
            }),
            tls: None,
        };
        for (is_secret, first, words) in [
            (false, &[2_u8, 0, 0, 2, 1, 4][..], "set ca_file"),
            (false, &[4, 0, 0, 2, 1, b'k', b'e', b'y'], "set ca_file"),
            (true, &[4, 0, 0, 2, 1, b'k', b'e', b'y'], "public key"),
        ] {
            let (client, mut server) = tokio::io::duplex(1 << 16);
            server.write_all(first).await.unwrap();
            let mut packets = Packets::new(Box::new(client));
            packets.sequence_from(1);
            let handshake = Handshake {
                version: "8.0.99".into(),
                session: 1,
                capabilities: CAPABILITIES,
                challenge: vec![7; CHALLENGE],
                plugin: CACHING.into(),
                is_secret,
            };
            let refused = handshake
                .log_in(&mut packets, "fencepost", &credentials)
                .await
                .unwrap_err();
            assert!(refused.to_string().contains(words), "{refused}");
        }
    }
}
