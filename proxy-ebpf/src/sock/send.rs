//! A program sends a datagram by a socket that is not connected.

use proxy_common::maps::{
    events::Hook,
    frontends::Frontend,
    socket_flows::{TO_BACKEND, TO_FRONTEND},
};

use super::{
    ALLOW,
    ask::ask,
    client::port,
    flow,
    place::{Call, Peer, Place},
};
use crate::maps;

#[inline(always)]
pub fn send<P: Place>(call: &Call<P>) -> i32 {
    let asked = match ask(call, Hook::SEND) {
        Ok(asked) => asked,
        Err(verdict) => return verdict,
    };
    if let Some(known) = known_backend(call, asked.frontend) {
        call.replace(&known.addr, known.port);
        return ALLOW;
    }
    let choice = match asked.choose(|| port(call.ctx)) {
        Ok(choice) => choice,
        Err(verdict) => return verdict,
    };
    let backend = (choice.backend.addr, choice.backend.port);
    for direction in [TO_BACKEND, TO_FRONTEND] {
        flow::remember(call, direction, backend, asked.frontend.service, choice.id);
    }
    asked.note(&choice);
    call.replace(&backend.0, backend.1);
    ALLOW
}

/// The backend this socket last sent to under the frontend, as long as it exists.
#[inline(always)]
fn known_backend<P: Place>(call: &Call<P>, frontend: &Frontend) -> Option<Peer<P::Addr>> {
    let flow = maps::socket_flow(&flow::key(call, &call.peer, TO_BACKEND))?;
    let backend = maps::backend::<P::Addr>(flow.backend)?;
    let same = backend.addr == flow.addr && backend.port == flow.port && flow.service == frontend.service;
    same.then_some(Peer { addr: flow.addr, port: flow.port })
}
