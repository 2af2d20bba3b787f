//! Asks the HTTP health ports of the node, until the answer is the promised one or it has had time
//! enough to become it.

use super::{case::Health, flow::primary, scene::Scene};
use crate::late;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// For a connection and for an answer.
const LIMIT: Duration = Duration::from_secs(10);

pub(super) fn check(scene: &Scene, health: &Health) -> Result<()> {
    let address = SocketAddr::new(health.address.map_or_else(|| primary(scene), Ok)?, health.port);
    let path = health.path.as_deref().unwrap_or("/");
    let attempt = || judge(health, scene.stage.node.run(|| get(address, path))?.as_ref());
    late::soon(attempt).with_context(|| format!("http://{address}{path}"))
}

#[derive(Debug)]
struct Response {
    status: u16,
    /// Names in lower case.
    headers: BTreeMap<String, String>,
    body: String,
}

/// Nothing when the connection is refused.
fn get(address: SocketAddr, path: &str) -> Result<Option<Response>> {
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

fn parse(text: &str) -> Result<Response> {
    let (head, body) = text.split_once("\r\n\r\n").context("an HTTP answer")?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("a status line")?;
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    Ok(Response { status: status.parse()?, headers: headers.collect(), body: body.to_owned() })
}

/// What is shown follows what the agent knows, so other values may only be late. Whether the port is
/// open or closed is not a matter of time.
fn judge(health: &Health, answer: Option<&Response>) -> Result<()> {
    let Some(answer) = answer else {
        ensure!(health.closed, "nothing listens");
        return Ok(());
    };
    ensure!(!health.closed, "something listens: {answer:?}");
    let status = answer.status;
    ensure!(health.status.is_none_or(|wanted| wanted == status), late!("status {status}"));
    for (name, value) in &health.headers {
        let got = answer.headers.get(&name.to_lowercase());
        let wanted = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        ensure!(got == Some(&wanted), late!("header {name}: {got:?} instead of {wanted:?}"));
    }
    if health.local_endpoints.is_none() && health.body.is_empty() {
        return Ok(());
    }
    // A chunked body has lengths around the document.
    let document =
        answer.body.find('{').zip(answer.body.rfind('}')).map(|(start, end)| &answer.body[start..=end]);
    let Some(document) = document else { bail!("the body is no JSON object: {:?}", answer.body) };
    let body: Value = serde_json::from_str(document)?;
    let local = health.local_endpoints.map(Value::from);
    ensure!(local.is_none_or(|local| body["localEndpoints"] == local), late!("localEndpoints in {body}"));
    includes(&body, &Value::Object(health.body.clone()))
}

/// Objects may have more fields than were asked for.
fn includes(body: &Value, wanted: &Value) -> Result<()> {
    match wanted.as_object() {
        Some(fields) => fields.iter().try_for_each(|(name, value)| includes(&body[name], value)),
        None => {
            ensure!(body == wanted, late!("{body} instead of {wanted}"));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(health: Value, text: &str) -> Result<()> {
        let health: Health = serde_json::from_value(health)?;
        judge(&health, Some(&parse(text)?))
    }

    #[test]
    fn parts_of_answers_are_compared() {
        let text =
            "HTTP/1.1 200 OK\r\nX-Weight: 2\r\n\r\n12\r\n{\"localEndpoints\":2,\"a\":{\"b\":1,\"c\":2}}\r\n0";
        assert!(
            check(json!({"port": 1, "status": 200, "localEndpoints": 2, "headers": {"x-weight": "2"}}), text)
                .is_ok()
        );
        assert!(check(json!({"port": 1, "status": 200, "body": {"a": {"b": 1}}}), text).is_ok());
        assert!(check(json!({"port": 1, "status": 200, "body": {"a": {"b": 2}}}), text).is_err());
        assert!(check(json!({"port": 1, "status": 503}), text).is_err());
        assert!(check(json!({"port": 1, "closed": true}), text).is_err());
    }
}
