use std::{future::pending, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;

/// A server that answers each request with this, and ends the connection; its URL.
async fn server(answer: &'static str) -> Uri {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(answer.as_bytes()).await;
            if answer.is_empty() {
                pending::<()>().await;
            }
        }
    });
    url.parse().expect("a URL")
}

/// Asks once for each expected answer; none is an error.
async fn check(servers: &[Uri], expected: &[Option<&str>]) {
    let limits = Limits { headers: Duration::from_millis(500), ..Limits::default() };
    let client = client(&Config::new(servers[0].clone()), &servers[1..], limits).expect("a client");
    for (number, expected) in expected.iter().enumerate() {
        let request = Request::get("/version").body(Vec::new()).expect("a request");
        let answer = client.request_text(request).await;
        assert_eq!(answer.as_deref().ok(), *expected, "request {number}: {answer:?}");
    }
}

const FIRST: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nfirst";
const SECOND: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 6\r\n\r\nsecond";
const NO_BACKEND: &str = "HTTP/1.1 503 Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
const HALF: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 100\r\n\r\nhalf";

#[tokio::test]
async fn the_first_is_asked_while_it_answers() {
    check(&[server(FIRST).await, server(SECOND).await], &[Some("first"), Some("first")]).await;
}

#[tokio::test]
async fn after_a_failure_the_next_is_asked_and_after_the_last_the_first() {
    let closed: Uri = "http://127.0.0.1:1".parse().expect("a URL");
    for failing in [closed, server("").await, server(NO_BACKEND).await, server(HALF).await] {
        check(&[failing.clone(), server(SECOND).await], &[None, Some("second"), Some("second")]).await;
        check(&[failing.clone(), failing, server(SECOND).await], &[None, None, Some("second")]).await;
    }
}

#[tokio::test]
async fn one_server_is_asked_again() {
    check(&[server(NO_BACKEND).await], &[None, None]).await;
}
