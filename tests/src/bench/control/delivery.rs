//! How long the API server takes to hand out both lists, to a client that does nothing with them.
//! It asks as the proxies do: a watch that begins with all there is.

use super::results::Delivery;
use anyhow::{Context as _, Result, ensure};
use http::Request;
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use std::time::{Duration, Instant};

/// The kinds, and which objects of them a proxy wants.
const LISTS: [(&str, &str); 2] = [
    ("/api/v1/services", "!service.kubernetes.io/service-proxy-name"),
    (
        "/apis/discovery.k8s.io/v1/endpointslices",
        "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless",
    ),
];
const ASKS: &str = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true\
    &resourceVersionMatch=NotOlderThan";
/// Of the bookmark behind the last object.
const END: &[u8] = b"k8s.io/initial-events-end";
/// So many bytes at the end hold all of the bookmark that matters.
const TAIL: usize = 1024;

/// Asks for both at the same time.
pub(super) async fn measure(client: &Client, media_type: &str, limit: Duration) -> Result<Delivery> {
    let begin = Instant::now();
    let [services, slices] = LISTS.map(|(path, selector)| bytes_of(client, path, selector, media_type));
    let both = async { tokio::try_join!(services, slices) };
    let (services, slices) = tokio::time::timeout(limit, both).await.context("the lists did not come")??;
    let mib = (services + slices) as f64 / f64::from(1 << 20);
    Ok(Delivery { seconds: begin.elapsed().as_secs_f64(), mib })
}

async fn bytes_of(client: &Client, path: &str, selector: &str, media_type: &str) -> Result<u64> {
    let selector = selector.replace('!', "%21").replace(',', "%2C").replace('/', "%2F");
    let uri = format!("{path}?{ASKS}&labelSelector={selector}");
    let request = Request::get(uri).header("accept", media_type).body(Body::empty())?;
    let answer = client.send(request).await?;
    ensure!(answer.status().is_success(), "{path}: {}", answer.status());
    let mut body = answer.into_body();
    let (mut bytes, mut tail) = (0, Vec::with_capacity(2 * TAIL));
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        bytes += data.len() as u64;
        tail.extend_from_slice(&data[data.len().saturating_sub(TAIL)..]);
        tail.drain(..tail.len().saturating_sub(TAIL));
        if tail.windows(END.len()).any(|window| window == END) {
            return Ok(bytes);
        }
    }
    anyhow::bail!("{path} ended after {bytes} bytes")
}
