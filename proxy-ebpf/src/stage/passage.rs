//! What a packet becomes at a hook once its connection is known: the same for whole packets, for fragments and, but for
//! what is rewritten, for ICMP errors.

use proxy_common::{
    DropReason, Tuple,
    maps::{
        conntrack::{CtEntry, EGRESS, INGRESS, Role},
        fragments::Fate,
    },
    packet::Parsed,
};

use super::{
    encap, nat,
    network::Network,
    output::{self, How, Output},
    select::Refusal,
};
use crate::packet::Packet;

/// What a packet becomes at a hook.
pub struct Passage<A> {
    pub fate: Fate,
    /// The tuple that it has then; for [`Fate::ENCAPSULATE`] its destination is the backend.
    pub target: Tuple<A>,
    /// For [`Fate::TO_HOST`] the interface that takes it, for [`Fate::FROM_HOST`] the one it leaves by.
    pub ifindex: u32,
}

impl<A: Network> Passage<A> {
    /// Of a packet of `proto` that matches the row at `hook`.
    ///
    /// # Errors
    /// When a host process's packet has no way to the backend.
    #[inline(always)]
    pub fn by<P: Packet>(packet: &P, row: &CtEntry<A>, proto: u8, hook: u8) -> Result<Self, DropReason> {
        let target = row.target(proto);
        let (fate, ifindex) = way(packet, row, &target, hook)?;
        Ok(Self { fate, target, ifindex })
    }

    /// Translates the packet, which may be the first fragment of one, and sends it on.
    ///
    /// # Errors
    /// When it cannot be rewritten, or there is no way for it.
    #[inline(always)]
    pub fn take<P: Packet>(&self, packet: &P, parsed: &Parsed<A>, hook: u8) -> Result<Output, Refusal> {
        if self.fate == Fate::PASS {
            return Ok(Output::CONTINUE);
        }
        // The node that the client reached does this before its stack routes the packet.
        if hook == INGRESS && self.fate == Fate::ENCAPSULATE {
            return encap::send(packet, &parsed.transport, &self.target.dst);
        }
        nat::rewrite(packet, parsed, &self.target)?;
        Ok(send(packet, self.fate, self.ifindex, hook)?)
    }
}

/// What becomes of a packet that matches the row at `hook` and goes to `target`, and by which interface: as in [`Passage`].
///
/// # Errors
/// When a host process's packet has no way there.
#[inline(always)]
pub fn way<P: Packet, A: Network>(
    packet: &P,
    row: &CtEntry<A>,
    target: &Tuple<A>,
    hook: u8,
) -> Result<(Fate, u32), DropReason> {
    let fate = Fate::of(Role(row.role));
    // Connections of host processes begin at this hook alone.
    let from_host = hook == EGRESS && fate == Fate::FROM_HOST;
    Ok((fate, if from_host { output::route(packet, target)? } else { row.ifindex }))
}

/// Sends on what has been rewritten.
///
/// # Errors
/// When it cannot be addressed to the interface.
#[inline(always)]
pub fn send<P: Packet>(packet: &P, fate: Fate, ifindex: u32, hook: u8) -> Result<Output, DropReason> {
    if hook == INGRESS && fate == Fate::TO_HOST {
        output::address_to(packet, ifindex)?;
        return Ok(Output::by(How::Receive, ifindex));
    }
    if hook == EGRESS && fate == Fate::FROM_HOST {
        return output::send_by(packet, ifindex);
    }
    Ok(Output::CONTINUE)
}
