//! Frontend and class of client → backend.

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    DropReason, Tuple, hash,
    maps::{
        backends::{self, Backend},
        frontends::{ClientClass, ClientRule, Frontend, flags},
        slots::SlotRange,
    },
};

use crate::maps::{self, Tables};

/// The chosen backend.
pub struct Choice<A: 'static> {
    pub id: u32,
    pub backend: &'static Backend<A>,
    /// The policy hides the client behind the node.
    pub snat: bool,
    /// The backend's node is to answer the client itself.
    pub dsr: bool,
}

/// Why a packet or connection goes no further.
#[repr(C)]
pub struct Refusal {
    pub reason: DropReason,
    /// The client is told at once; else there is silence.
    pub reject: bool,
    /// The client is told the size that fits, unless it is 0.
    pub mtu: u32,
    /// The service that was asked for, 0 if none is known.
    pub service: u32,
}

impl Refusal {
    #[inline(always)]
    pub fn reject(reason: DropReason) -> Self {
        Self { reason, reject: true, mtu: 0, service: 0 }
    }

    #[inline(always)]
    pub fn too_big(mtu: u32) -> Self {
        Self { reason: DropReason::PacketTooBig, reject: true, mtu, service: 0 }
    }

    /// The same, of a service.
    #[inline(always)]
    pub fn of(self, service: u32) -> Self {
        Self { service, ..self }
    }
}

/// What goes wrong on the way is met with silence.
impl From<DropReason> for Refusal {
    #[inline(always)]
    fn from(reason: DropReason) -> Self {
        Self { reason, reject: false, mtu: 0, service: 0 }
    }
}

/// The slots that a client may be led to, and how.
pub struct Candidates {
    rule: ClientRule,
    range: SlotRange,
}

/// What the policies leave of a frontend's backends.
#[inline(always)]
pub fn candidates(frontend: &Frontend, class: ClientClass) -> Result<Candidates, Refusal> {
    let rule = ClientRule::of(frontend.rules, class);
    if rule.has(ClientRule::DENY) {
        return Err(DropReason::SourceNotAllowed.into());
    }
    let range = if rule.has(ClientRule::LOCAL) { frontend.local } else { frontend.cluster };
    if range.len == 0 {
        return Err(if rule.has(ClientRule::DROP) {
            DropReason::NoLocalEndpoint.into()
        } else {
            Refusal::reject(DropReason::NoEndpoints)
        });
    }
    Ok(Candidates { rule, range })
}

/// The same where nothing is refused: the slots of a client whose connection is open already.
#[inline(always)]
pub fn range(frontend: &Frontend, class: ClientClass) -> Option<SlotRange> {
    candidates(frontend, class).ok().map(|candidates| candidates.range)
}

/// `draw` is a number that decides among the slots; with session affinity `settle` says the backend's number, of
/// these and that number.
#[inline(always)]
pub fn select<A: Tables>(
    frontend: &Frontend,
    candidates: Candidates,
    draw: u32,
    settle: impl FnOnce(SlotRange, u32) -> u32,
) -> Result<Choice<A>, Refusal> {
    let Candidates { rule, range } = candidates;
    let invalid = || Refusal::from(DropReason::InvalidMapState);
    let id = if frontend.affinity_secs != 0 {
        settle(range, draw)
    } else {
        maps::slot::<A>(range.index(draw)).ok_or_else(invalid)?
    };
    let backend = maps::named_backend::<A>(id).ok_or_else(invalid)?;
    let dsr = rule.has(ClientRule::DSR) && backend.flags & backends::flags::LOCAL == 0;
    Ok(Choice { id, backend, snat: rule.has(ClientRule::SNAT), dsr })
}

/// The number that decides where a connection goes: its `hash`, which nobody but this node can tell, or,
/// where every node is to decide alike, one of what the packet says. A NodePort's connections come to
/// different addresses, so the destination's does not count.
#[inline(always)]
pub fn draw<A: Tables>(frontend: &Frontend, tuple: &Tuple<A>, hash: u32) -> u32 {
    if frontend.flags & flags::MAGLEV == 0 {
        return hash;
    }
    if frontend.affinity_secs != 0 {
        return hash::words(tuple.src.words(), 0, 0);
    }
    hash::words(tuple.src.words(), u32::from(tuple.sport) << 16 | u32::from(tuple.dport), tuple.proto)
}

/// Any number, each with the same chance.
#[inline(always)]
pub fn chance() -> u32 {
    // SAFETY: the helper has no preconditions.
    unsafe { helper::bpf_get_prandom_u32() }
}
