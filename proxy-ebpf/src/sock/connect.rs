//! A program connects a socket.

use proxy_common::{
    maps::{events::Hook, socket_peers::SocketPeer},
    proto,
};

use super::{
    ALLOW,
    ask::{ask, is_direct},
    client::{port, socket},
    datagrams::{By, connect_directly, remember},
    place::{Call, Place},
};
use crate::maps;

#[inline(always)]
pub fn connect<P: Place>(call: &Call<P>) -> i32 {
    match translate(call) {
        Ok(()) => ALLOW,
        Err(verdict) => {
            if is_direct(verdict) {
                forget(call);
            }
            verdict
        }
    }
}

/// # Errors
/// The verdict, if it is not for us to choose a backend.
#[inline(always)]
fn translate<P: Place>(call: &Call<P>) -> Result<(), i32> {
    let asked = ask(call, Hook::CONNECT)?;
    let choice = asked.choose(|| port(call.ctx))?;
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
    Ok(())
}

/// A socket may be connected more than once: to a service, and later to a backend of it.
#[inline(always)]
fn forget<P: Place>(call: &Call<P>) {
    if call.proto == proto::TCP {
        maps::clear_socket_peer::<P::Addr>(socket(call.ctx));
    } else {
        connect_directly(call);
    }
}
