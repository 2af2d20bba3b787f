//! The rows of one connection, each by another.

use crate::{
    addr::Addr,
    maps::conntrack::{CtEntry, CtKey, EGRESS, Role, flags, opposite},
    packet::headers::tcp_flags::ACK,
    tuple::Tuple,
};

impl<A: Addr> CtEntry<A> {
    /// The key of the row that packets of the other direction meet, which become what this row's packets
    /// are. This one's is at `hook`.
    #[inline(always)]
    pub fn pair(&self, proto: u8, hook: u8) -> CtKey<A> {
        CtKey::new(&self.target(proto).reversed(), opposite(hook))
    }

    /// True if this row undoes what a row does whose packets are `forward`.
    #[inline(always)]
    pub fn undoes(&self, forward: &Tuple<A>) -> bool {
        self.sport == forward.dport
            && self.dport == forward.sport
            && self.src == forward.dst
            && self.dst == forward.src
    }

    /// True if packets become the same by both rows.
    #[inline(always)]
    pub fn becomes_as(&self, other: &Self) -> bool {
        self.sport == other.sport
            && self.dport == other.dport
            && self.src == other.src
            && self.dst == other.dst
    }

    /// Makes `row` the pair of this one, whose packets are `own`: that of a connection that is open,
    /// and of which no packet has passed it.
    #[inline(always)]
    pub fn write_pair(&self, own: &Tuple<A>, row: &mut Self) {
        *row = *self;
        row.set_target(&own.reversed());
        row.role = Role(self.role).pair().0;
        row.begin_anew();
    }

    /// True if packets that this row has translated meet another row of the connection: where they leave.
    #[inline(always)]
    pub fn has_next(&self) -> bool {
        self.flags & flags::SNAT != 0 && (self.role == Role::DNAT.0 || self.role == Role::REV_SNAT.0)
    }

    /// The key of the row that packets of `proto` meet next.
    #[inline(always)]
    pub fn next(&self, proto: u8) -> CtKey<A> {
        CtKey::new(&self.target(proto), EGRESS)
    }

    /// Makes `row` the one that packets of this row meet next. They are `own` before. False if too little
    /// is known: this row is of a layout that did not name all ends.
    #[inline(always)]
    pub fn write_next(&self, own: &Tuple<A>, row: &mut Self) -> bool {
        *row = *self;
        row.begin_anew();
        if self.role == Role::DNAT.0 {
            row.role = Role::SNAT.0;
            if self.other_port == 0 {
                row.flags |= flags::SNAT_PENDING;
            } else {
                (row.src, row.sport) = (self.other_addr, self.other_port);
            }
            row.name_frontend(own);
            return true;
        }
        row.role = Role::REV_DNAT.0;
        (row.src, row.sport, row.dport) = (self.other_addr, self.other_port, self.other_client_port);
        row.name_masquerade(own.dst, own.dport);
        self.other_port != 0
    }

    /// What the client sends, of a row behind the frontend whose packets from `client` are of `proto`.
    #[inline(always)]
    pub fn original(&self, client: A, proto: u8) -> Tuple<A> {
        Tuple {
            src: client,
            dst: self.other_addr,
            sport: self.other_client_port,
            dport: self.other_port,
            proto,
        }
    }

    /// Names the frontend, for a row behind it. `original` are the client's packets.
    #[inline(always)]
    pub fn name_frontend(&mut self, original: &Tuple<A>) {
        (self.other_addr, self.other_port, self.other_client_port) =
            (original.dst, original.dport, original.sport);
    }

    /// Names the source that the backend sees, for a row before that.
    #[inline(always)]
    pub fn name_masquerade(&mut self, addr: A, port: u16) {
        (self.other_addr, self.other_port, self.other_client_port) = (addr, port, 0);
    }

    #[inline(always)]
    fn begin_anew(&mut self) {
        self.flags &= flags::SNAT;
        // The connection is open as far as the other row knew; how it ends, packets will tell.
        self.tcp_flags &= ACK;
        (self.packets, self.bytes, self.ticks) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests;
