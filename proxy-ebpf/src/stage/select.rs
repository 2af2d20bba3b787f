//! Frontend and class of client → backend.

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    DropReason,
    maps::{
        affinity::AffinityKey,
        backends::Backend,
        frontends::{ClientClass, ClientRule, Frontend},
        slots::SlotRange,
    },
};

use super::affinity;
use crate::maps::{self, Tables};

/// The chosen backend.
pub struct Choice<A: 'static> {
    pub id: u32,
    pub backend: &'static Backend<A>,
    /// The policy hides the client behind the node.
    pub snat: bool,
}

/// Why a packet or connection goes no further.
pub struct Refusal {
    pub reason: DropReason,
    /// The client is told at once; else there is silence.
    pub reject: bool,
}

impl Refusal {
    #[inline(always)]
    pub fn reject(reason: DropReason) -> Self {
        Self { reason, reject: true }
    }
}

/// What goes wrong on the way is met with silence.
impl From<DropReason> for Refusal {
    #[inline(always)]
    fn from(reason: DropReason) -> Self {
        Self { reason, reject: false }
    }
}

/// `client` is whom affinity goes by.
#[inline(always)]
pub fn select<A: Tables>(frontend: &Frontend, class: ClientClass, client: &A) -> Result<Choice<A>, Refusal> {
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
    let invalid = || Refusal::from(DropReason::InvalidMapState);
    let key = AffinityKey { client: *client, service: frontend.service };
    let sticks = frontend.affinity_secs != 0;
    let recalled = if sticks { affinity::recall(&key, frontend.affinity_secs, range) } else { None };
    let slot = recalled.unwrap_or_else(|| draw(range));
    let id = maps::slot::<A>(slot).ok_or_else(invalid)?;
    let backend = maps::backend::<A>(id).ok_or_else(invalid)?;
    if sticks && recalled.is_none() {
        affinity::note(&key, id, slot);
    }
    Ok(Choice { id, backend, snat: rule.has(ClientRule::SNAT) })
}

/// Any slot of the range, each with the same chance.
#[inline(always)]
fn draw(range: SlotRange) -> u32 {
    // SAFETY: the helper has no preconditions.
    let random = unsafe { helper::bpf_get_prandom_u32() };
    range.offset.wrapping_add(random % range.len)
}
