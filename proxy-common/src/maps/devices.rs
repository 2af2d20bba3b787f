//! `devices`: hash, interface index → what the datapath must know of the device.

use super::{assert_size, pod};
use crate::addr::{Ip4, Ip6};

/// Number of devices a node may have.
pub const CAPACITY: u32 = 16_384;

/// A device of the host. An unspecified SNAT address means that the node has none of that family.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Source of masqueraded packets that leave here, as MASQUERADE would choose it.
    pub snat_v4: Ip4,
    /// Likewise for IPv6.
    pub snat_v6: Ip6,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Link-layer address, zero where there is none.
    pub mac: [u8; 6],
    /// VLAN id of a VLAN device, 0 of any other.
    pub vlan: u16,
    /// Interface index of the device under a VLAN device, 0 for any other.
    pub parent: u32,
}

/// Bits of [`Device::flags`].
pub mod flags {
    /// What comes in here comes from a pod (the interface modes of `detectLocalMode`).
    pub const POD: u32 = 1;
    /// The device sends frames that an XDP program on another device redirects to it.
    pub const XDP_XMIT: u32 = 2;
    /// A virtual cable. Its driver wakes the other end for frames that are redirected to it, and
    /// for those that an XDP program sends back only if the other end has such a program too.
    pub const CABLE: u32 = 4;

    /// One of [`edge`](super::edge). Programs never read it; it lets `shunt device list` tell why
    /// a device carries them while no agent runs.
    pub const EDGE_SHIFT: u32 = 8;
    /// The bits of it.
    pub const EDGE: u32 = 0xf << EDGE_SHIFT;
}

/// What a device is to the agent, in [`flags::EDGE`].
pub mod edge {
    /// No programs belong there.
    pub const NONE: u32 = 0;
    /// Host side of a pod's link.
    pub const POD: u32 = 1;
    /// Uplink.
    pub const NODE: u32 = 2;
    /// Overlay.
    pub const TUNNEL: u32 = 3;
    /// Loopback.
    pub const LOOPBACK: u32 = 4;
}

assert_size!(Device = 36);
pod!(Device);
