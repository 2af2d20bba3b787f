//! The rows of one connection, each by another.

use crate::{
    addr::Addr,
    maps::conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, flags, opposite},
    packet::headers::tcp_flags::ACK,
    tuple::Tuple,
};

/// Keys of a row's other rows. Field by field, as in [`CtKey::set`].
impl<A: Addr> CtKey<A> {
    /// Of the row that packets of the other direction meet, which become what the packets of `row` at
    /// `hook` are.
    #[inline(always)]
    pub fn set_pair(&mut self, row: &CtEntry<A>, proto: u8, hook: u8) {
        self.src = row.dst;
        self.dst = row.src;
        (self.sport, self.dport) = (row.dport, row.sport);
        self.set_place(proto, opposite(hook));
    }

    /// Of the row that packets meet next which have become what `row` makes of them.
    #[inline(always)]
    pub fn set_next(&mut self, row: &CtEntry<A>, proto: u8) {
        self.src = row.src;
        self.dst = row.dst;
        (self.sport, self.dport) = (row.sport, row.dport);
        self.set_place(proto, EGRESS);
    }

    /// Of the row that the client's own packets meet. `reply` is a row behind the frontend, whose packets
    /// become those to the client.
    #[inline(always)]
    pub fn set_first(&mut self, reply: &CtEntry<A>, proto: u8) {
        self.set_original(reply, reply.dst, proto);
    }

    /// Of the row that the own packets of `client` meet. `row` is one behind the frontend.
    #[inline(always)]
    pub fn set_original(&mut self, row: &CtEntry<A>, client: A, proto: u8) {
        self.src = client;
        self.dst = row.other_addr;
        (self.sport, self.dport) = (row.other_client_port, row.other_port);
        self.set_place(proto, INGRESS);
    }

    /// Of the row that replies to the masquerade meet. `first` is the row that the client's packets meet, `next` the
    /// one that they meet then. One of the two tells.
    #[inline(always)]
    pub fn set_next_pair(&mut self, first: &CtEntry<A>, next: Option<&CtEntry<A>>, proto: u8) {
        self.src = first.dst;
        self.sport = first.dport;
        (self.dst, self.dport) = match next {
            Some(next) => (next.src, next.sport),
            None => (first.other_addr, first.other_port),
        };
        self.set_place(proto, INGRESS);
    }

    /// Of the row of the other direction where packets leave that are not translated before.
    #[inline(always)]
    pub fn set_reversed(&mut self, other: &Self) {
        self.src = other.dst;
        self.dst = other.src;
        self.sport = other.dport;
        self.dport = other.sport;
        self.set_place(other.proto, EGRESS);
    }

    #[inline(always)]
    fn set_place(&mut self, proto: u8, hook: u8) {
        (self.proto, self.hook, self.pad) = (proto, hook, 0);
    }

    /// True if `row` undoes what the row of this key does.
    #[inline(always)]
    pub fn is_undone_by(&self, row: &CtEntry<A>) -> bool {
        row.sport == self.dport && row.dport == self.sport && row.src == self.dst && row.dst == self.src
    }
}

impl<A: Addr> CtEntry<A> {
    /// The key of the row that packets of the other direction meet: [`CtKey::set_pair`].
    #[inline(always)]
    pub fn pair(&self, proto: u8, hook: u8) -> CtKey<A> {
        let mut key = CtKey::default();
        key.set_pair(self, proto, hook);
        key
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

    /// The key of the row that packets of `proto` meet next: [`CtKey::set_next`].
    #[inline(always)]
    pub fn next(&self, proto: u8) -> CtKey<A> {
        let mut key = CtKey::default();
        key.set_next(self, proto);
        key
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
                row.src = self.other_addr;
                row.sport = self.other_port;
            }
            row.name_frontend(own);
            return true;
        }
        row.role = Role::REV_DNAT.0;
        row.src = self.other_addr;
        row.sport = self.other_port;
        row.dport = self.other_client_port;
        row.name_masquerade(own.dst, own.dport);
        self.other_port != 0
    }

    /// Makes `last` what packets of `proto` are in the end that this row meets first, if nothing comes in between. False
    /// if too little is known.
    #[inline(always)]
    pub fn write_last(&self, proto: u8, last: &mut Tuple<A>) -> bool {
        if self.role == Role::REV_SNAT.0 {
            *last = Tuple {
                src: self.other_addr,
                dst: self.dst,
                sport: self.other_port,
                dport: self.other_client_port,
                proto,
            };
            return self.other_port != 0;
        }
        *last = self.target(proto);
        if !self.has_next() {
            return self.role == Role::DNAT.0;
        }
        (last.src, last.sport) = (self.other_addr, self.other_port);
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
        self.other_addr = original.dst;
        self.other_port = original.dport;
        self.other_client_port = original.sport;
    }

    /// Names the source that the backend sees, for a row before that.
    #[inline(always)]
    pub fn name_masquerade(&mut self, addr: A, port: u16) {
        self.other_addr = addr;
        self.other_port = port;
        self.other_client_port = 0;
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
