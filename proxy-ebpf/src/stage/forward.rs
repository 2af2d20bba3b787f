//! Out of the driver's hook by another device, or the same, without the host's stack.

use proxy_common::{
    DropReason,
    maps::{devices, next_hops::NextHop},
    packet::headers::{Macs, Vlan},
};

use super::{
    network::Network,
    route::{Answer, Route},
};
use crate::{
    maps::{self, DeviceFacts},
    packet::{Frame, Framing, Packet as _},
};
use proxy_common::packet::Bytes as _;

/// The next hop of `route` for a frame that came in to `macs`, if the device takes frames from this hook: the one the
/// frame came in by, or one that sends what others redirect to it. The frame must have the tag it needs there. Else it
/// has no device.
#[inline(always)]
pub fn next_hop<F: Framing>(frame: &Frame<F>, macs: &Macs, route: &Route) -> NextHop {
    let own = frame.ifindex();
    let mut hop = NextHop {
        in_ifindex: own,
        ifindex: 0,
        own: macs.dst,
        src: route.src_mac,
        dst: route.dst_mac,
        vlan: 0,
        mtu: route.mtu as u16,
        tagged: F::TAGGED.into(),
    };
    if route.answer != Answer::Reachable {
        return hop;
    }
    if !F::TAGGED && route.ifindex == own {
        hop.ifindex = own;
        return hop;
    }
    let Some(&DeviceFacts { vlan, parent, flags, .. }) = maps::device(route.ifindex) else { return hop };
    let (ifindex, flags) = if vlan == 0 {
        (route.ifindex, flags)
    } else {
        (parent, maps::device(parent).map_or(0, |parent| parent.flags))
    };
    let sends = ifindex == own || flags & devices::flags::XDP_XMIT != 0;
    if sends && F::TAGGED == (vlan != 0) {
        (hop.ifindex, hop.vlan) = (ifindex, vlan);
    }
    hop
}

/// Addresses the frame to the next hop, one hop older.
#[inline(always)]
pub fn address<F: Framing, A: Network>(frame: &Frame<F>, hop: &NextHop) -> Result<(), DropReason> {
    A::age(frame)?;
    frame.write(0, &Macs { dst: hop.dst, src: hop.src })?;
    if F::TAGGED {
        const PRIORITY: u16 = 0xf000;
        let at = size_of::<Macs>() + size_of::<u16>();
        let tag = frame.read::<Vlan>(at).ok_or(DropReason::RewriteFailed)?;
        let tci = (u16::from_be(tag.tci) & PRIORITY) | hop.vlan;
        frame.write(at, &Vlan { tci: tci.to_be(), ..tag })?;
    }
    Ok(())
}
