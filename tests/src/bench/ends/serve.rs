//! The servers: one thread for each socket, one connection at a time, for there is one client.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use socket2::{Domain, Socket, Type};

use super::Serve;
use crate::netns::inside;

/// What a client that has gone away silently may hold up.
const IDLE: Duration = Duration::from_secs(2);
const BACKLOG: i32 = 1024;

/// Opens the sockets and leaves them to threads of their own.
pub(super) fn start(serve: &Serve) -> Result<()> {
    let netns = File::open(&serve.netns).with_context(|| format!("open {}", serve.netns.display()))?;
    for [requests, streams, datagrams] in serve.ports {
        for (port, handle) in [(requests, echo as fn(TcpStream) -> _), (streams, swallow)] {
            let listener = inside(&netns, || listen(port))?;
            thread::spawn(move || accept(&listener, handle));
        }
        for address in &serve.addresses {
            let to = (*address, datagrams);
            let socket = inside(&netns, || UdpSocket::bind(to).with_context(|| format!("listen on {to:?}")))?;
            thread::spawn(move || answer(&socket));
        }
    }
    Ok(())
}

fn listen(port: u16) -> Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // Connections have it from their listener.
    socket.set_read_timeout(Some(IDLE))?;
    socket.bind(&SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into())?;
    socket.listen(BACKLOG).with_context(|| format!("listen on port {port}"))?;
    Ok(socket.into())
}

/// Nobody comes for a while between rounds, which the listener reports as an error, too.
fn accept(listener: &TcpListener, handle: fn(TcpStream) -> std::io::Result<()>) {
    loop {
        if let Ok((stream, _)) = listener.accept() {
            // The client counts what goes wrong.
            let _ = handle(stream);
        }
    }
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = [0; super::drive::REQUEST];
    loop {
        stream.read_exact(&mut request)?;
        stream.write_all(&request)?;
    }
}

/// Reads to the end and then says that everything has come.
fn swallow(mut stream: TcpStream) -> std::io::Result<()> {
    let mut piece = vec![0; super::drive::PIECE];
    while stream.read(&mut piece)? > 0 {}
    stream.write_all(&[1])
}

fn answer(socket: &UdpSocket) {
    let mut datagram = [0; 2048];
    loop {
        if let Ok((length, from)) = socket.recv_from(&mut datagram) {
            let _ = socket.send_to(&datagram[..length], from);
        }
    }
}
