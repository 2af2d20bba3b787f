//! Socket LB: translation when a program connects or sends, so that no packet is ever
//! rewritten.
//!
//! What must be dropped is left alone here: the packet path drops it, in silence.

use aya_ebpf::{
    EbpfContext as _,
    bindings::{bpf_sock, bpf_sock_addr},
    helpers::{bpf_get_current_comm, generated as helper},
    macros::cgroup_sock_addr,
    programs::SockAddrContext,
};
use proxy_common::{
    Addr as _, Ip4, Ip6, Tuple,
    maps::{
        events::Hook,
        frontends::{ClientClass, Frontend, flags::SOURCE_RANGES},
        settings::flags::NONE_EXEMPT,
        socket_flows::{SocketFlow, SocketFlowKey, TO_BACKEND, TO_FRONTEND},
        socket_lb_exempt::DEPTH,
    },
    proto,
};

use crate::{
    maps::{self, Tables},
    stage::{
        classify,
        create::Owner,
        lookup::{lookup, may_connect},
        select::{Refusal, candidates, chance, select},
        trace::{self, Call},
    },
};

/// The hook lets the call go on.
pub const ALLOW: i32 = 1;
/// The hook makes the call fail.
pub const REFUSE: i32 = 0;
const ECONNREFUSED: i32 = 111;
/// How the kernel names the threads of its work queues.
const KERNEL_WORKER: &[u8] = b"kworker/";

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
    let peer = Peer { addr: user_ip4(sock), port: port(sock) };
    translate(ctx, stage, peer, |peer: Peer<Ip4>| {
        // SAFETY: the context is valid while the program runs; the hook may change address and port.
        unsafe { (*sock).user_ip4 = u32::from_ne_bytes(peer.addr.octets) };
        set_port(sock, peer.port);
    })
}

#[inline(always)]
fn socket6(ctx: &SockAddrContext, stage: Stage) -> i32 {
    let sock = ctx.sock_addr;
    match user_ip6(sock) {
        // The IPv4 hooks are not called for an IPv6 socket that speaks IPv4.
        Err(mapped) => translate(ctx, stage, Peer { addr: mapped, port: port(sock) }, |peer: Peer<Ip4>| {
            // SAFETY: as in `socket4`.
            unsafe { (*sock).user_ip6[3] = u32::from_ne_bytes(peer.addr.octets) };
            set_port(sock, peer.port);
        }),
        Ok(addr) => translate(ctx, stage, Peer { addr, port: port(sock) }, |peer: Peer<Ip6>| {
            let words = peer.addr.words();
            // SAFETY: as in `socket4`; each word is written on its own, as the kernel demands.
            unsafe {
                (*sock).user_ip6[0] = words[0];
                (*sock).user_ip6[1] = words[1];
                (*sock).user_ip6[2] = words[2];
                (*sock).user_ip6[3] = words[3];
            }
            set_port(sock, peer.port);
        }),
    }
}

/// The IPv4 address in the socket's call.
#[inline(always)]
pub fn user_ip4(sock: *mut bpf_sock_addr) -> Ip4 {
    // SAFETY: the context is valid while the program runs, and IPv4 hooks may use this field.
    Ip4 { octets: unsafe { (*sock).user_ip4 }.to_ne_bytes() }
}

/// The IPv6 address in the socket's call, or the IPv4 address mapped into it.
#[inline(always)]
pub fn user_ip6(sock: *mut bpf_sock_addr) -> Result<Ip6, Ip4> {
    // SAFETY: the context is valid while the program runs, and IPv6 hooks may use this field.
    let words =
        unsafe { [(*sock).user_ip6[0], (*sock).user_ip6[1], (*sock).user_ip6[2], (*sock).user_ip6[3]] };
    if words[0] == 0 && words[1] == 0 && words[2] == 0xffffu32.to_be() {
        return Err(Ip4 { octets: words[3].to_ne_bytes() });
    }
    Ok(from_words(words))
}

#[inline(always)]
fn from_words(words: [u32; 4]) -> Ip6 {
    let mut octets = [0; 16];
    let mut i = 0;
    while i < 16 {
        octets[i] = words[i / 4].to_ne_bytes()[i % 4];
        i += 1;
    }
    Ip6 { octets }
}

/// What stands for the client of a socket.
trait Client: Tables {
    /// The address the socket is bound to, unspecified if none.
    fn bound(sk: *mut bpf_sock) -> Self;
    /// An address that nobody can have, one for each network namespace.
    fn of_netns(cookie: u64) -> Self;
}

impl Client for Ip4 {
    #[inline(always)]
    fn bound(sk: *mut bpf_sock) -> Self {
        // SAFETY: the kernel gives every socket hook a valid socket.
        Ip4 { octets: unsafe { (*sk).src_ip4 }.to_ne_bytes() }
    }

    #[inline(always)]
    fn of_netns(cookie: u64) -> Self {
        // 0.0.0.0/8 is never a source on the wire (RFC 1122 §3.2.1.3).
        let [_, b, c, d] = (cookie as u32).to_be_bytes();
        Ip4 { octets: [0, b, c, d] }
    }
}

impl Client for Ip6 {
    #[inline(always)]
    fn bound(sk: *mut bpf_sock) -> Self {
        // SAFETY: the kernel gives every socket hook a valid socket.
        from_words(unsafe { [(*sk).src_ip6[0], (*sk).src_ip6[1], (*sk).src_ip6[2], (*sk).src_ip6[3]] })
    }

    #[inline(always)]
    fn of_netns(cookie: u64) -> Self {
        // ::/64 is reserved (RFC 4291 §4).
        from_words([0, 0, ((cookie >> 32) as u32).to_be(), (cookie as u32).to_be()])
    }
}

/// Whom affinity goes by: the address the socket is bound to, as the packet path would
/// see it. One that is not bound gets its address only after the hook; then all of its
/// network namespace count as one client, which for a pod is the same.
#[inline(always)]
fn client<A: Client>(ctx: &SockAddrContext, netns: u64) -> A {
    // SAFETY: the context is valid while the program runs.
    let bound = A::bound(unsafe { (*ctx.sock_addr).__bindgen_anon_1.sk });
    if bound.is_unspecified() { A::of_netns(netns) } else { bound }
}

#[inline(always)]
pub fn port(sock: *mut bpf_sock_addr) -> u16 {
    // SAFETY: the context is valid while the program runs; the port is in the low half, network order.
    u16::from_be(unsafe { (*sock).user_port } as u16)
}

#[inline(always)]
fn set_port(sock: *mut bpf_sock_addr, port: u16) {
    // SAFETY: as for `port`.
    unsafe { (*sock).user_port = u32::from(port.to_be()) };
}

#[inline(always)]
fn translate<A: Client>(
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
    if stage != Stage::Show && !may_connect(&peer.addr, peer.port) {
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
    let client: A = client(ctx, netns);
    let call = Call { cookie, hook: if stage == Stage::Send { Hook::SEND } else { Hook::CONNECT } };
    let from = Tuple { src: client, dst: peer.addr, sport: 0, dport: peer.port, proto };
    let frontend = match lookup(peer.addr, peer.port, proto) {
        Ok(None) => return ALLOW,
        _ if is_exempt() => return ALLOW,
        Ok(Some(frontend)) => frontend,
        Err(refusal) => return refuse(&call, &from, &refusal),
    };
    if frontend.flags & SOURCE_RANGES != 0 && class != ClientClass::Node {
        // Whether a pod is in the ranges shows in its packets: a socket may have no address yet.
        return ALLOW;
    }
    let there = key(&peer, TO_BACKEND);
    if stage == Stage::Send
        && let Some(known) = known_backend(&there, frontend)
    {
        replace(known);
        return ALLOW;
    }
    let choice = candidates(frontend, class).and_then(|found| select(frontend, found, &client, chance()));
    match choice {
        // Nothing leaves the host from a loopback address: only the packet path can give it another.
        Ok(choice) if client.is_loopback() && !choice.backend.addr.is_loopback() => ALLOW,
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
            let owner = Owner::new(frontend, choice.id);
            owner.count::<A>();
            let to = Tuple { dst: backend.addr, dport: backend.port, ..from };
            trace::translated(&call, &from, &to, owner);
            replace(backend);
            ALLOW
        }
        Err(refusal) => refuse(&call, &from, &refusal.of(frontend.service)),
    }
}

/// True when the packet path serves the caller instead: its pod has opted out, or it is a
/// worker of the kernel, such as an NFS client's, which keeps addresses for itself and is
/// not prepared for errors of ours.
#[inline(always)]
fn is_exempt() -> bool {
    // Who takes this name without being one only opts out.
    in_exempt_cgroup() || bpf_get_current_comm().is_ok_and(|name| name.starts_with(KERNEL_WORKER))
}

#[inline(always)]
fn in_exempt_cgroup() -> bool {
    if maps::settings().is_some_and(|settings| settings.flags & NONE_EXEMPT != 0) {
        return false;
    }
    for level in 1..=DEPTH {
        // SAFETY: the helper has no preconditions.
        let cgroup = unsafe { helper::bpf_get_current_ancestor_cgroup_id(level) };
        if cgroup == 0 {
            break;
        }
        if maps::is_exempt(cgroup) {
            return true;
        }
    }
    false
}

/// The backend this socket last sent to under the frontend, as long as it exists.
#[inline(always)]
fn known_backend<A: Tables>(key: &SocketFlowKey<A>, frontend: &Frontend) -> Option<Peer<A>> {
    let flow = maps::socket_flow(key)?;
    let backend = maps::backend::<A>(flow.backend)?;
    let same = backend.addr == flow.addr && backend.port == flow.port && flow.service == frontend.service;
    same.then_some(Peer { addr: flow.addr, port: flow.port })
}

/// Connection refused, as a reset or an ICMP error would have it. What is to be met with
/// silence is left to the packet path.
#[inline(always)]
fn refuse<A: Tables>(call: &Call, from: &Tuple<A>, refusal: &Refusal) -> i32 {
    if !refusal.reject {
        return ALLOW;
    }
    maps::count_refusal(refusal.service, refusal.reason);
    trace::turned_away(call, from, refusal.service, refusal.reason);
    // SAFETY: the helper has no preconditions in these hooks (kernel 5.18 and later).
    unsafe { helper::bpf_set_retval(-ECONNREFUSED) };
    REFUSE
}
