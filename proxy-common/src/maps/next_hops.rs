//! `next_hops`: array → where frames go that a driver has seen, as the routing tables last said. `routes`: array with
//! one row, how often the agent has seen routes, rules, neighbours or devices change.
//!
//! A row of `conntrack` names a place here, with a tag of what lies there, of itself and of the time
//! ([`CtEntry::ifindex`]): what is written over, was asked too long ago, or before routes changed, does not have it, and the
//! routing tables are asked again.
//!
//! The agent asks neighbours whether they are still there that frames go to by this table: these do not make the kernel
//! ask. It empties the table now and then.

use core::ptr;

use super::{
    assert_size,
    conntrack::{CtEntry, flags},
    pod,
};
use crate::{addr::Addr, weighted_sum::WeightedSum};

/// Places for next hops.
pub const CAPACITY: u32 = 4_096;

/// What is known is good for 64 of the kernel's timer ticks at most: for 64 ms to 640 ms.
pub const EPOCH_SHIFT: u32 = 6;

/// A next hop.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// Interface by which frames came in; 0 if there is no next hop.
    pub in_ifindex: u32,
    /// Interface that sends them; 0 if they go up, to the host's stack.
    pub ifindex: u32,
    /// Link-layer address that they came in to.
    pub own: [u8; 6],
    /// Link-layer address of the interface that sends them.
    pub src: [u8; 6],
    /// Link-layer address of the next hop.
    pub dst: [u8; 6],
    /// VLAN id that they leave with, 0 if they have no tag.
    pub vlan: u16,
    /// Largest IP packet.
    pub mtu: u16,
    /// 1 if they came in with a VLAN tag, else 0.
    pub tagged: u16,
}

assert_size!(NextHop = 32);
pod!(NextHop);

impl NextHop {
    /// The places in which it may lie.
    #[inline(always)]
    pub fn places(&self) -> [u32; 2] {
        let sum = self.sum().end();
        [(sum >> 52) as u32, (sum >> 40) as u32 % CAPACITY]
    }

    #[inline(always)]
    fn sum(&self) -> WeightedSum {
        let mut sum = WeightedSum::default();
        // SAFETY: it consists of four aligned words.
        unsafe { sum.add_all(ptr::from_ref(self).cast(), size_of::<Self>() / size_of::<u64>()) };
        sum
    }
}

/// Where [`CtEntry::ifindex`] says that the next hop lies.
#[inline(always)]
pub fn place(out: u32) -> u32 {
    out % CAPACITY
}

impl<A: Addr> CtEntry<A> {
    /// What [`CtEntry::ifindex`] says while packets of this row go to `hop`, which lies at `place`, in `epoch`. It follows
    /// from all by which a driver translates them.
    #[inline(always)]
    pub fn out_to(&self, place: u32, hop: &NextHop, epoch: u32) -> u32 {
        let mut sum = hop.sum();
        let role = self.role | (self.flags & (flags::SNAT | flags::SNAT_PENDING)) << 4;
        sum.add(
            u64::from(self.check)
                | u64::from(self.other_port) << 16
                | u64::from(self.other_client_port) << 32
                | u64::from(role) << 48,
        );
        for word in self.other_addr.words() {
            sum.add((*word).into());
        }
        sum.add(epoch.into());
        (sum.end() >> 32) as u32 & !(CAPACITY - 1) | place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Ip4;

    #[test]
    fn whatever_changes_ends_it() {
        let hop = NextHop {
            in_ifindex: 1,
            ifindex: 2,
            own: [1; 6],
            src: [2; 6],
            dst: [3; 6],
            vlan: 4,
            mtu: 1500,
            tagged: 0,
        };
        let row = CtEntry::<Ip4> { check: 7, other_port: 1024, ..CtEntry::default() };
        let out = row.out_to(5, &hop, 9);
        assert_eq!(place(out), 5);
        let rows = [
            CtEntry { check: 8, ..row },
            CtEntry { other_port: 1025, ..row },
            CtEntry { other_client_port: 1, ..row },
            CtEntry { other_addr: [10, 0, 0, 1].into(), ..row },
            CtEntry { role: 2, ..row },
            CtEntry { flags: flags::SNAT, ..row },
        ];
        let hops = [
            NextHop { in_ifindex: 2, ..hop },
            NextHop { ifindex: 1, ..hop },
            NextHop { own: [1, 1, 1, 1, 1, 2], ..hop },
            NextHop { src: [3; 6], ..hop },
            NextHop { dst: [2; 6], ..hop },
            NextHop { vlan: 0, ..hop },
            NextHop { mtu: 1400, ..hop },
            NextHop { tagged: 1, ..hop },
        ];
        let others =
            rows.map(|row| row.out_to(5, &hop, 9)).into_iter().chain(hops.map(|hop| row.out_to(5, &hop, 9)));
        for (number, other) in others.chain([row.out_to(5, &hop, 10)]).enumerate() {
            assert_ne!(other, out, "{number}");
        }
    }
}
