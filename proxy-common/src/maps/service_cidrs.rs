//! `service_cidrs_v4`, `service_cidrs_v6`: LPM trie, ServiceCIDR → nothing. Inside them,
//! an address no service owns is dropped (KEP-1880).

use super::{assert_size, pod};
use crate::addr::{Ip4, Ip6};

/// Number of ranges per family.
pub const CAPACITY: u32 = 256;

/// Key of a longest-prefix-match trie: `BPF_MAP_TYPE_LPM_TRIE` in the kernel's documentation.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Prefix<A> {
    /// Length of the prefix in bits.
    pub bits: u32,
    /// Address, with the bits after the prefix zero.
    pub addr: A,
}

assert_size!(Prefix<Ip4> = 8, Prefix<Ip6> = 20);
pod!(Prefix<A>);
