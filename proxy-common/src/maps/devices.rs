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
    /// Zero.
    pub pad: u16,
}

/// Bits of [`Device::flags`].
pub mod flags {
    /// What comes in here comes from a pod (the interface modes of `detectLocalMode`).
    pub const POD: u32 = 1;
}

assert_size!(Device = 32);
pod!(Device);
