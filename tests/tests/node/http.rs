//! Asks the agent of a node over HTTP, from the node itself.

use anyhow::{Context, Result};
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};
use tests::{late, topology::cluster::Node};

/// Where `/metrics` is.
pub(crate) const METRICS: u16 = 10249;
/// Where `/healthz` and `/livez` are.
pub(crate) const HEALTH: u16 = 10256;

/// Longer than any answer takes, for a profile takes a second.
const LIMIT: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// In lower case.
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.body).context("not text")
    }

    /// The value of a header, in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(other, _)| *other == name).map(|(_, value)| value).next()
    }
}

/// Asks for a path of one of the two ports.
pub(crate) fn get(node: &Node, port: u16, path: &str) -> Result<Response> {
    ask(node, port, &format!("GET {path}"), &[], "")
}

/// Sends a request: `line` is the method and the path.
pub(crate) fn ask(node: &Node, port: u16, line: &str, headers: &[&str], body: &str) -> Result<Response> {
    let mut request = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    headers.iter().for_each(|header| request.extend([header, "\r\n"]));
    request.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    let answer = node.host.netns.run(|| {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).map_err(late::of_socket)?;
        Ok(answer)
    })?;
    parse(&answer)
}

fn parse(answer: &[u8]) -> Result<Response> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").context("an HTTP answer")?;
    let head = String::from_utf8(answer[..end].to_vec())?.to_lowercase();
    let status = head.split(' ').nth(1).context("a status line")?.parse()?;
    Ok(Response { status, head, body: answer[end + 4..].to_vec() })
}
