//! Masquerading: an address of this node and a port of our own range for a connection
//! that leaves.

use proxy_common::{
    Addr, DropReason, Ip4, Ip6, Tuple,
    maps::{
        conntrack::{CtEntry, INGRESS, Role, flags},
        devices::Device,
    },
};

use super::{
    create::{self, Owner},
    ports, trace,
};
use crate::maps::{self, Tables};

/// Addresses a device masquerades behind.
pub trait SnatAddress: Addr {
    fn of(device: &Device) -> Self;
}

impl SnatAddress for Ip4 {
    #[inline(always)]
    fn of(device: &Device) -> Self {
        device.snat_v4
    }
}

impl SnatAddress for Ip6 {
    #[inline(always)]
    fn of(device: &Device) -> Self {
        device.snat_v6
    }
}

/// The address that connections leaving by `ifindex` are given.
#[inline(always)]
pub fn address<A: SnatAddress>(ifindex: u32) -> Result<A, DropReason> {
    let addr = maps::device(ifindex).map(|d| A::of(d)).ok_or(DropReason::NoNodeAddress)?;
    if addr.is_unspecified() { Err(DropReason::NoNodeAddress) } else { Ok(addr) }
}

/// Completes a connection whose first packet leaves by `ifindex`. `hash` is that of what
/// its client sends; `forward` is what that has become.
#[inline(always)]
pub fn complete<A: Tables + SnatAddress>(
    entry: &mut CtEntry<A>,
    forward: &Tuple<A>,
    ifindex: u32,
    hash: u32,
) -> Result<Tuple<A>, DropReason> {
    let row_flags = entry.flags & !flags::SNAT_PENDING;
    let owner = Owner { service: entry.service, backend: entry.backend, kind: entry.kind };
    let reply = create::begin(owner, &forward.reversed(), Role::REV_SNAT, row_flags)?;
    reply.other_addr = entry.other_addr;
    reply.other_port = entry.other_port;
    reply.other_client_port = entry.other_client_port;
    let mut target = Tuple { src: address::<A>(ifindex)?, ..*forward };
    ports::claim(&mut target, INGRESS, hash)?;
    entry.src = target.src;
    entry.sport = target.sport;
    entry.flags = row_flags;
    trace::masqueraded(ifindex, forward, &target, owner);
    Ok(target)
}
