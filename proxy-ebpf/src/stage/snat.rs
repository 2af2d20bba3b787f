//! Masquerading: an address of this node and a port of our own range for a connection
//! that leaves.

use proxy_common::{
    DropReason, Tuple, hash,
    maps::{
        conntrack::{CtEntry, EGRESS, Role, flags},
        devices::SNAT_ADDRESSES,
    },
};

use super::{
    create::{self, Owner},
    ports, trace,
};
use crate::maps::{self, Room, Tables};

/// Addresses that connections leaving by a device are given.
pub struct Addresses<A: 'static> {
    all: &'static [A; SNAT_ADDRESSES],
    pub count: u32,
}

impl<A: Tables> Addresses<A> {
    /// Those of the device `ifindex`.
    #[inline(always)]
    pub fn of(ifindex: u32) -> Result<Self, DropReason> {
        let (all, count) = maps::snat_addresses(ifindex).ok_or(DropReason::NoNodeAddress)?;
        Ok(Self { all, count })
    }

    /// One of them; the first one where there are not so many.
    #[inline(always)]
    pub fn nth(&self, index: u32) -> Result<&'static A, DropReason> {
        let place = if index < self.count { index } else { 0 };
        let addr = &self.all[place as usize % SNAT_ADDRESSES];
        if addr.is_unspecified() { Err(DropReason::NoNodeAddress) } else { Ok(addr) }
    }

    /// With which of them a connection begins: a client keeps to one towards a backend, as with netfilter.
    #[inline(always)]
    pub fn first(&self, forward: &Tuple<A>) -> u32 {
        if self.count < 2 {
            return 0;
        }
        let backend = forward.dst.words().iter().fold(0, |all, word| all ^ *word);
        let hash = hash::words(forward.src.words(), backend, 0);
        // A remainder without a division.
        ((u64::from(hash) * u64::from(self.count)) >> 32) as u32
    }
}

/// The first of those that connections leaving by `ifindex` are given.
#[inline(always)]
pub fn address<A: Tables>(ifindex: u32) -> Result<&'static A, DropReason> {
    Addresses::of(ifindex)?.nth(0)
}

/// Completes a connection whose first packet leaves by `ifindex`. `hash` is that of what
/// its client sends; `forward` is what that has become, `entry` its row. Returns that row as it is then. Takes the
/// rooms for new rows and keys, of which `entry` is none.
#[inline(always)]
pub fn complete<A: Tables>(
    entry: &CtEntry<A>,
    forward: &Tuple<A>,
    ifindex: u32,
    hash: u32,
) -> Result<&'static CtEntry<A>, DropReason> {
    let row_flags = entry.flags & !flags::SNAT_PENDING;
    let owner = Owner { service: entry.service, backend: entry.backend, kind: entry.kind };
    let reply = create::begin(owner, &forward.reversed(), Role::REV_SNAT, row_flags)?;
    reply.other_addr = entry.other_addr;
    reply.other_port = entry.other_port;
    reply.other_client_port = entry.other_client_port;
    let claimed = ports::claim_behind(forward, ifindex, hash)?;
    let Room { row, key, .. } = maps::room().ok_or(DropReason::InvalidMapState)?;
    *row = *entry;
    (row.src, row.sport, row.flags) = (claimed.dst, claimed.dport, row_flags);
    key.set(forward, EGRESS);
    maps::conntrack_put(key, row)?;
    trace::masqueraded(ifindex, forward, &row.target(forward.proto), owner);
    Ok(row)
}
