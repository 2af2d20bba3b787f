//! `devices`: hash, interface index → what the datapath must know of the device.

use core::mem::offset_of;

use super::{assert_size, pod};
use crate::addr::{Addr, Ip4, Ip6};

/// Number of devices a node may have.
pub const CAPACITY: u32 = 16_384;

/// Addresses of a family behind which connections that leave by a device are masqueraded, at most.
pub const SNAT_ADDRESSES: usize = 8;

/// A device of the host.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Sources of masqueraded packets that leave here: the one that MASQUERADE would choose, or those of
    /// `masqueradeAddresses`.
    pub snat_v4: [Ip4; SNAT_ADDRESSES],
    /// Likewise for IPv6.
    pub snat_v6: [Ip6; SNAT_ADDRESSES],
    /// How many `snat_v4` are; none if the node has no address of the family.
    pub snat_v4_count: u16,
    /// Likewise for IPv6.
    pub snat_v6_count: u16,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Link-layer address, zero where there is none.
    pub mac: [u8; 6],
    /// VLAN id of a VLAN device, 0 of any other.
    pub vlan: u16,
    /// Interface index of the device under a VLAN device, 0 for any other.
    pub parent: u32,
}

/// Addresses of one family that a device may have.
pub trait SnatAddresses: Addr {
    /// Offset of a device's addresses.
    const ADDRESSES: usize;
    /// Offset of their number.
    const COUNT: usize;
    /// The places of a device's addresses, and how many of them are taken.
    fn of(device: &Device) -> (&[Self; SNAT_ADDRESSES], u16);
    /// The same, to be written.
    fn of_mut(device: &mut Device) -> (&mut [Self; SNAT_ADDRESSES], &mut u16);
}

impl SnatAddresses for Ip4 {
    const ADDRESSES: usize = offset_of!(Device, snat_v4);
    const COUNT: usize = offset_of!(Device, snat_v4_count);

    #[inline(always)]
    fn of(device: &Device) -> (&[Self; SNAT_ADDRESSES], u16) {
        (&device.snat_v4, device.snat_v4_count)
    }

    fn of_mut(device: &mut Device) -> (&mut [Self; SNAT_ADDRESSES], &mut u16) {
        (&mut device.snat_v4, &mut device.snat_v4_count)
    }
}

impl SnatAddresses for Ip6 {
    const ADDRESSES: usize = offset_of!(Device, snat_v6);
    const COUNT: usize = offset_of!(Device, snat_v6_count);

    #[inline(always)]
    fn of(device: &Device) -> (&[Self; SNAT_ADDRESSES], u16) {
        (&device.snat_v6, device.snat_v6_count)
    }

    fn of_mut(device: &mut Device) -> (&mut [Self; SNAT_ADDRESSES], &mut u16) {
        (&mut device.snat_v6, &mut device.snat_v6_count)
    }
}

impl Device {
    /// Sources of masqueraded packets that leave here.
    pub fn snat<A: SnatAddresses>(&self) -> &[A] {
        let (addresses, count) = A::of(self);
        &addresses[..SNAT_ADDRESSES.min(count.into())]
    }

    /// Adds one, unless there is no room left.
    pub fn add_snat<A: SnatAddresses>(&mut self, addr: A) {
        let (addresses, count) = A::of_mut(self);
        if let Some(place) = addresses.get_mut(usize::from(*count)) {
            *place = addr;
            *count += 1;
        }
    }

    /// The same device with this one, too.
    #[must_use]
    pub fn with_snat<A: SnatAddresses>(mut self, addr: A) -> Self {
        self.add_snat(addr);
        self
    }
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

assert_size!(Device = 180);
pod!(Device);
