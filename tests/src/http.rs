//! A request to a web server, from the namespace of the thread.

use crate::late;
use anyhow::{Context, Result};
use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// For a connection and for an answer.
const LIMIT: Duration = Duration::from_secs(10);

/// An answer.
#[derive(Debug)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    /// As it came: a chunked one has lengths in it.
    pub body: String,
}

/// Nothing when the connection is refused. No answer in 10 s is a late one.
pub fn get(address: SocketAddr, path: &str) -> Result<Option<Response>> {
    let mut stream = match TcpStream::connect_timeout(&address, LIMIT) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
        stream => stream.map_err(late::of_socket)?,
    };
    stream.set_read_timeout(Some(LIMIT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(late::of_socket)?;
    parse(&text).map(Some)
}

/// The answer that is this text.
pub(crate) fn parse(text: &str) -> Result<Response> {
    let (head, body) = text.split_once("\r\n\r\n").context("an HTTP answer")?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("a status line")?;
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    Ok(Response { status: status.parse()?, headers: headers.collect(), body: body.to_owned() })
}
