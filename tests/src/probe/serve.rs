//! Listening sockets: one thread each, and a common list of what arrived.

use super::{Arrival, Proto, Serve, http, icmp, sctp, tcp, udp};
use crate::netns;
use anyhow::Result;
use std::{
    fs::File,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

/// What reached the servers of this process.
pub(super) type Arrivals = Arc<Mutex<Vec<Arrival>>>;

/// Notes arrivals in the name of one server.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    name: Arc<str>,
    arrivals: Arrivals,
}

impl Ledger {
    pub(super) fn new(name: &str, arrivals: &Arrivals) -> Self {
        Self { name: name.into(), arrivals: Arc::clone(arrivals) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn record(&self, proto: Proto, local: SocketAddr, saw: SocketAddr) {
        let arrival = Arrival { server: self.name().into(), proto, local, saw };
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
    }
}

/// Opens the sockets inside the namespace; the threads that serve them may be anywhere.
pub(super) fn start(serve: &Serve, arrivals: &Arrivals) -> Result<()> {
    let ledger = Ledger::new(&serve.name, arrivals);
    let file = File::open(&serve.netns)?;
    netns::inside(&file, || {
        for (proto, address) in &serve.sockets {
            start_one(*proto, *address, ledger.clone())?;
        }
        Ok(())
    })
}

fn start_one(proto: Proto, address: SocketAddr, ledger: Ledger) -> Result<()> {
    match proto {
        Proto::Tcp => {
            let listener = tcp::listen(address)?;
            thread::spawn(move || tcp::serve(&listener, &ledger));
        }
        Proto::Http => {
            let listener = tcp::listen(address)?;
            thread::spawn(move || http::serve(listener, &ledger));
        }
        Proto::Udp => {
            let socket = udp::listen(address)?;
            thread::spawn(move || udp::serve(&socket, &ledger));
        }
        Proto::Sctp => {
            let socket = sctp::listen(address)?;
            thread::spawn(move || sctp::serve(&socket, address, &ledger));
        }
        Proto::Icmp => {
            let socket = icmp::listen(address)?;
            thread::spawn(move || icmp::serve(&socket, address, &ledger));
        }
    }
    Ok(())
}
