//! `tails`: program array, the programs that the fast ones go on in when a packet is not plain
//! TCP, UDP or SCTP. Each has a stack and a verifier budget of its own.
//!
//! A program array keeps its entries as long as it is pinned, so they outlive the agent as the
//! attached programs do.

/// Entries of the array. More than there are programs, so that a program added later does not
/// change the map.
pub const CAPACITY: u32 = 64;

macro_rules! tails {
    ($($(#[$doc:meta])+ $variant:ident = $number:literal, $ethernet:literal, $layer3:literal;)+) => {
        /// A program that others go on in.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Tail {
            $($(#[$doc])+ $variant = $number,)+
        }

        impl Tail {
            /// Every one of them.
            pub const ALL: &'static [Tail] = &[$(Tail::$variant,)+];

            /// Name of the program, for devices with an Ethernet header or without.
            pub fn program(self, ethernet: bool) -> &'static str {
                match self { $(Tail::$variant => if ethernet { $ethernet } else { $layer3 },)+ }
            }
        }
    };
}

tails! {
    /// ICMP that enters the host's stack.
    InIcmp = 0, "shunt_in_icmp", "shunt_in_icmp_l3";
    /// ICMP that leaves the host's stack.
    OutIcmp = 1, "shunt_out_icmp", "shunt_out_icmp_l3";
    /// A fragment that enters the host's stack.
    InFragment = 2, "shunt_in_fragment", "shunt_in_fragment_l3";
    /// A fragment that leaves the host's stack.
    OutFragment = 3, "shunt_out_fragment", "shunt_out_fragment_l3";
    /// A packet inside another that enters the host's stack.
    InDsr = 4, "shunt_in_dsr", "shunt_in_dsr_l3";
    /// A packet that begins anew, or that was inside another, enters the host's stack.
    In = 5, "shunt_in", "shunt_in_l3";
    /// A packet that is not translated, but may meet rows of others, enters the host's stack.
    InDirect = 6, "shunt_in_direct", "shunt_in_direct_l3";
    /// Such a packet leaves the host's stack.
    OutDirect = 7, "shunt_out_direct", "shunt_out_direct_l3";
    /// A packet that begins anew leaves the host's stack.
    Out = 8, "shunt_out", "shunt_out_l3";
    /// A packet whose connection has lost rows enters the host's stack.
    InLost = 9, "shunt_in_lost", "shunt_in_lost_l3";
    /// Such a packet leaves the host's stack.
    OutLost = 10, "shunt_out_lost", "shunt_out_lost_l3";
    /// A packet that no row is for, and that may open a connection, enters the host's stack.
    InOpen = 11, "shunt_in_open", "shunt_in_open_l3";
    /// Such a packet leaves the host's stack, or the first one of a masqueraded connection.
    OutOpen = 12, "shunt_out_open", "shunt_out_open_l3";
    /// A packet is refused that entered the host's stack.
    InRefuse = 13, "shunt_in_refuse", "shunt_in_refuse_l3";
    /// A packet is refused that left the host's stack.
    OutRefuse = 14, "shunt_out_refuse", "shunt_out_refuse_l3";
    /// A packet that may end its connection enters the host's stack.
    InEnd = 15, "shunt_in_end", "shunt_in_end_l3";
    /// Such a packet leaves the host's stack.
    OutEnd = 16, "shunt_out_end", "shunt_out_end_l3";
}

impl Tail {
    /// Position in the array.
    #[inline(always)]
    pub const fn index(self, ethernet: bool) -> u32 {
        self as u32 * 2 + if ethernet { 0 } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_place_and_a_name_of_its_own() {
        let all = || Tail::ALL.iter().flat_map(|tail| [(*tail, true), (*tail, false)]);
        let places: std::collections::HashSet<_> = all().map(|(t, ethernet)| t.index(ethernet)).collect();
        let names: std::collections::HashSet<_> = all().map(|(t, ethernet)| t.program(ethernet)).collect();
        assert_eq!((places.len(), names.len()), (all().count(), all().count()));
        assert!(places.iter().all(|place| *place < CAPACITY));
    }
}
