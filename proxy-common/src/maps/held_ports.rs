//! `held_ports_v4`, `held_ports_v6`: LRU hash, 64 source ports towards one destination → those of them
//! that were found held. The search for a free one leaves these out, where most are held.
//!
//! These are hints: `conntrack` alone says whether a port is held.

use super::{assert_size, conntrack::CtKey, pod};
use crate::addr::{Addr, Ip4, Ip6};

/// Rows that are kept at a time, per family: 18 destinations of which all source ports are held. The map has more:
/// free ones lie with each CPU.
pub const CAPACITY: u32 = 8_192;
/// How long a row counts, in nanoseconds. A port that becomes free meanwhile is found when no other is left.
pub const LIFETIME_NS: u64 = 8_000_000_000;

/// 64 source ports towards one destination.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeldPortsKey<A> {
    /// Address of the destination.
    pub dst: A,
    /// Source address, which the ports are of.
    pub src: A,
    /// Port of the destination.
    pub dport: u16,
    /// Which 64 of `snatPortRange`, counted from its first port.
    pub word: u16,
    /// IANA protocol number.
    pub proto: u8,
    /// Where replies are met, as in `conntrack`.
    pub hook: u8,
    /// Zero.
    pub pad: u16,
}

impl<A: Addr> HeldPortsKey<A> {
    /// Sets everything but the word, by the key of the row that replies meet.
    #[inline(always)]
    pub fn set(&mut self, reply: &CtKey<A>) {
        self.dst = reply.src;
        self.src = reply.dst;
        self.dport = reply.sport;
        self.proto = reply.proto;
        self.hook = reply.hook;
        self.pad = 0;
    }
}

/// Ports that were found held.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeldPorts {
    /// Bit n is the nth of the 64 ports.
    pub held: u64,
    /// `CLOCK_MONOTONIC` in nanoseconds when the first of them was.
    pub since: u64,
}

assert_size!(HeldPortsKey<Ip4> = 16, HeldPortsKey<Ip6> = 40, HeldPorts = 16);
pod!(HeldPortsKey<A>, HeldPorts);
