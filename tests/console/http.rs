//! HTTP as it is written.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use fencepost::rpc::METHODS;
use serde_json::Value;

/// Longer than any response takes, also that to the start of a browser on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    /// The value of a header; empty where there is none.
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(own, _)| own == name);
        found.map_or("", |(_, value)| value)
    }

    /// The body, which must be JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The reason of an error.
    pub fn reason(&self) -> String {
        let error = self.json();
        let reason = reason(&error);
        reason.or(error["code"].as_str()).unwrap_or_default().to_owned()
    }
}

/// The reason in the details of an error.
pub fn reason(error: &Value) -> Option<&str> {
    let mut details = error["details"].as_array()?.iter();
    details.find(|detail| detail["type"] == "google.rpc.ErrorInfo")?["debug"]["reason"].as_str()
}

/// Sends a request as it stands, and reads the response.
pub fn send(address: &str, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("the port");
    stream.set_read_timeout(Some(TIME_LIMIT)).expect("a socket");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut read = Vec::new();
    loop {
        if let Some(answer) = parse(&read) {
            return answer;
        }
        let mut part = [0; 1 << 14];
        match stream.read(&mut part) {
            Ok(0) => panic!("cut off: {}", String::from_utf8_lossy(&read)),
            Ok(bytes) => read.extend_from_slice(&part[..bytes]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&read)),
        }
    }
}

/// A complete response with a length.
fn parse(read: &[u8]) -> Option<Answer> {
    let text = String::from_utf8_lossy(read);
    let (head, _) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().expect("a status");
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.map_or(0, |(_, length)| length.parse().expect("a length"));
    let body = read.get(head.len() + 4..)?.get(..length)?;
    Some(Answer {
        status,
        headers,
        body: String::from_utf8(body.to_vec()).expect("UTF-8"),
    })
}

/// The path of a method.
pub fn path(method: &str) -> String {
    let found = METHODS.iter().find(|known| known.name == method);
    found.map_or_else(|| format!("/{method}"), |known| known.path.to_owned())
}

/// A request with a JSON body.
pub fn post(address: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n{headers}");
    send(address, &format!("{head}Content-Length: {length}\r\n\r\n{body}"))
}

/// A request without a body.
pub fn request(address: &str, method: &str, path: &str) -> Answer {
    send(address, &format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"))
}
