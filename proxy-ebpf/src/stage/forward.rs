//! Out of the driver's hook by another device, or the same, without the host's stack.

use proxy_common::{
    DropReason,
    maps::devices,
    packet::headers::{Macs, Vlan},
};

use super::{
    network::Network,
    route::{Answer, Route},
};
use crate::{
    maps,
    packet::{Frame, Framing, Packet as _},
};
use proxy_common::packet::Bytes as _;

/// Where a frame can be sent at once.
#[derive(Clone, Copy)]
pub struct Way {
    /// The device that sends the frame; 0 if there is no such way.
    pub ifindex: u32,
    /// VLAN id, 0 without a tag.
    pub vlan: u16,
}

/// The device for `route`, if it takes frames from this hook: the one the frame came in by,
/// or one that sends what others redirect to it. The frame must have the tag it needs there.
#[inline(always)]
pub fn way<F: Framing>(frame: &Frame<F>, route: &Route) -> Way {
    const NONE: Way = Way { ifindex: 0, vlan: 0 };
    if route.answer != Answer::Reachable {
        return NONE;
    }
    let own = frame.ifindex();
    if !F::TAGGED && route.ifindex == own {
        return Way { ifindex: own, vlan: 0 };
    }
    let Some(device) = maps::device(route.ifindex) else { return NONE };
    let (ifindex, flags) = if device.vlan == 0 {
        (route.ifindex, device.flags)
    } else {
        (device.parent, maps::device(device.parent).map_or(0, |parent| parent.flags))
    };
    let sends = ifindex == own || flags & devices::flags::XDP_XMIT != 0;
    if sends && F::TAGGED == (device.vlan != 0) { Way { ifindex, vlan: device.vlan } } else { NONE }
}

/// Addresses the frame to the next hop, one hop older.
#[inline(always)]
pub fn address<F: Framing, A: Network>(frame: &Frame<F>, route: &Route, way: Way) -> Result<(), DropReason> {
    A::age(frame)?;
    frame.write(0, &Macs { dst: route.dst_mac, src: route.src_mac })?;
    if F::TAGGED {
        const PRIORITY: u16 = 0xf000;
        let at = size_of::<Macs>() + size_of::<u16>();
        let tag = frame.read::<Vlan>(at).ok_or(DropReason::RewriteFailed)?;
        let tci = (u16::from_be(tag.tci) & PRIORITY) | way.vlan;
        frame.write(at, &Vlan { tci: tci.to_be(), ..tag })?;
    }
    Ok(())
}
