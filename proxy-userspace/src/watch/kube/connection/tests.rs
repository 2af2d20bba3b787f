use kube::{Api, api::ListParams};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use super::*;

/// What a test waits for in full, and what it does not.
const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(60);

const NO_LIMITS: Limits = Limits { connect: LONG, headers: LONG, ping: LONG, body: LONG, watch: LONG };

/// A client of a server that answers with these bytes, and then says nothing and ends nothing.
async fn of_server_that_says(bytes: &'static [u8], limits: Limits) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        let mut open = Vec::<TcpStream>::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(bytes).await;
            open.push(stream);
        }
    });
    client(&Config::new(url.parse().expect("a URL")), limits).expect("a client")
}

fn request(path: &str) -> Request<Vec<u8>> {
    Request::get(path).body(Vec::new()).expect("a request")
}

async fn error(client: &Client) -> String {
    let started = Instant::now();
    let error = client.request_text(request("/version")).await.expect_err("no answer");
    assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());
    format!("{error:?}")
}

#[tokio::test]
async fn headers_that_never_come_are_an_error() {
    let client = of_server_that_says(b"", Limits { headers: SHORT, ..NO_LIMITS }).await;
    let error = error(&client).await;
    assert!(error.contains("Headers(100ms)"), "{error}");
}

#[tokio::test]
async fn an_answer_that_stops_is_an_error() {
    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
    let client = of_server_that_says(half, Limits { body: SHORT, ..NO_LIMITS }).await;
    let error = error(&client).await;
    assert!(error.contains("Body(100ms)"), "{error}");
}

#[tokio::test]
async fn a_watch_that_says_nothing_ends_without_an_error() {
    let begun = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n\n\r\n";
    let limits = Limits { watch: SHORT, ..NO_LIMITS };
    let client = of_server_that_says(begun, limits).await;
    let text = client.request_text(request("/api/v1/services?limit=1&watch=true")).await.expect("an end");
    assert_eq!(text, "\n");
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_in_time_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let limits = Limits { connect: SHORT, ..NO_LIMITS };
    let mut config = Config::new(url.parse().expect("a URL"));
    config.accept_invalid_certs = true;
    let client = client(&config, limits).expect("a client");
    let started = Instant::now();
    let services = Api::<k8s_openapi::api::core::v1::Service>::all(client);
    services.list(&ListParams::default()).await.expect_err("no connection");
    assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());
}
