//! Destination → frontend.

use proxy_common::{
    DropReason, Tuple,
    maps::{
        address_filter::flags::{
            BACKEND, BACKEND_PORT, CLIENT, DIRECT, FRONTEND, MASQUERADED, NODE, NODE_PORT,
        },
        frontends::{Frontend, FrontendKey},
        node_addresses::flags::NODE_PORTS,
        settings::flags::SOCKET_LB_PODS,
    },
    packet::{Parsed, Transport},
    proto,
};

use super::select::Refusal;
use crate::{
    global::global_by_family,
    maps::{self, Tables},
};

/// Which packets between two addresses may be ours, by what stands in their transport header.
#[derive(Clone, Copy)]
pub struct Ports(u8);

impl Ports {
    const NONE: Self = Self(0);
    /// All.
    const ALL: Self = Self(1);
    /// To NodePorts.
    const TO_NODE_PORT: Self = Self(2);
    /// From the port of a backend.
    const FROM_BACKEND: Self = Self(4);
    /// To the port of a backend.
    const TO_BACKEND: Self = Self(8);
    /// From a client to a backend itself: those that may open a connection.
    const OPENING: Self = Self(16);
    /// From the host to a backend itself: those that may open a connection by a port of our range.
    const FROM_OUR_RANGE: Self = Self(32);
    /// From the host: datagrams by a NodePort.
    const FROM_NODE_PORT: Self = Self(64);
    /// Those that may be to a frontend.
    const TO_FRONTEND: Self = Self(Self::ALL.0 | Self::TO_NODE_PORT.0);
    /// To frontends, or between a client and a backend that have rows.
    const WITH_ROWS: Self = Self(Self::TO_FRONTEND.0 | Self::FROM_BACKEND.0 | Self::TO_BACKEND.0);

    #[inline(always)]
    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// With the others, if the condition is 1. No branch: the verifier would walk all that follows on each side.
    #[inline(always)]
    fn with(self, other: Self, condition: u8) -> Self {
        Self(self.0 | (other.0 * condition))
    }

    /// True if the packets that they include are neither to a frontend nor of a connection that has rows.
    #[inline(always)]
    pub fn are_direct(self) -> bool {
        self.with_rows().is_none()
    }

    #[inline(always)]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Without those that are neither to a frontend nor of a connection that has rows.
    #[inline(always)]
    pub fn with_rows(self) -> Self {
        Self(self.0 & Self::WITH_ROWS.0)
    }

    /// False if the packet can be none of ours.
    #[inline(always)]
    pub fn include<A: Tables>(self, parsed: &Parsed<A>) -> bool {
        let Tuple { sport, dport, .. } = parsed.tuple;
        if self.has(Self::ALL) || (self.has(Self::FROM_BACKEND) && is_port::<A>(sport, BACKEND_PORT)) {
            return true;
        }
        let to = maps::port_bits::<A>(dport);
        let met = Self::NONE
            .with(Self::TO_NODE_PORT, bit(to, NODE_PORT))
            .with(Self::TO_BACKEND, bit(to, BACKEND_PORT));
        self.has(met) || self.include_direct(parsed)
    }

    /// True for a packet that may be to a frontend.
    #[inline(always)]
    pub fn include_frontend<A: Tables>(self, parsed: &Parsed<A>) -> bool {
        self.has(Self::ALL) || (self.has(Self::TO_NODE_PORT) && is_port::<A>(parsed.tuple.dport, NODE_PORT))
    }

    /// True for a packet that may meet rows of ours though it is to no frontend, nor of a connection that has rows.
    #[inline(always)]
    pub fn include_direct<A: Tables>(self, parsed: &Parsed<A>) -> bool {
        let Tuple { sport, dport, proto, .. } = parsed.tuple;
        let by_client = self.has(Self::OPENING) || (self.has(Self::FROM_OUR_RANGE) && is_in_our_range(sport));
        (by_client && parsed.opens() && is_port::<A>(dport, BACKEND_PORT))
            || (self.has(Self::FROM_NODE_PORT) && proto == proto::UDP && is_port::<A>(sport, NODE_PORT))
    }
}

/// True for a port with one of these flags.
#[inline(always)]
fn is_port<A: Tables>(port: u16, flags: u64) -> bool {
    maps::port_bits::<A>(port) & flags != 0
}

/// True for a port by which connections are masqueraded.
#[inline(always)]
fn is_in_our_range(port: u16) -> bool {
    maps::settings()
        .is_some_and(|settings| port.wrapping_sub(settings.snat_port_first) < settings.snat_port_count)
}

/// What may be ours of that which enters with these addresses. Rows at ingress are for packets to a
/// frontend, for replies of a backend to an address of the host, and for packets of a client to a
/// backend itself. The first fragment of a packet is asked about as the others are, which have no
/// ports: they wait for its answer.
#[inline(always)]
pub fn may_enter<A: Tables>(packet: &Transport<A>) -> Ports {
    let to = maps::address_bits(&packet.dst);
    if to & FRONTEND != 0 || in_service_cidr(&packet.dst) {
        return Ports::ALL;
    }
    if to & (NODE | BACKEND) == 0 {
        return Ports::NONE;
    }
    let from = maps::address_bits(&packet.src);
    let (to_node, to_backend) = (bit(to, NODE), bit(to, BACKEND));
    let by_another_port = to_backend & bit(from, DIRECT);
    let is_client = bit(from, CLIENT) | u8::from(packet.proto == proto::UDP && translates_pods());
    let is_part = u8::from(packet.is_fragment());
    Ports::NONE
        .with(Ports::ALL, is_part & (to_node | by_another_port))
        .with(Ports::TO_NODE_PORT, to_node)
        .with(Ports::FROM_BACKEND, to_node & bit(from, BACKEND))
        .with(Ports::TO_BACKEND, by_another_port)
        .with(Ports::OPENING, to_backend & is_client)
}

/// 1 if one of the bits is the flag.
#[inline(always)]
fn bit(bits: u64, flag: u64) -> u8 {
    ((bits >> flag.trailing_zeros()) & 1) as u8
}

/// Datagrams of pods to services are translated by packets. Where socket LB does it, connections by
/// packets are few, and their clients are known by then.
#[inline(always)]
fn translates_pods() -> bool {
    maps::settings().is_some_and(|settings| settings.flags & SOCKET_LB_PODS == 0)
}

/// What may be ours of that which leaves with these addresses; `made_here` by a process of this
/// host. Rows at egress are for replies of a backend to a client, for packets of a masqueraded
/// client to a backend, for packets of the host to a frontend, and for those from an address of the
/// host that another NAT or a process has sent.
#[inline(always)]
pub fn may_leave<A: Tables>(packet: &Transport<A>, made_here: bool) -> Ports {
    let (from, to) = (maps::address_bits(&packet.src), maps::address_bits(&packet.dst));
    let (from_node, to_backend) = (bit(from, NODE), bit(to, BACKEND));
    let reply = bit(from, BACKEND) & bit(to, CLIENT);
    let masqueraded = (bit(from, MASQUERADED) | bit(from, DIRECT)) & to_backend;
    let is_part = packet.is_fragment();
    let held = u8::from(is_part && fragment_may_leave(&packet.src, &packet.dst));
    let in_range = u8::from((made_here || is_part) && in_service_cidr(&packet.dst));
    Ports::NONE
        .with(Ports::ALL, bit(to, FRONTEND) | in_range | held)
        .with(Ports::TO_NODE_PORT, bit(to, NODE))
        .with(Ports::FROM_BACKEND, reply)
        .with(Ports::TO_BACKEND, masqueraded)
        .with(Ports::FROM_OUR_RANGE, from_node & to_backend)
        .with(Ports::FROM_NODE_PORT, from_node & u8::from(packet.proto == proto::UDP))
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
    to & FRONTEND != 0 || (to & NODE != 0 && is_port::<A>(port, NODE_PORT)) || in_service_cidr(dst)
}

#[inline(always)]
fn in_service_cidr<A: Tables>(addr: &A) -> bool {
    maps::settings().is_some_and(|settings| addr.in_service_range(settings)) && maps::in_service_cidr(addr)
}

/// What is at a destination.
#[derive(Clone, Copy, PartialEq)]
#[repr(u32)]
enum Found {
    /// Nothing of ours.
    Nothing,
    Frontend,
    /// An address of a service, which does not declare the port.
    OtherPort,
    /// An address that services are given, and none has.
    Unallocated,
}

/// The frontend at a destination, if it is ours at all; `copy` is room for it.
///
/// # Errors
/// Why nobody may answer there.
#[inline(always)]
pub fn lookup<A: Tables>(
    addr: A,
    port: u16,
    proto: u8,
    copy: &mut Frontend,
) -> Result<Option<&Frontend>, Refusal> {
    let found = find(FrontendKey { addr, port, proto, pad: 0 }, |key| maps::frontend(key, copy).is_some());
    judge(found as u32, copy)
}

/// The same for the packet that this program has parsed. Another that was found before is gone.
///
/// # Errors
/// As of [`lookup`].
#[inline(always)]
pub fn frontend_of_packet<A: Tables>() -> Result<Option<&'static Frontend>, Refusal> {
    let found = find_frontend::<A>();
    judge(found, maps::frontend_room::<A>().ok_or(DropReason::InvalidMapState)?)
}

#[inline(always)]
fn judge(found: u32, frontend: &Frontend) -> Result<Option<&Frontend>, Refusal> {
    const FRONTEND: u32 = Found::Frontend as u32;
    const OTHER_PORT: u32 = Found::OtherPort as u32;
    const UNALLOCATED: u32 = Found::Unallocated as u32;
    match found {
        FRONTEND => Ok(Some(frontend)),
        OTHER_PORT => Err(Refusal::reject(DropReason::UnknownPort)),
        UNALLOCATED => Err(DropReason::UnallocatedAddress.into()),
        _ => Ok(None),
    }
}

/// What an address is as a whole, whatever its ports lead to.
#[derive(Clone, Copy)]
pub struct Address(u32);

impl Address {
    /// A service has it, and the host does not.
    #[inline(always)]
    pub fn is_a_services(self) -> bool {
        self.0 == Found::Frontend as u32
    }

    /// Services are given such addresses, and none has it.
    #[inline(always)]
    pub fn is_unallocated(self) -> bool {
        self.0 == Found::Unallocated as u32
    }
}

/// Looks at an address. What was parsed before is gone.
#[inline(always)]
pub fn address<A: Tables>(addr: &A) -> Address {
    let Some(parsed) = maps::parsed::<A>() else { return Address(Found::Nothing as u32) };
    parsed.tuple.dst = *addr;
    Address(find_address::<A>())
}

global_by_family! {
    fn find_address() = find_in_room as shunt_find_address4, shunt_find_address6;
}

#[inline(always)]
fn find_in_room<A: Tables>() -> u32 {
    let Some(parsed) = maps::parsed::<A>() else { return Found::Nothing as u32 };
    let key = FrontendKey { addr: parsed.tuple.dst, port: 0, proto: 0, pad: 0 };
    if maps::node_address(&key.addr).is_some() {
        Found::Nothing as u32
    } else if maps::has_frontend(&key) {
        Found::Frontend as u32
    } else if in_service_cidr(&key.addr) {
        Found::Unallocated as u32
    } else {
        Found::Nothing as u32
    }
}

global_by_family! {
    fn find_frontend() = find_into_room as shunt_find_frontend4, shunt_find_frontend6;
}

/// A [`Found`], and the frontend in the room for it.
#[inline(always)]
fn find_into_room<A: Tables>() -> u32 {
    let (Some(parsed), Some(room)) = (maps::parsed::<A>(), maps::frontend_room::<A>()) else {
        return Found::Nothing as u32;
    };
    let Tuple { dst, dport, proto, .. } = parsed.tuple;
    let key = FrontendKey { addr: dst, port: dport, proto, pad: 0 };
    find(key, |key| maps::frontend(key, room).is_some()) as u32
}

/// True if the destination is ours: there is a frontend, or nobody may answer there.
#[inline(always)]
pub fn is_ours<A: Tables>(addr: A, port: u16, proto: u8) -> bool {
    find(FrontendKey { addr, port, proto, pad: 0 }, maps::has_frontend) != Found::Nothing
}

/// `read` is asked under each key that a frontend of the destination may have, `key` its own; true ends that.
#[inline(always)]
fn find<A: Tables>(mut key: FrontendKey<A>, mut read: impl FnMut(&FrontendKey<A>) -> bool) -> Found {
    let addr = key.addr;
    if read(&key) {
        return Found::Frontend;
    }
    if let Some(flags) = maps::node_address(&addr) {
        // Whatever else the host serves on its own address is the host's business.
        if flags & NODE_PORTS == 0 {
            return Found::Nothing;
        }
        key.addr = A::default();
        return if read(&key) { Found::Frontend } else { Found::Nothing };
    }
    (key.port, key.proto) = (0, 0);
    if maps::has_frontend(&key) {
        Found::OtherPort
    } else if in_service_cidr(&addr) {
        Found::Unallocated
    } else {
        Found::Nothing
    }
}
