//! The servers: one thread for each socket, one connection at a time where there is one client, or
//! else a thread for each connection.

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
/// Of a thread for one connection, with room for a piece of a stream: there may be thousands.
const STACK: usize = 128 << 10;

/// Opens the sockets and leaves them to threads of their own.
pub(super) fn start(serve: &Serve) -> Result<()> {
    let netns = File::open(&serve.netns).with_context(|| format!("open {}", serve.netns.display()))?;
    for [requests, streams, datagrams] in serve.ports {
        for (port, handle) in [(requests, echo as fn(TcpStream) -> _), (streams, swallow)] {
            let listener = inside(&netns, || listen(port, serve.at_once))?;
            match serve.at_once {
                true => thread::spawn(move || accept_at_once(&listener, handle)),
                false => thread::spawn(move || accept(&listener, handle)),
            };
        }
        for address in &serve.addresses {
            let to = (*address, datagrams);
            let socket = inside(&netns, || UdpSocket::bind(to).with_context(|| format!("listen on {to:?}")))?;
            thread::spawn(move || answer(&socket));
        }
    }
    Ok(())
}

fn listen(port: u16, at_once: bool) -> Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // Connections have it from their listener. One that holds up no other may rest.
    socket.set_read_timeout((!at_once).then_some(IDLE))?;
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

/// Leaves each connection to a thread of its own.
fn accept_at_once(listener: &TcpListener, handle: fn(TcpStream) -> std::io::Result<()>) {
    loop {
        if let Ok((stream, _)) = listener.accept() {
            let thread = thread::Builder::new().stack_size(STACK);
            // A connection that gets no thread is closed, which its client counts.
            let _ = thread.spawn(move || handle(stream));
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
