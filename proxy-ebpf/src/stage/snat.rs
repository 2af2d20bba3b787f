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
    conntrack::{self, Owner},
    trace,
};
use crate::maps::{self, Tables};

/// Ports tried before a connection is given up.
const TRIES: u32 = 32;

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

/// Gives `forward`, which goes from the node to a backend, a free source port, and enters
/// the row that the reply meets first.
#[inline(always)]
pub fn claim<A: Tables>(forward: &mut Tuple<A>, reply: &CtEntry<A>) -> Result<(), DropReason> {
    conntrack::claim_port(forward, INGRESS, reply, TRIES)
}

/// Completes a connection whose first packet leaves by `ifindex`.
#[inline(always)]
pub fn complete<A: Tables + SnatAddress>(
    entry: &mut CtEntry<A>,
    forward: &Tuple<A>,
    ifindex: u32,
) -> Result<Tuple<A>, DropReason> {
    let row_flags = entry.flags & !flags::SNAT_PENDING;
    let owner = Owner { service: entry.service, backend: entry.backend, kind: entry.kind };
    let reply = maps::new_row::<A>().ok_or(DropReason::InvalidMapState)?;
    *reply = conntrack::row(owner, &forward.reversed(), Role::REV_SNAT, row_flags);
    let mut target = Tuple { src: address::<A>(ifindex)?, ..*forward };
    claim(&mut target, reply)?;
    entry.src = target.src;
    entry.sport = target.sport;
    entry.flags = row_flags;
    trace::masqueraded(ifindex, forward, &target, owner);
    Ok(target)
}
