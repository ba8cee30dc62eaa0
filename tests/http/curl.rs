//! Requests by the program curl.

use std::process::Command;

use serde_json::Value;

use super::server::Server;

/// A response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    headers: String,
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a header, or nothing.
    pub fn header(&self, name: &str) -> &str {
        let lines = self.headers.lines().filter_map(|line| line.split_once(": "));
        let mut values = lines.filter(|(own, _)| own.eq_ignore_ascii_case(name));
        values.next().map(|(_, value)| value).unwrap_or_default()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The reason and the code of an error.
    pub fn error(&self) -> (String, String) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let error = self.json();
        let mut details = error["details"].as_array().into_iter().flatten();
        let info = details.find(|detail| detail["type"] == "google.rpc.ErrorInfo");
        let reason = info.map(|info| text(&info["debug"]["reason"]));
        (reason.unwrap_or_default(), text(&error["code"]))
    }

    /// The messages of a stream, each with its flags.
    pub fn messages(&self) -> Vec<(u8, Vec<u8>)> {
        let (mut messages, mut rest) = (Vec::new(), &self.body[..]);
        while let Some(([flags, length @ ..], after)) = rest.split_first_chunk::<5>() {
            let length = u32::from_be_bytes(*length) as usize;
            messages.push((*flags, after[..length].to_vec()));
            rest = &after[length..];
        }
        assert!(rest.is_empty(), "{self:?}");
        messages
    }
}

/// The arguments that make curl speak a version of HTTP.
pub const VERSIONS: [&[&str]; 2] = [&["--http1.1"], &["--http2-prior-knowledge"]];

/// What curl prints for a call of a method, such as `LockService/Acquire`, with these further arguments.
pub fn call(server: &Server, method: &str, arguments: &[&str], body: &[u8]) -> Response {
    let folder = tempfile::tempdir().expect("a folder");
    let (sent, headers) = (folder.path().join("sent"), folder.path().join("headers"));
    std::fs::write(&sent, body).expect("a file");
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20", "--data-binary"])
        .arg(format!("@{}", sent.display()))
        .arg("--dump-header")
        .arg(&headers)
        .args(arguments)
        .arg(format!("http://{}/fencepost.v1.{method}", server.address))
        .output()
        .expect("curl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let headers = std::fs::read_to_string(headers).expect("headers");
    let status = headers.split(' ').nth(1).expect("a status").parse().expect("a number");
    Response {
        status,
        headers,
        body: output.stdout,
    }
}

/// The same with JSON.
pub fn json(server: &Server, method: &str, arguments: &[&str], body: &str) -> Response {
    let typed = [&["-H", "content-type: application/json"], arguments].concat();
    call(server, method, &typed, body.as_bytes())
}

/// A message with the prefix that it has in a stream.
pub fn prefixed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a short one").to_be_bytes();
    [&[0], &length[..], message].concat()
}
