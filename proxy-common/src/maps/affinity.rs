//! `affinity_v4`, `affinity_v6`: LRU hash, client of a service port → the backend it sticks to
//! (`sessionAffinity: ClientIP`).

use super::{assert_size, pod};
use crate::addr::{Ip4, Ip6};

/// Number of rows per family that the map begins with, unless configured.
pub const CAPACITY: u32 = 8_192;

/// Number of rows per family to which it grows, unless much is configured.
pub const MOST: u32 = 2_097_152;

/// A client of a service port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AffinityKey<A> {
    /// Address of the client. Under socket LB its network namespace stands for it, under an address nobody
    /// can have, unless the socket is bound to another address than `netns_addresses` has.
    pub client: A,
    /// Key in `services`.
    pub service: u32,
}

/// The backend of the client's last connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Affinity {
    /// `CLOCK_MONOTONIC` in nanoseconds when it opened its last connection.
    pub last_used: u64,
    /// Key in `backends`.
    pub backend: u32,
    /// Index in `slots` under which the backend was last found.
    pub slot: u32,
}

assert_size!(AffinityKey<Ip4> = 8, AffinityKey<Ip6> = 20, Affinity = 16);
pod!(AffinityKey<A>, Affinity);
