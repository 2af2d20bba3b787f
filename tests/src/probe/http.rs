//! A web server: any request is answered with the same JSON as over the other protocols,
//! so that `curl` shows who answered.

use super::{Answer, Proto, serve::Ledger};
use anyhow::Result;
use http_body_util::Full;
use hyper::{
    Response,
    body::Bytes,
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use std::{convert::Infallible, net::TcpListener};
use tokio::{net::TcpStream, runtime};

pub(super) fn serve(listener: TcpListener, ledger: &Ledger) {
    if let Err(error) = try_serve(listener, ledger) {
        eprintln!("web server {}: {error:#}", ledger.name());
    }
}

fn try_serve(listener: TcpListener, ledger: &Ledger) -> Result<()> {
    listener.set_nonblocking(true)?;
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            // A client that breaks off is its own problem.
            tokio::spawn(converse(stream, ledger.clone()));
        }
    })
}

async fn converse(stream: TcpStream, ledger: Ledger) -> Result<()> {
    let (local, saw) = (stream.local_addr()?, stream.peer_addr()?);
    ledger.record(Proto::Http, local, saw);
    let answer = Answer { server: ledger.name().into(), local, saw, peer: saw, received: 0 };
    let body = Bytes::from(serde_json::to_vec(&answer)?);
    let service = service_fn(move |_| {
        let mut response = Response::new(Full::new(body.clone()));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        async { Ok::<_, Infallible>(response) }
    });
    Ok(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await?)
}
