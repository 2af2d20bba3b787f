//! Frontend and class of client → backend.

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    DropReason,
    maps::{
        backends::Backend,
        frontends::{ClientClass, ClientRule, Frontend},
    },
};

use crate::maps::{self, Tables};

/// The chosen backend.
pub struct Choice<A: 'static> {
    pub id: u32,
    pub backend: &'static Backend<A>,
    /// The policy hides the client behind the node.
    pub snat: bool,
}

/// Why there is none.
pub enum Refusal {
    /// The client is told at once.
    Reject(DropReason),
    /// Silence.
    Drop(DropReason),
}

#[inline(always)]
pub fn select<A: Tables>(frontend: &Frontend, class: ClientClass) -> Result<Choice<A>, Refusal> {
    let rule = ClientRule::of(frontend.rules, class);
    let range = if rule.has(ClientRule::LOCAL) { frontend.local } else { frontend.cluster };
    if range.len == 0 {
        return Err(if rule.has(ClientRule::DROP) {
            Refusal::Drop(DropReason::NoLocalEndpoint)
        } else {
            Refusal::Reject(DropReason::NoEndpoints)
        });
    }
    // SAFETY: the helper has no preconditions.
    let random = unsafe { helper::bpf_get_prandom_u32() };
    let index = range.offset.wrapping_add(random % range.len);
    let invalid = || Refusal::Drop(DropReason::InvalidMapState);
    let id = maps::slot::<A>(index).ok_or_else(invalid)?;
    let backend = maps::backend::<A>(id).ok_or_else(invalid)?;
    Ok(Choice { id, backend, snat: rule.has(ClientRule::SNAT) })
}
