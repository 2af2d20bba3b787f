//! `opened_v4`, `opened_v6`: hash, service and backend → connections opened, counted by the
//! programs. `traffic_v4`, `traffic_v6`: hash, the same key → what connections that are over have
//! carried, written by the agent when it removes their rows from `conntrack`. What a backend has
//! carried in all is that row and the rows of its connections.

use super::{assert_size, pod};

/// Default number of rows per family and map.
pub const CAPACITY: u32 = 262_144;

/// A backend under one kind of frontend of a service port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterKey {
    /// Key in `services`.
    pub service: u32,
    /// Key in `backends`.
    pub backend: u32,
    /// A [`Kind`](super::frontends::Kind).
    pub kind: u32,
}

/// Packets and bytes, as rows of `conntrack` count them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets from clients.
    pub in_packets: u64,
    /// Bytes from clients.
    pub in_bytes: u64,
    /// Packets to clients.
    pub out_packets: u64,
    /// Bytes to clients.
    pub out_bytes: u64,
}

impl core::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.in_packets += other.in_packets;
        self.in_bytes += other.in_bytes;
        self.out_packets += other.out_packets;
        self.out_bytes += other.out_bytes;
    }
}

assert_size!(CounterKey = 12, Traffic = 32);
pod!(CounterKey, Traffic);
