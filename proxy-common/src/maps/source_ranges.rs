//! `source_ranges_v4`, `source_ranges_v6`: LPM trie, (service, prefix) → nothing. Sources
//! inside may use the service's load-balancer addresses.

use super::{assert_size, pod};
use crate::addr::{Ip4, Ip6};

/// Ranges per family that the map begins with, if no other number is configured.
pub const CAPACITY: u32 = 65_536;

/// Ranges per family to which the map grows by itself, if no other number is configured.
pub const MOST: u32 = 1_048_576;

/// Key of a longest-prefix-match trie; the service is matched whole, before the address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceRange<A> {
    /// 32 for the service, plus the length of the prefix in bits.
    pub bits: u32,
    /// Key in `services`.
    pub service: u32,
    /// Address, with the bits after the prefix zero.
    pub addr: A,
}

/// Bits of the key before the address.
pub const SERVICE_BITS: u32 = 32;

assert_size!(SourceRange<Ip4> = 12, SourceRange<Ip6> = 24);
pod!(SourceRange<A>);
