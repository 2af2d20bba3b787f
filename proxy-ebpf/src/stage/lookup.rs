//! Destination → frontend.

use proxy_common::{
    DropReason,
    maps::{
        address_filter::flags::{BACKEND, CLIENT, FRONTEND, MASQUERADED, NODE, NODE_PORT},
        frontends::{Frontend, FrontendKey},
        node_addresses::flags::NODE_PORTS,
    },
    packet::Transport,
};

use super::select::Refusal;
use crate::maps::{self, Tables};

/// Which packets between two addresses may be ours, by their destination port.
#[derive(Clone, Copy, PartialEq)]
pub enum Ports {
    None,
    /// NodePorts.
    Node,
    All,
}

impl Ports {
    /// False if nothing with this destination port can be ours.
    #[inline(always)]
    pub fn include<A: Tables>(self, port: u16) -> bool {
        match self {
            Self::None => false,
            Self::Node => maps::port_bits::<A>(port) & NODE_PORT != 0,
            Self::All => true,
        }
    }
}

/// What may be ours of that which enters with these addresses. Rows at ingress are for packets to a
/// frontend, and for replies of a backend to an address of the host. The first fragment of a
/// packet is asked about as the others are, which have no ports: they wait for its answer.
#[inline(always)]
pub fn may_enter<A: Tables>(packet: &Transport<A>) -> Ports {
    let to = maps::address_bits(&packet.dst);
    let to_node = to & NODE != 0;
    let reply = || to_node && (packet.is_fragment() || maps::address_bits(&packet.src) & BACKEND != 0);
    if to & FRONTEND != 0 || reply() || in_service_cidr(&packet.dst) {
        return Ports::All;
    }
    if to_node { Ports::Node } else { Ports::None }
}

/// What may be ours of that which leaves with these addresses; `made_here` by a process of this
/// host. Rows at egress are for replies of a backend to a client, for packets of a masqueraded
/// client to a backend, and for packets of the host to a frontend.
#[inline(always)]
pub fn may_leave<A: Tables>(packet: &Transport<A>, made_here: bool) -> Ports {
    if packet.is_fragment() {
        let any = fragment_may_leave(&packet.src, &packet.dst) || in_service_cidr(&packet.dst);
        return if any { Ports::All } else { Ports::None };
    }
    let (from, to) = (maps::address_bits(&packet.src), maps::address_bits(&packet.dst));
    let reply = from & BACKEND != 0 && to & CLIENT != 0;
    let masqueraded = from & MASQUERADED != 0 && to & BACKEND != 0;
    if reply || masqueraded || to & FRONTEND != 0 || (made_here && in_service_cidr(&packet.dst)) {
        return Ports::All;
    }
    if to & NODE != 0 { Ports::Node } else { Ports::None }
}

/// False if no fragment that enters with this destination can be ours.
#[inline(always)]
pub fn fragment_may_enter<A: Tables>(dst: &A) -> bool {
    maps::address_bits(dst) & (FRONTEND | NODE) != 0
}

/// False if no fragment that leaves with these addresses can be ours.
#[inline(always)]
pub fn fragment_may_leave<A: Tables>(src: &A, dst: &A) -> bool {
    maps::address_bits(src) & BACKEND != 0 || maps::address_bits(dst) & (BACKEND | FRONTEND | NODE) != 0
}

/// False if nobody can mean a service who connects or sends to this address.
#[inline(always)]
pub fn may_connect<A: Tables>(dst: &A, port: u16) -> bool {
    let to = maps::address_bits(dst);
    to & FRONTEND != 0 || (to & NODE != 0 && Ports::Node.include::<A>(port)) || in_service_cidr(dst)
}

#[inline(always)]
fn in_service_cidr<A: Tables>(addr: &A) -> bool {
    maps::settings().is_some_and(|settings| addr.in_service_range(settings)) && maps::in_service_cidr(addr)
}

/// The frontend at a destination, if it is ours at all.
///
/// # Errors
/// Why nobody may answer there.
#[inline(always)]
pub fn lookup<A: Tables>(addr: A, port: u16, proto: u8) -> Result<Option<&'static Frontend>, Refusal> {
    let mut key = FrontendKey { addr, port, proto, pad: 0 };
    let exact = maps::frontend(&key);
    if exact.is_some() {
        return Ok(exact);
    }
    if let Some(flags) = maps::node_address(&addr) {
        // Whatever else the host serves on its own address is the host's business.
        if flags & NODE_PORTS == 0 {
            return Ok(None);
        }
        key.addr = A::default();
        return Ok(maps::frontend(&key));
    }
    (key.port, key.proto) = (0, 0);
    if maps::frontend(&key).is_some() {
        return Err(Refusal::reject(DropReason::UnknownPort));
    }
    if in_service_cidr(&addr) {
        return Err(DropReason::UnallocatedAddress.into());
    }
    Ok(None)
}
