//! `opened_v4`, `opened_v6`: hash with a value for each CPU, service and backend → connections opened,
//! counted by the programs. `traffic_v4`, `traffic_v6`: hash, the same key → what connections that are over have
//! carried. Who removes their rows from `conntrack` adds it there: the agent and the programs each to a
//! row of its own ([`CounterKey::by_programs`]), as neither could add to the other's without losing some.
//! What a backend has carried in all is both and the rows of its connections.

use super::{
    assert_size,
    conntrack::{CtEntry, Role, flags},
    pod,
};

/// Number of rows per family: the agent makes `opened` as large as `backends`, `traffic` twice as
/// large, and both grow with it.
pub const CAPACITY: u32 = 16_384;

/// A backend under one kind of frontend of a service port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterKey {
    /// Key in `services`.
    pub service: u32,
    /// Key in `backends`.
    pub backend: u32,
    /// A [`Kind`](super::frontends::Kind); in `traffic` with the bit 256 where the programs write.
    pub kind: u32,
}

/// In [`CounterKey::kind`], a row of `traffic` that the programs write.
const BY_PROGRAMS: u32 = 1 << 8;

impl CounterKey {
    /// Of the programs' row in `traffic`.
    #[inline(always)]
    pub fn by_programs(self) -> Self {
        Self { kind: self.kind | BY_PROGRAMS, ..self }
    }

    /// True for the programs' row.
    pub fn is_by_programs(self) -> bool {
        self.kind & BY_PROGRAMS != 0
    }

    /// Of whoever writes the row.
    pub fn by_anybody(self) -> Self {
        Self { kind: self.kind & !BY_PROGRAMS, ..self }
    }
}

impl<A> CtEntry<A> {
    /// Under what it is counted. Nothing is counted of connections that no service has.
    #[inline(always)]
    pub fn counter_key(&self) -> Option<CounterKey> {
        let Self { service, backend, kind, .. } = *self;
        if service == 0 { None } else { Some(CounterKey { service, backend, kind: u32::from(kind) }) }
    }

    /// What the row adds to the traffic of its connection: that of the row that packets meet first, from either side.
    /// Rows behind that count those of the same packets that meet them; what a driver sends on mostly does not.
    #[inline(always)]
    pub fn traffic(&self) -> Traffic {
        let Self { packets, bytes, .. } = *self;
        let role = Role(self.role);
        let is_masqueraded = self.flags & flags::SNAT != 0;
        if role.is_primary() {
            Traffic { in_packets: packets, in_bytes: bytes, ..Traffic::default() }
        } else if role == Role::REV_SNAT
            || role == Role::REV_HOST
            || (role == Role::REV_DNAT && !is_masqueraded)
        {
            Traffic { out_packets: packets, out_bytes: bytes, ..Traffic::default() }
        } else {
            Traffic::default()
        }
    }
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
        // As the programs count: rows that others wrote may say anything.
        self.in_packets = self.in_packets.wrapping_add(other.in_packets);
        self.in_bytes = self.in_bytes.wrapping_add(other.in_bytes);
        self.out_packets = self.out_packets.wrapping_add(other.out_packets);
        self.out_bytes = self.out_bytes.wrapping_add(other.out_bytes);
    }
}

assert_size!(CounterKey = 12, Traffic = 32);
pod!(CounterKey, Traffic);
