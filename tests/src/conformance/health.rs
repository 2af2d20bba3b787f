//! Asks the HTTP health ports of the node, until the answer is the promised one or it has had time
//! enough to become it.

use super::{case::Health, flow::primary, scene::Scene};
use crate::{
    http::{Response, get},
    late,
};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::net::SocketAddr;

pub(super) fn check(scene: &Scene, health: &Health) -> Result<()> {
    let address = SocketAddr::new(health.address.map_or_else(|| primary(scene), Ok)?, health.port);
    let path = health.path.as_deref().unwrap_or("/");
    let attempt = || judge(health, scene.stage.node.run(|| get(address, path))?.as_ref());
    late::soon(attempt).with_context(|| format!("http://{address}{path}"))
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
    use crate::http::parse;
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
