//! A load balancer as small as can be: it ends each TCP connection and opens another one
//! to the next of its targets.

use super::{
    Forward, Proto,
    serve::{Arrivals, Ledger},
    tcp,
};
use crate::netns;
use anyhow::Result;
use std::{
    fs::File,
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
};

pub(super) fn start(forward: Forward, arrivals: &Arrivals) -> Result<()> {
    let file = File::open(&forward.netns)?;
    let listener = netns::inside(&file, || tcp::listen(forward.listen))?;
    let ledger = Ledger::new(&forward.name, arrivals);
    // The connections onward have to be opened inside, too.
    thread::spawn(move || {
        let ended = netns::inside(&file, || balance(&listener, &forward.to, &ledger));
        ended.unwrap_or_else(|error| eprintln!("load balancer {}: {error:#}", forward.name));
    });
    Ok(())
}

fn balance(listener: &TcpListener, targets: &[SocketAddr], ledger: &Ledger) -> Result<()> {
    for (client, target) in listener.incoming().zip(targets.iter().cycle()) {
        let client = client?;
        ledger.record(Proto::Tcp, client.local_addr()?, client.peer_addr()?);
        // The client sees a failure as a closed connection.
        if let Ok(server) = TcpStream::connect(target) {
            join(client, server)?;
        }
    }
    Ok(())
}

/// Copies in both directions until both have ended.
fn join(client: TcpStream, server: TcpStream) -> Result<()> {
    let (to_client, from_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || pour(&client, &server));
    thread::spawn(move || pour(&from_server, &to_client));
    Ok(())
}

fn pour(mut from: &TcpStream, mut to: &TcpStream) {
    // A broken connection ends this direction as its end does.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
