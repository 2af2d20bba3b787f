//! What a UDP socket remembers.

use aya_ebpf::{
    EbpfContext as _, bindings::bpf_sock_addr, helpers::generated as helper, programs::SockAddrContext,
};
use proxy_common::maps::socket_datagrams::{HeldPair, SENT, SocketDatagrams, SocketPair};

use super::{
    ask::Asked,
    client::{Client, connected_to, is_connected, socket},
    place::{Call, Peer, Place, global_by_place},
};
use crate::{maps, stage::select::Choice};

/// No backend.
const NONE: u32 = u32::MAX;

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
    let (sk, cookie) = (socket(call.ctx), cookie(call.ctx));
    if by == By::Send {
        return maps::put_sent(sk, cookie, fill);
    }
    keep_connected::<P>(call.ctx.sock_addr);
    maps::put_connected(sk, cookie, fill);
}

/// Notes that the socket is connected to the peer itself, if it has spoken to frontends.
#[inline(always)]
pub fn connect_directly<P: Place>(call: &Call<P>) {
    let Some(data) = maps::socket_datagrams::<P::Addr>(socket(call.ctx)) else { return };
    keep_connected::<P>(call.ctx.sock_addr);
    let direct = SocketPair::direct(call.peer.addr, call.peer.port);
    // SAFETY: the socket's storage.
    unsafe { maps::put_connected_in(data, cookie(call.ctx), |pair| *pair = direct) };
}

#[inline(always)]
fn cookie(ctx: &SockAddrContext) -> u64 {
    // SAFETY: the helper takes this kind of context.
    unsafe { helper::bpf_get_socket_cookie(ctx.as_ptr()) }
}

global_by_place! {
    /// Has the socket remember whom it is connected to as if it had sent there by address.
    fn keep_connected(sock: *mut bpf_sock_addr) = keep
        as shunt_keep_connected_v4, shunt_keep_connected_v6, shunt_keep_connected_mapped;
    /// Notes that the socket sends to the call's peer itself, if it has spoken to frontends.
    pub fn send_directly(sock: *mut bpf_sock_addr) = note_direct
        as shunt_send_directly_v4, shunt_send_directly_v6, shunt_send_directly_mapped;
    /// The number of the backend that the socket last sent a datagram to for the call's peer, a frontend of `service`;
    /// none has the number of no backend.
    pub fn known_backend(sock: *mut bpf_sock_addr, service: u32) = find_known
        as shunt_known_backend_v4, shunt_known_backend_v6, shunt_known_backend_mapped;
}

/// What the socket is connected to may be so still when it is connected elsewhere: the kernel may refuse that after us,
/// and datagrams that have come may not have been read. Of a socket that was connected by address, nothing has been
/// written yet.
#[inline(always)]
fn keep<P: Place>(sock: *mut bpf_sock_addr) -> u32 {
    let context = SockAddrContext::new(sock);
    let (sk, is_connected) = (socket(&context), is_connected(&context));
    let data =
        if is_connected { maps::new_socket_datagrams(sk) } else { maps::socket_datagrams::<P::Addr>(sk) };
    let Some(data) = data else { return 0 };
    // SAFETY: the socket's storage, and part of it.
    unsafe {
        let connected = &raw mut (*data).connected;
        if is_connected && !maps::is_written(connected) {
            let peer = connected_to::<P::Addr>(&context);
            maps::use_sent(data, cookie(&context), &SocketPair::direct(peer.addr, peer.port));
        } else if let Some(pair) = maps::look_at_pair(connected, |pair| pair.holds().then_some(*pair)) {
            maps::use_sent(data, cookie(&context), &pair);
        }
    }
    0
}

/// A datagram goes to the peer of the call itself: answers are its own from now on, and no service's.
#[inline(always)]
fn note_direct<P: Place>(sock: *mut bpf_sock_addr) -> u32 {
    let context = SockAddrContext::new(sock);
    let call = Call::<P>::new(&context);
    let Some(data) = maps::socket_datagrams::<P::Addr>(socket(&context)) else { return 0 };
    // SAFETY: part of the socket's storage.
    let mut has_frontend = if_of(&call, unsafe { &raw mut (*data).connected }).is_some();
    let mut i = 0;
    while i < SENT {
        // SAFETY: the socket's storage, and part of it.
        let held = unsafe { maps::sent(data, i) };
        if let Some(shown) = if_of(&call, held) {
            if shown.port == call.peer.port && shown.addr == call.peer.addr {
                // SAFETY: as above.
                unsafe { maps::use_pair(data, held) };
                return 0;
            }
            has_frontend = true;
        }
        i += 1;
    }
    if has_frontend {
        let direct = SocketPair::direct(call.peer.addr, call.peer.port);
        // SAFETY: as above.
        unsafe { maps::put_sent_in(data, cookie(&context), |pair| *pair = direct) };
    }
    0
}

/// The number of the backend this socket last sent to under the frontend of the call, as long as it exists, else
/// [`NONE`]. The frontend is one of `service`.
#[inline(always)]
fn find_known<P: Place>(sock: *mut bpf_sock_addr, service: u32) -> u32 {
    let context = SockAddrContext::new(sock);
    let call = Call::<P>::new(&context);
    let Some(data) = maps::socket_datagrams::<P::Addr>(socket(call.ctx)) else { return NONE };
    let mut i = 0;
    while i < SENT {
        // SAFETY: the socket's storage, and part of it.
        let held = unsafe { maps::sent(data, i) };
        // SAFETY: as above.
        let known = unsafe {
            maps::look_at_pair(held, |pair| {
                let asked = pair.frontend_port == call.peer.port
                    && pair.service == service
                    && pair.frontend == call.peer.addr;
                let backend = if asked { maps::backend::<P::Addr>(pair.backend_id)? } else { return None };
                (backend.port == pair.backend_port && backend.addr == pair.backend).then_some(pair.backend_id)
            })
        };
        if let Some(known) = known {
            // Answers of a backend of several services are taken for those of the last.
            // SAFETY: as above.
            unsafe { maps::use_pair(data, held) };
            return known;
        }
        i += 1;
    }
    NONE
}

/// The frontend by which the socket speaks to the peer of the call.
#[inline(always)]
pub fn frontend_of<P: Place>(call: &Call<P>) -> Option<Peer<P::Addr>> {
    let data = maps::socket_datagrams::<P::Addr>(socket(call.ctx))?;
    // SAFETY: part of the socket's storage.
    let connected = unsafe { &raw mut (*data).connected };
    let mut newest = 0;
    if let Some(frontend) = if_of(call, connected) {
        if is_connected(call.ctx) {
            return Some(frontend);
        }
        // It was connected before.
        // SAFETY: as above.
        newest = unsafe { (&raw const (*connected).version).read_volatile() };
    }
    let connected_at = newest;
    let mut i = 0;
    while i < SENT {
        // SAFETY: the socket's storage, and part of it; what is seen here is only a hint.
        let (held, version, port) = unsafe {
            let held = maps::sent(data, i);
            let version = (&raw const (*held).version).read_volatile();
            (held, version, (&raw const (*held).pair.backend_port).read_volatile())
        };
        if port == call.peer.port && version > newest && if_of(call, held).is_some() {
            newest = version;
        }
        i += 1;
    }
    if newest == 0 {
        return None;
    }
    let held = if newest == connected_at { connected } else { with_version(data, newest)? };
    if_of(call, held)
}

/// The pair with a version. Each is looked at again: of a place that was kept, the verifier would walk what follows
/// once for each that it may be.
#[inline(always)]
fn with_version<A: Client>(data: *mut SocketDatagrams<A>, version: u64) -> Option<*mut HeldPair<A>> {
    let mut i = 0;
    while i < SENT {
        // SAFETY: the socket's storage, and part of it.
        let (held, found) = unsafe {
            let held = maps::sent(data, i);
            (held, (&raw const (*held).version).read_volatile())
        };
        if found == version {
            return Some(held);
        }
        i += 1;
    }
    None
}

/// The frontend of the pair, if its backend is the peer of the call.
#[inline(always)]
fn if_of<P: Place>(call: &Call<P>, held: *mut HeldPair<P::Addr>) -> Option<Peer<P::Addr>> {
    // SAFETY: part of the socket's storage.
    unsafe {
        maps::look_at_pair(held, |pair| {
            let same = pair.backend_port == call.peer.port && pair.holds() && pair.backend == call.peer.addr;
            same.then_some(Peer { addr: pair.frontend, port: pair.frontend_port })
        })
    }
}
