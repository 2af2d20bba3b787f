//! HTTP for what the agent tells: health, metrics, profiles. Knows nothing of what they say.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full, Limited};
pub use hyper::body::Bytes;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt},
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

pub use http::{Method, StatusCode};

pub use crate::model::Family;

/// Time between attempts to bind a port that is taken, or an address that is not there yet.
const RETRY: Duration = Duration::from_secs(5);

/// A client may open connections and say nothing: such are closed in time, and beyond this
/// number new ones wait, so that no one can use up the agent's descriptors.
const CONNECTIONS: usize = 256;

/// Pause after the system refused a connection, mostly for want of descriptors.
const BREATHER: Duration = Duration::from_millis(500);

const BACKLOG: u32 = 128;

/// Bytes of a body that is read, and how long it may take to come.
const BODY: usize = 4096;
const BODY_PATIENCE: Duration = Duration::from_secs(10);

/// A socket to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listen {
    /// Address and port.
    pub address: SocketAddr,
    /// An unspecified IPv6 address takes connections of both families.
    pub both_families: bool,
}

impl Listen {
    /// Every address of both families.
    pub fn everywhere(port: u16) -> Self {
        Self { address: (Ipv6Addr::UNSPECIFIED, port).into(), both_families: true }
    }

    /// What a configured address stands for: kube-proxy takes an unspecified address of
    /// either family for all addresses of both.
    pub fn general(address: SocketAddr) -> Self {
        if address.ip().is_unspecified() { Self::everywhere(address.port()) } else { Self::at(address) }
    }

    /// This address alone.
    pub fn at(address: impl Into<SocketAddr>) -> Self {
        Self { address: address.into(), both_families: false }
    }
}

/// What a client wants, and where it asked.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What it wants to do; most answers are the same whatever it is.
    pub method: Method,
    /// The path of the URL.
    pub path: String,
    /// What stands behind the `?` of the URL.
    pub query: String,
    /// The header `Accept`, or nothing.
    pub accept: String,
    /// What it sent along with a PUT or POST.
    pub body: Bytes,
    /// The family it came by.
    pub family: Family,
    /// The port it came to.
    pub port: u16,
}

impl Asked {
    /// The value of a parameter of the query, as it stands there.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let pairs = self.query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.filter(|(other, _)| *other == name).map(|(_, value)| value).next()
    }
}

/// An answer; the server adds what is the same for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it went.
    pub status: StatusCode,
    /// What the body is.
    pub content: Content,
    /// `X-Load-Balancing-Endpoint-Weight`: a balancer may share out traffic by it.
    pub weight: Option<usize>,
    /// What is said.
    pub body: Bytes,
}

impl Answer {
    /// An answer in plain words.
    pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self { status, content: Content::Text, weight: None, body: body.into() }
    }

    /// What was asked for.
    pub fn ok(content: Content, body: impl Into<Bytes>) -> Self {
        Self { status: StatusCode::OK, content, weight: None, body: body.into() }
    }

    /// There is nothing at this place.
    pub fn not_found() -> Self {
        Self::text(StatusCode::NOT_FOUND, "404 page not found\n")
    }
}

/// The kind of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A JSON document.
    Json,
    /// Words.
    Text,
    /// Metrics in the text format of Prometheus.
    Prometheus,
    /// Metrics as OpenMetrics writes them.
    OpenMetrics,
    /// Bytes for a program.
    Binary,
}

impl Content {
    fn media_type(self) -> &'static str {
        match self {
            Content::Json => "application/json",
            Content::Text => "text/plain; charset=utf-8",
            Content::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Content::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Content::Binary => "application/octet-stream",
        }
    }
}

/// An answer that takes its time. It is dropped when the client goes.
pub type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// What becomes of a question.
pub enum Reply {
    /// It is answered.
    Now(Answer),
    /// It will be.
    Later(Pending),
}

impl Reply {
    /// An answer that takes a thread for a while.
    pub fn blocking(answer: impl FnOnce() -> Answer + Send + 'static) -> Self {
        Self::Later(Box::pin(async {
            let broken = |_| Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "the answer broke off\n");
            spawn_blocking(answer).await.unwrap_or_else(broken)
        }))
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self::Now(answer)
    }
}

/// Nothing stands for a place where there is nothing.
impl From<Option<Answer>> for Reply {
    fn from(answer: Option<Answer>) -> Self {
        Self::Now(answer.unwrap_or_else(Answer::not_found))
    }
}

/// Gives the answer.
pub type Handler = Arc<dyn Fn(Asked) -> Reply + Send + Sync>;

/// A server that ends, with its connections, when this is dropped.
#[derive(Debug)]
pub struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Serves on a socket as soon as it can be had. `what` names it in the log.
pub fn start(listen: Listen, what: &'static str, handler: Handler) -> Task {
    Task(tokio::spawn(async move {
        let listener = bound(listen, what).await;
        serve(listener, handler).await;
    }))
}

/// The same, but a socket that cannot be had at once is an error.
pub fn start_at_once(listen: Listen, handler: Handler) -> io::Result<Task> {
    let listener = bind(listen)?;
    Ok(Task(tokio::spawn(serve(listener, handler))))
}

/// Binds and listens.
fn bind(listen: Listen) -> io::Result<TcpListener> {
    match bind_as_told(listen) {
        // A kernel without IPv6 has but one family to listen on.
        Err(error) if listen.both_families && error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32) => {
            let address = (Ipv4Addr::UNSPECIFIED, listen.address.port()).into();
            bind_as_told(Listen { address, both_families: false })
        }
        result => result,
    }
}

fn bind_as_told(listen: Listen) -> io::Result<TcpListener> {
    let socket = match listen.address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            setsockopt(&socket, sockopt::Ipv6V6Only, &!listen.both_families)?;
            socket
        }
    };
    // Connections of an earlier agent may linger on the port.
    socket.set_reuseaddr(true)?;
    socket.bind(listen.address)?;
    socket.listen(BACKLOG)
}

async fn bound(listen: Listen, what: &str) -> TcpListener {
    let address = listen.address;
    let mut failed = false;
    loop {
        match bind(listen) {
            Ok(listener) => {
                if failed {
                    info!(%address, what, "listening at last");
                }
                return listener;
            }
            Err(error) if failed => debug!(%address, what, %error, "cannot listen"),
            Err(error) => warn!(%address, what, %error, "cannot listen; trying again"),
        }
        failed = true;
        sleep(RETRY).await;
    }
}

async fn serve(listener: TcpListener, handler: Handler) {
    // Dropped, and the connections with it, when the task is aborted.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, _)) => drop(connections.spawn(converse(stream, handler.clone()))),
                Err(error) => {
                    debug!(%error, "cannot accept a connection");
                    sleep(BREATHER).await;
                }
            },
            Some(_) = connections.join_next() => (),
        }
    }
}

async fn converse(stream: TcpStream, handler: Handler) {
    let Ok(local) = stream.local_addr() else { return };
    // A socket for both families shows IPv4 addresses in their mapped form.
    let (family, port) = (Family::of(local.ip().to_canonical()), local.port());
    let answer = service_fn(async |request: Request<Incoming>| {
        let answer = match asked(request, family, port).await {
            Ok(asked) => match handler(asked) {
                Reply::Now(answer) => answer,
                Reply::Later(answer) => answer.await,
            },
            Err(refusal) => refusal,
        };
        Ok::<_, Infallible>(respond(answer))
    });
    // The timer closes connections whose request does not come.
    let mut builder = http1::Builder::new();
    if let Err(error) = builder.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), answer).await
    {
        debug!(%error, "a connection ended early");
    }
}

/// Takes in a request; one that says too much, or breaks off, is refused.
async fn asked(request: Request<Incoming>, family: Family, port: u16) -> Result<Asked, Answer> {
    let (head, body) = request.into_parts();
    let accept = head.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let body = match head.method {
        Method::PUT | Method::POST => {
            let read = timeout(BODY_PATIENCE, Limited::new(body, BODY).collect()).await;
            let refusal = || Answer::text(StatusCode::BAD_REQUEST, "the body is too long, or broke off\n");
            read.ok().and_then(Result::ok).ok_or_else(refusal)?.to_bytes()
        }
        _ => Bytes::new(),
    };
    Ok(Asked {
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        accept: accept.unwrap_or_default().to_owned(),
        method: head.method,
        body,
        family,
        port,
    })
}

fn respond(answer: Answer) -> Response<Full<Bytes>> {
    let Answer { status, content, weight, body } = answer;
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content.media_type()));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(weight) = weight {
        headers.insert("X-Load-Balancing-Endpoint-Weight", HeaderValue::from(weight));
    }
    response
}
