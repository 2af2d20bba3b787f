//! The servers on loopback, with a clock that jumps ahead whenever everybody waits.

use std::net::{IpAddr, Ipv4Addr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::sleep,
};

use super::*;
use crate::model::{NodePortAddresses, ObjectName};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A port nobody uses, and a socket that keeps it so until it is dropped.
async fn taken() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn free() -> SocketAddr {
    taken().await.1
}

/// Asks on an open connection; what came back is in lower case.
async fn ask(stream: &mut TcpStream, path: &str) -> String {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let length = stream.read(&mut answer).await.unwrap();
    String::from_utf8(answer[..length].to_vec()).unwrap().to_lowercase()
}

/// Connects as soon as somebody listens.
async fn connect(address: SocketAddr) -> TcpStream {
    for _ in 0..1_000 {
        if let Ok(stream) = TcpStream::connect(address).await {
            return stream;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody listens on {address}");
}

/// The health port of a service with two endpoints.
fn service_on(port: u16) -> Ports {
    let check =
        HealthCheck { service: ObjectName::new("ns", "web"), created: 0, port, endpoints: [Some(2), None] };
    let here = NodePortAddresses::Ranges(["127.0.0.1/32".parse().unwrap()].into());
    ports(&[check], &here, None, &[LOOPBACK])
}

#[tokio::test]
async fn the_proxys_own_paths() {
    let address = free().await;
    let mut health = Health::new(Duration::from_secs(60), Checks::default());
    health.serve(address, true).unwrap();
    let mut stream = connect(address).await;
    assert!(ask(&mut stream, "/healthz").await.starts_with("http/1.1 200"));
    health.set_eligible(false);
    assert!(ask(&mut stream, "/healthz").await.starts_with("http/1.1 503"));
    assert!(ask(&mut stream, "/livez").await.starts_with("http/1.1 200"));
    assert!(ask(&mut stream, "/").await.starts_with("http/1.1 404"));
}

#[tokio::test]
async fn all_paths_of_a_service_and_then_none() {
    let address = free().await;
    let mut health = Health::new(Duration::from_secs(60), Checks::default());
    health.open(service_on(address.port()));
    let mut stream = connect(address).await;
    let answer = ask(&mut stream, "/any/path?x=1").await;
    assert!(answer.starts_with("http/1.1 200"), "{answer}");
    for line in [
        "content-type: application/json",
        "x-content-type-options: nosniff",
        "x-load-balancing-endpoint-weight: 2",
    ] {
        assert!(answer.contains(&format!("\r\n{line}\r\n")), "{line} in {answer}");
    }
    health.open(Ports::default());
    // Not even a connection that was kept may go on to tell what holds no more.
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or_default(), 0);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_port_that_is_taken_is_tried_again_unless_it_has_to_be_free() {
    let (other, address) = taken().await;
    let mut health = Health::new(Duration::from_secs(60), Checks::default());
    assert!(health.serve(address, true).is_err());
    health.serve(address, false).unwrap();
    sleep(Duration::from_secs(1)).await;
    drop(other);
    assert!(TcpStream::connect(address).await.is_err());
    sleep(Duration::from_secs(6)).await;
    assert!(ask(&mut connect(address).await, "/livez").await.starts_with("http/1.1 200"));
}

#[tokio::test(start_paused = true)]
async fn who_connects_and_says_nothing_is_sent_away() {
    let address = free().await;
    let mut health = Health::new(Duration::from_secs(60), Checks::default());
    health.serve(address, true).unwrap();
    let mut stream = connect(address).await;
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
}

#[tokio::test]
async fn one_socket_for_both_families_knows_by_which_a_client_came() {
    let port = free().await.port();
    let mut health = Health::new(Duration::from_secs(60), Checks::default());
    let mut ports = service_on(port);
    ports.listens = [Listen::everywhere(port)].into();
    ports.owners.get_mut(&port).unwrap().endpoints = [Some(1), Some(3)];
    health.open(ports);
    assert!(ask(&mut connect((LOOPBACK, port).into()).await, "/").await.contains("\"localendpoints\":1,"));
    // The machine may have no IPv6.
    if let Ok(mut stream) = TcpStream::connect(("::1", port)).await {
        assert!(ask(&mut stream, "/").await.contains("\"localendpoints\":3,"));
    }
}
