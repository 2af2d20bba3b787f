//! Socket LB: translation when a program connects or sends, so that no packet is ever
//! rewritten.
//!
//! What must be dropped is left alone here: the packet path drops it, in silence.

use aya_ebpf::{
    EbpfContext as _, bindings::bpf_sock_addr, helpers::generated as helper, macros::cgroup_sock_addr,
    programs::SockAddrContext,
};
use proxy_common::{
    Addr as _, Ip4, Ip6,
    maps::{
        frontends::Frontend,
        socket_flows::{SocketFlow, SocketFlowKey, TO_BACKEND, TO_FRONTEND},
    },
    proto,
};

use crate::{
    maps::{self, Tables},
    stage::{
        classify,
        lookup::{Lookup, lookup},
        select::{Refusal, select},
    },
};

/// The hook lets the call go on.
const ALLOW: i32 = 1;
/// The hook makes the call fail.
const REFUSE: i32 = 0;
const ECONNREFUSED: i32 = 111;

macro_rules! hooks {
    ($($name:ident: $hook:ident => $stage:ident::<$family:ident>;)+) => {$(
        #[cgroup_sock_addr($hook)]
        pub fn $name(ctx: SockAddrContext) -> i32 {
            $family(&ctx, Stage::$stage)
        }
    )+};
}

hooks! {
    sock_connect4: connect4 => Connect::<socket4>;
    sock_connect6: connect6 => Connect::<socket6>;
    sock_sendmsg4: sendmsg4 => Send::<socket4>;
    sock_sendmsg6: sendmsg6 => Send::<socket6>;
    sock_recvmsg4: recvmsg4 => Show::<socket4>;
    sock_recvmsg6: recvmsg6 => Show::<socket6>;
    sock_getpeername4: getpeername4 => Show::<socket4>;
    sock_getpeername6: getpeername6 => Show::<socket6>;
}

/// What the program asked the kernel for.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    /// A connection.
    Connect,
    /// To send one datagram.
    Send,
    /// Whom it speaks to.
    Show,
}

/// A peer address in the socket's call, and how to replace it.
struct Peer<A> {
    addr: A,
    port: u16,
}

#[inline(always)]
fn socket4(ctx: &SockAddrContext, stage: Stage) -> i32 {
    let sock = ctx.sock_addr;
    // SAFETY: the context is valid while the program runs, and IPv4 hooks may use this field.
    let word = unsafe { (*sock).user_ip4 };
    let peer = Peer { addr: Ip4 { octets: word.to_ne_bytes() }, port: port(sock) };
    translate(ctx, stage, peer, |peer: Peer<Ip4>| {
        // SAFETY: as above; the hook may change address and port.
        unsafe { (*sock).user_ip4 = u32::from_ne_bytes(peer.addr.octets) };
        set_port(sock, peer.port);
    })
}

#[inline(always)]
fn socket6(ctx: &SockAddrContext, stage: Stage) -> i32 {
    let sock = ctx.sock_addr;
    // SAFETY: the context is valid while the program runs, and IPv6 hooks may use this field.
    let w = unsafe { [(*sock).user_ip6[0], (*sock).user_ip6[1], (*sock).user_ip6[2], (*sock).user_ip6[3]] };
    // An IPv6 socket reaches IPv4 through mapped addresses, and the IPv4 hooks are not called for it.
    if w[0] == 0 && w[1] == 0 && w[2] == 0xffffu32.to_be() {
        let peer = Peer { addr: Ip4 { octets: w[3].to_ne_bytes() }, port: port(sock) };
        return translate(ctx, stage, peer, |peer: Peer<Ip4>| {
            // SAFETY: as above; the hook may change address and port.
            unsafe { (*sock).user_ip6[3] = u32::from_ne_bytes(peer.addr.octets) };
            set_port(sock, peer.port);
        });
    }
    let mut octets = [0; 16];
    for i in 0..4 {
        let [a, b, c, d] = w[i].to_ne_bytes();
        octets[i * 4] = a;
        octets[i * 4 + 1] = b;
        octets[i * 4 + 2] = c;
        octets[i * 4 + 3] = d;
    }
    translate(ctx, stage, Peer { addr: Ip6 { octets }, port: port(sock) }, |peer: Peer<Ip6>| {
        let words = peer.addr.words();
        // SAFETY: as above; each word is written on its own, as the kernel demands.
        unsafe {
            (*sock).user_ip6[0] = words[0];
            (*sock).user_ip6[1] = words[1];
            (*sock).user_ip6[2] = words[2];
            (*sock).user_ip6[3] = words[3];
        }
        set_port(sock, peer.port);
    })
}

#[inline(always)]
fn port(sock: *mut bpf_sock_addr) -> u16 {
    // SAFETY: the context is valid while the program runs; the port is in the low half, network order.
    u16::from_be(unsafe { (*sock).user_port } as u16)
}

#[inline(always)]
fn set_port(sock: *mut bpf_sock_addr, port: u16) {
    // SAFETY: as for `port`.
    unsafe { (*sock).user_port = u32::from(port.to_be()) };
}

#[inline(always)]
fn translate<A: Tables>(
    ctx: &SockAddrContext,
    stage: Stage,
    peer: Peer<A>,
    replace: impl Fn(Peer<A>),
) -> i32 {
    // SAFETY: the context is valid while the program runs.
    let proto = unsafe { (*ctx.sock_addr).protocol } as u8;
    if proto != proto::TCP && proto != proto::UDP {
        return ALLOW;
    }
    // SAFETY: the helper takes this kind of context.
    let cookie = unsafe { helper::bpf_get_socket_cookie(ctx.as_ptr()) };
    let key = |peer: &Peer<A>, direction| SocketFlowKey {
        cookie: [(cookie >> 32) as u32, cookie as u32],
        addr: peer.addr,
        port: peer.port,
        proto,
        direction,
    };
    if stage == Stage::Show {
        if let Some(flow) = maps::socket_flow(&key(&peer, TO_FRONTEND)) {
            replace(Peer { addr: flow.addr, port: flow.port });
        }
        return ALLOW;
    }
    // SAFETY: the helper takes this kind of context.
    let netns = unsafe { helper::bpf_get_netns_cookie(ctx.as_ptr()) };
    let Some(class) = classify::classify_socket(netns) else { return ALLOW };
    let frontend = match lookup(peer.addr, peer.port, proto) {
        Lookup::Frontend(frontend) => frontend,
        Lookup::Reject(reason) => {
            maps::count_drop(reason);
            return refuse();
        }
        Lookup::Drop(_) | Lookup::None => return ALLOW,
    };
    let there = key(&peer, TO_BACKEND);
    if stage == Stage::Send
        && let Some(known) = known_backend(&there, frontend)
    {
        replace(known);
        return ALLOW;
    }
    match select::<A>(frontend, class) {
        Ok(choice) => {
            let backend = Peer { addr: choice.backend.addr, port: choice.backend.port };
            let flow = |peer: &Peer<A>| SocketFlow {
                addr: peer.addr,
                port: peer.port,
                pad: 0,
                service: frontend.service,
                backend: choice.id,
            };
            if stage == Stage::Send {
                maps::put_socket_flow(&there, &flow(&backend));
            }
            maps::put_socket_flow(&key(&backend, TO_FRONTEND), &flow(&peer));
            replace(backend);
            ALLOW
        }
        Err(Refusal::Reject(reason)) => {
            maps::count_drop(reason);
            refuse()
        }
        Err(Refusal::Drop(_)) => ALLOW,
    }
}

/// The backend this socket last sent to under the frontend, as long as it exists.
#[inline(always)]
fn known_backend<A: Tables>(key: &SocketFlowKey<A>, frontend: &Frontend) -> Option<Peer<A>> {
    let flow = maps::socket_flow(key)?;
    let backend = maps::backend::<A>(flow.backend)?;
    let same = backend.addr == flow.addr && backend.port == flow.port && flow.service == frontend.service;
    same.then_some(Peer { addr: flow.addr, port: flow.port })
}

/// Connection refused, as a reset or an ICMP error would have it.
#[inline(always)]
fn refuse() -> i32 {
    // SAFETY: the helper has no preconditions in these hooks (kernel 5.18 and later).
    unsafe { helper::bpf_set_retval(-ECONNREFUSED) };
    REFUSE
}
