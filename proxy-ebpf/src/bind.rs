//! Keeps other processes of the host from binding a NodePort that is served here: their
//! connections would never reach them.

use aya_ebpf::{
    EbpfContext as _, bindings::bpf_sock_addr, helpers::generated as helper, macros::cgroup_sock_addr,
    programs::SockAddrContext,
};
use proxy_common::{
    Addr as _, Ip4,
    maps::{
        frontends::FrontendKey,
        node_addresses::flags::NODE_PORTS,
        settings::{Settings, flags::NODE_PORTS_FREE},
    },
};

use crate::{
    maps::{self, Tables},
    sock::{ALLOW, Mapped, Place as _, REFUSE, V4, V6, port},
};

const EADDRINUSE: i32 = 98;

#[cgroup_sock_addr(bind4)]
pub fn sock_bind4(ctx: SockAddrContext) -> i32 {
    verdict(&ctx, takes(ctx.sock_addr, V4::addr(ctx.sock_addr)))
}

#[cgroup_sock_addr(bind6)]
pub fn sock_bind6(ctx: SockAddrContext) -> i32 {
    let sock = ctx.sock_addr;
    if Mapped::is_in(sock) {
        return verdict(&ctx, takes(sock, Mapped::addr(sock)));
    }
    let addr = V6::addr(sock);
    // Bound to :: a socket takes IPv4 too, unless it is told not to.
    let takes_v4 = addr.is_unspecified() && takes(sock, Ip4::default());
    verdict(&ctx, takes_v4 || takes(sock, addr))
}

/// True if the socket's port is a NodePort on the address.
#[inline(always)]
fn takes<A: Tables>(sock: *mut bpf_sock_addr, addr: A) -> bool {
    // SAFETY: the context is valid while the program runs.
    let proto = unsafe { (*sock).protocol } as u8;
    let port = port(sock);
    let key = FrontendKey { addr: A::default(), port, proto, pad: 0 };
    if port == 0 || !maps::has_frontend(&key) {
        return false;
    }
    addr.is_unspecified() || maps::node_address(&addr).is_some_and(|flags| flags & NODE_PORTS != 0)
}

#[inline(always)]
fn verdict(ctx: &SockAddrContext, taken: bool) -> i32 {
    if !taken {
        return ALLOW;
    }
    // SAFETY: the helper takes this kind of context.
    let netns = unsafe { helper::bpf_get_netns_cookie(ctx.as_ptr()) };
    let reserved =
        |settings: &Settings| settings.host_netns_cookie == netns && settings.flags & NODE_PORTS_FREE == 0;
    if !maps::settings().is_some_and(reserved) {
        return ALLOW;
    }
    // SAFETY: the helper has no preconditions in these hooks.
    unsafe { helper::bpf_set_retval(-EADDRINUSE) };
    REFUSE
}
