//! `events`: ring buffer of what the programs did, for as long as somebody listens; `trace`:
//! array with one row that says until when somebody does, and to what.

use super::{assert_size, pod};
use crate::{addr::Addr, tuple::Tuple};

/// Bytes of the ring buffer.
pub const CAPACITY: u32 = 1 << 20;

/// What is listened to. A listener that dies is forgotten when its time is up.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// `CLOCK_MONOTONIC` in nanoseconds; 0 is nobody.
    pub until: u64,
    /// One event in so many is told, by chance; 0 and 1 are all.
    pub one_in: u32,
    /// Only this service, unless 0.
    pub service: u32,
}

/// One event.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub time: u64,
    /// Socket cookie at the socket hooks, else 0.
    pub cookie: u64,
    /// Key in `services`, 0 if none is known.
    pub service: u32,
    /// Key in `backends`, 0 if none is known.
    pub backend: u32,
    /// Interface whose hook it was, 0 at the socket hooks.
    pub ifindex: u32,
    /// A [`DropReason`](crate::DropReason), with [`What::REFUSED`].
    pub reason: u32,
    /// The process that called, at the socket hooks.
    pub pid: u32,
    /// Zero.
    pub pad: u32,
    /// A [`What`].
    pub what: u8,
    /// A [`Hook`].
    pub hook: u8,
    /// 4 or 6.
    pub family: u8,
    /// IANA protocol number.
    pub proto: u8,
    /// The packet's ports, source and destination.
    pub ports: [u16; 2],
    /// The ports after rewriting.
    pub to_ports: [u16; 2],
    /// The [`Kind`](super::frontends::Kind) of the frontend.
    pub kind: u8,
    /// Bits of [`flags`].
    pub flags: u8,
    /// Zero.
    pub pad2: u16,
    /// The packet's source address: one word or four, in network order. Likewise below.
    pub src: [u32; 4],
    /// The packet's destination address.
    pub dst: [u32; 4],
    /// The source address after rewriting.
    pub to_src: [u32; 4],
    /// The destination address after rewriting.
    pub to_dst: [u32; 4],
}

/// Bits of [`Event::flags`].
pub mod flags {
    /// The source is or will be rewritten to an address of the node.
    pub const SNAT: u8 = 1;
    /// The packet goes to the node of its backend as it is, inside another.
    pub const DSR: u8 = 2;
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct What(pub u8);

impl What {
    /// A connection was opened.
    pub const OPENED: What = What(1);
    /// A connection got its masquerading source.
    pub const MASQUERADED: What = What(2);
    /// A packet or connection was refused.
    pub const REFUSED: What = What(3);
}

/// Where it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook(pub u8);

impl Hook {
    /// tc, into the host's stack.
    pub const INGRESS: Hook = Hook(0);
    /// tc, out of the host's stack.
    pub const EGRESS: Hook = Hook(1);
    /// The driver's hook.
    pub const XDP: Hook = Hook(2);
    /// `connect` of a socket.
    pub const CONNECT: Hook = Hook(3);
    /// `sendmsg` of a socket.
    pub const SEND: Hook = Hook(4);

    /// The name in listings.
    pub fn name(self) -> &'static str {
        match self {
            Hook::INGRESS => "ingress",
            Hook::EGRESS => "egress",
            Hook::XDP => "xdp",
            Hook::CONNECT => "connect",
            Hook::SEND => "sendmsg",
            _ => "unknown",
        }
    }
}

#[inline(always)]
fn put<A: Addr>(words: &mut [u32; 4], addr: &A) {
    let mut i = 0;
    while i < A::BITS as usize / 32 {
        words[i] = addr.words()[i];
        i += 1;
    }
}

impl Event {
    /// Notes what a packet says of itself.
    #[inline(always)]
    pub fn set_from<A: Addr>(&mut self, tuple: &Tuple<A>) {
        put(&mut self.src, &tuple.src);
        put(&mut self.dst, &tuple.dst);
        self.ports = [tuple.sport, tuple.dport];
        self.proto = tuple.proto;
        self.family = A::VERSION;
    }

    /// Notes what became of it.
    #[inline(always)]
    pub fn set_to<A: Addr>(&mut self, tuple: &Tuple<A>) {
        put(&mut self.to_src, &tuple.src);
        put(&mut self.to_dst, &tuple.dst);
        self.to_ports = [tuple.sport, tuple.dport];
    }
}

assert_size!(Trace = 16, Event = 120);
pod!(Trace, Event);
