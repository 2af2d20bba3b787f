//! A connection to one API server, of which it is noticed in time that it is dead, however it died.
//!
//! kube-rs's own client speaks HTTP/1.1 and waits for ever. This one asks a server that speaks HTTP/2 by PING whether
//! it is there, which finds stopped processes, dropped packets and ends of connections that were lost on the way, and
//! carries all watches on one connection. The kernel does what it can for connections of the older protocol. Which
//! server is asked is decided elsewhere.

use std::time::Duration;

use futures::stream;
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Body as HttpBody, Bytes};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config, Error,
    client::{Body, ConfigExt as _, RustlsTlsError},
};
use thiserror::Error;
use tokio::time::{error::Elapsed, timeout};
use tower::{BoxError, ServiceBuilder, service_fn};

/// How long the server may take for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// To accept a connection, TLS included.
    pub(super) connect: Duration,
    /// To begin an answer, the connection included. A server that has much to do lets requests wait for 15 seconds
    /// before it refuses them.
    pub(super) headers: Duration,
    /// Without a byte: the pause until it is asked whether it is there, and once more the same for its answer.
    pub(super) ping: Duration,
    /// Between two parts of an answer that is no watch.
    pub(super) body: Duration,
    /// Without an event. A server sends a bookmark about once a minute when nothing happens.
    pub(super) watch: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            headers: Duration::from_secs(20),
            ping: Duration::from_secs(10),
            body: Duration::from_secs(20),
            watch: Duration::from_secs(90),
        }
    }
}

/// The server went silent.
#[derive(Debug, Error)]
enum Silent {
    #[error("the API server did not begin to answer within {0:?}")]
    Headers(Duration),
    #[error("the API server stopped in the middle of an answer, for {0:?}")]
    Body(Duration),
}

/// A client of the server that `config` names.
pub(super) fn client(config: &Config, limits: Limits) -> Result<Client, Error> {
    if config.proxy_url.is_some() {
        // Proxies are not supported by this build, and kube-rs says it best.
        return Client::try_from(config.clone());
    }
    let http = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(limits.ping)
        .http2_keep_alive_timeout(limits.ping)
        .http2_keep_alive_while_idle(true)
        .build(connector(config, limits)?);
    let stack = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    let inner = Client::new(stack, config.default_namespace.clone());
    let namespace = config.default_namespace.clone();
    Ok(Client::new(service_fn(move |request| answer(inner.clone(), request, limits)), namespace))
}

fn connector(
    config: &Config,
    limits: Limits,
) -> Result<TimeoutConnector<HttpsConnector<HttpConnector>>, Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(limits.ping));
    tcp.set_keepalive_interval(Some(limits.ping / 2));
    tcp.set_keepalive_retries(Some(2));
    tcp.set_tcp_user_timeout(Some(2 * limits.ping));
    let mut tls =
        HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into().map_err(RustlsTlsError::InvalidServerName);
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name.map_err(Error::RustlsTls)?));
    }
    let mut connector = TimeoutConnector::new(tls.enable_all_versions().wrap_connector(tcp));
    connector.set_connect_timeout(Some(limits.connect));
    Ok(connector)
}

async fn answer(
    client: Client,
    request: Request<Body>,
    limits: Limits,
) -> Result<Response<impl HttpBody<Data = Bytes, Error = BoxError>>, BoxError> {
    let is_watch =
        request.uri().query().is_some_and(|query| query.split('&').any(|part| part.starts_with("watch=")));
    let late = |_: Elapsed| Silent::Headers(limits.headers);
    let response = timeout(limits.headers, client.send(request)).await.map_err(late)??;
    Ok(response.map(|body| in_time(body, is_watch, limits)))
}

/// A watch that says nothing ends, and is resumed where it was: without bookmarks that is no error. Any other answer
/// that stops is one.
fn in_time(
    body: Body,
    is_watch: bool,
    limits: Limits,
) -> impl HttpBody<Data = Bytes, Error = BoxError> + Send + 'static {
    let limit = if is_watch { limits.watch } else { limits.body };
    StreamBody::new(stream::unfold(Some(body), move |body| async move {
        let mut body = body?;
        match timeout(limit, body.frame()).await {
            Ok(frame) => frame.map(|frame| (frame.map_err(BoxError::from), Some(body))),
            Err(_) if is_watch => None,
            Err(_) => Some((Err(Silent::Body(limit).into()), None)),
        }
    }))
}

#[cfg(test)]
mod tests;
