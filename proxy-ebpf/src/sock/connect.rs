//! A program connects a socket.

use proxy_common::{
    maps::{events::Hook, socket_peers::SocketPeer},
    proto,
};

use super::{
    ALLOW,
    ask::ask,
    client::{port, socket},
    datagrams::{By, remember},
    place::{Call, Place},
};
use crate::maps;

#[inline(always)]
pub fn connect<P: Place>(call: &Call<P>) -> i32 {
    let asked = match ask(call, Hook::CONNECT) {
        Ok(asked) => asked,
        Err(verdict) => return verdict,
    };
    let choice = match asked.choose(|| port(call.ctx)) {
        Ok(choice) => choice,
        Err(verdict) => return verdict,
    };
    let backend = (choice.backend.addr, choice.backend.port);
    if call.proto == proto::TCP {
        let pair = SocketPeer {
            frontend: call.peer.addr,
            backend: backend.0,
            frontend_port: call.peer.port,
            backend_port: backend.1,
        };
        maps::put_socket_peer(socket(call.ctx), &pair);
    } else {
        remember(call, By::Connect, &asked, &choice);
    }
    asked.note(&choice);
    call.replace(&backend.0, backend.1);
    ALLOW
}
