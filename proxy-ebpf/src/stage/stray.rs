//! Packets to a frontend that no row is for, in the middle of a connection.

use proxy_common::{
    DropReason,
    maps::{
        frontends::{Frontend, flags::MAGLEV},
        settings::flags::{HANDOVER, LOOSE},
    },
    packet::{Parsed, headers::tcp_flags::SYN},
};

use super::select::Refusal;
use crate::maps::{self, Tables};

/// What becomes of a packet to a frontend that no row is for.
#[derive(Clone, Copy, PartialEq)]
pub enum Stray {
    /// It may open a connection.
    Opens,
    /// It goes on as it came.
    GoesOn,
    /// It begins a reply to somebody else, all of which goes on as it came.
    Reply,
    /// At an address that is a service's alone there is nobody else: the client is refused, as by a host
    /// that knows nothing of a connection.
    Refused,
}

impl Stray {
    /// Refuses it where policy would have let it in.
    #[inline(always)]
    pub fn admit(self) -> Result<(), Refusal> {
        if self == Self::Refused { Err(Refusal::reject(DropReason::NoConnection)) } else { Ok(()) }
    }
}

/// Judges a packet that no row is for.
///
/// At an address of the host it may be a reply to somebody else: netfilter and other NATs take source
/// ports that are NodePorts, too. While maps are replaced, its row may be in the other ones. With Maglev
/// another node may have had the connection until now, and this one finds the same backend; a reply is
/// told from that by how it begins.
#[inline(always)]
pub fn judge<A: Tables>(parsed: &Parsed<A>, frontend: &Frontend) -> Stray {
    if parsed.opens() {
        return Stray::Opens;
    }
    let flags = maps::settings().map_or(0, |settings| settings.flags);
    if flags & LOOSE != 0 {
        return Stray::Opens;
    }
    if flags & HANDOVER != 0 {
        return Stray::GoesOn;
    }
    let is_maglev = frontend.flags & MAGLEV != 0;
    if parsed.tcp_flags & SYN == 0 && is_maglev {
        return Stray::Opens;
    }
    if maps::node_address(&parsed.tuple.dst).is_none() {
        return Stray::Refused;
    }
    if is_maglev { Stray::Reply } else { Stray::GoesOn }
}
