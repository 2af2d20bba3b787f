//! The 5-tuple of a packet.

use crate::addr::Addr;

/// Source, destination and protocol of one packet of a flow. Ports in host order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tuple<A> {
    /// Source address.
    pub src: A,
    /// Destination address.
    pub dst: A,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// IANA protocol number.
    pub proto: u8,
}

impl<A: Addr> Tuple<A> {
    /// The tuple of the packets that flow the other way.
    #[inline(always)]
    pub fn reversed(&self) -> Self {
        Self { src: self.dst, dst: self.src, sport: self.dport, dport: self.sport, proto: self.proto }
    }
}
