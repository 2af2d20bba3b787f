//! `backends_v4`, `backends_v6`: mmapable array, backend id → its address. Id 0 is no backend.

use super::{assert_size, pod};
use crate::addr::{Ip4, Ip6};

/// Number of backends per family that the map begins with, unless configured.
pub const CAPACITY: u32 = 16_384;

/// Number of backends per family to which it grows, unless much is configured.
pub const MOST: u32 = 4_194_304;

/// One address traffic is sent to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Backend<A> {
    /// Address of the endpoint.
    pub addr: A,
    /// Port of the endpoint.
    pub port: u16,
    /// IANA protocol number.
    pub proto: u8,
    /// Bits of [`flags`].
    pub flags: u8,
}

/// Bits of [`Backend::flags`].
pub mod flags {
    /// The row is in use; a row without it stands for a backend that is gone, and may still say which.
    pub const PRESENT: u8 = 1;
    /// Runs on this node.
    pub const LOCAL: u8 = 2;
}

assert_size!(Backend<Ip4> = 8, Backend<Ip6> = 20);
pod!(Backend<A>);
