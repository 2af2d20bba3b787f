//! What a UDP socket remembers.

use aya_ebpf::{EbpfContext as _, helpers::generated as helper};
use proxy_common::maps::{
    backends::Backend,
    frontends::Frontend,
    socket_datagrams::{HeldPair, SENT, SocketPair},
};

use super::{
    ask::Asked,
    client::socket,
    place::{Call, Peer, Place},
};
use crate::{maps, stage::select::Choice};

/// How a backend was chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    Connect,
    Send,
}

/// Notes that the frontend which the call names led to the backend.
#[inline(always)]
pub fn remember<P: Place>(call: &Call<P>, by: By, asked: &Asked<P::Addr>, choice: &Choice<P::Addr>) {
    let fill = |pair: &mut SocketPair<P::Addr>| {
        pair.frontend = call.peer.addr;
        pair.backend = choice.backend.addr;
        pair.frontend_port = call.peer.port;
        pair.backend_port = choice.backend.port;
        pair.service = asked.frontend.service;
        pair.backend_id = choice.id;
    };
    // SAFETY: the helper takes this kind of context.
    let cookie = unsafe { helper::bpf_get_socket_cookie(call.ctx.as_ptr()) };
    let sk = socket(call.ctx);
    if by == By::Connect { maps::put_connected(sk, cookie, fill) } else { maps::put_sent(sk, cookie, fill) }
}

/// The backend this socket last sent to under the frontend, as long as it exists.
#[inline(always)]
pub fn known_backend<P: Place>(call: &Call<P>, frontend: &Frontend) -> Option<&'static Backend<P::Addr>> {
    let data = maps::socket_datagrams::<P::Addr>(socket(call.ctx))?;
    let mut i = 0;
    while i < SENT {
        // SAFETY: the socket's storage, and part of it.
        let held = unsafe { maps::sent(data, i) };
        // SAFETY: as above.
        let known = unsafe {
            maps::look_at_pair(held, |pair| {
                let asked = pair.frontend_port == call.peer.port
                    && pair.service == frontend.service
                    && pair.frontend == call.peer.addr;
                let backend = if asked { maps::backend::<P::Addr>(pair.backend_id)? } else { return None };
                (backend.port == pair.backend_port && backend.addr == pair.backend).then_some(backend)
            })
        };
        if known.is_some() {
            // Answers of a backend of several services are taken for those of the last.
            // SAFETY: as above.
            unsafe { maps::use_pair(data, held) };
            return known;
        }
        i += 1;
    }
    None
}

/// The frontend by which the socket speaks to the peer of the call.
#[inline(always)]
pub fn frontend_of<P: Place>(call: &Call<P>) -> Option<Peer<P::Addr>> {
    let data = maps::socket_datagrams::<P::Addr>(socket(call.ctx))?;
    // SAFETY: part of the socket's storage.
    let connected = unsafe { &raw mut (*data).connected };
    if let Some(frontend) = if_of(call, connected) {
        return Some(frontend);
    }
    let (mut newest, mut place) = (0, 0);
    let mut i = 0;
    while i < SENT {
        // SAFETY: the socket's storage, and part of it; what is seen here is only a hint.
        let (held, version, port) = unsafe {
            let held = maps::sent(data, i);
            let version = (&raw const (*held).version).read_volatile();
            (held, version, (&raw const (*held).pair.backend_port).read_volatile())
        };
        if port == call.peer.port && version > newest && if_of(call, held).is_some() {
            (newest, place) = (version, i);
        }
        i += 1;
    }
    // SAFETY: the socket's storage.
    if newest == 0 || place >= SENT { None } else { if_of(call, unsafe { maps::sent(data, place) }) }
}

/// The frontend of the pair, if its backend is the peer of the call.
#[inline(always)]
fn if_of<P: Place>(call: &Call<P>, held: *mut HeldPair<P::Addr>) -> Option<Peer<P::Addr>> {
    // SAFETY: part of the socket's storage.
    unsafe {
        maps::look_at_pair(held, |pair| {
            let same =
                pair.backend_port == call.peer.port && pair.service != 0 && pair.backend == call.peer.addr;
            same.then_some(Peer { addr: pair.frontend, port: pair.frontend_port })
        })
    }
}
