//! Direct server return, at the backend's node: which of its backends an encapsulated
//! packet may reach.
//!
//! Anybody can send such a packet. It is taken only where it asks for no more than its
//! inner packet could have had without the outer one: an outside client's connection to a
//! frontend that is served so, to one of the frontend's backends on this node.

use core::ffi::c_void;

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    Addr, DropReason, Tuple,
    maps::{
        frontends::{ClientClass, ClientRule, Frontend, FrontendKey, Kind, flags::SOURCE_RANGES},
        slots::SlotRange,
    },
};

use super::select::Choice;
use crate::maps::{self, Tables};

/// Slots looked through for the backend: one for each of the frontend's backends on this node.
const SEARCH: u32 = 65_536;

/// The frontend that the inner packet goes to. A NodePort is asked for under the address
/// of the node that the client reached.
#[inline(always)]
pub fn frontend<A: Tables>(inner: &Tuple<A>) -> Option<&'static Frontend> {
    let mut key = FrontendKey { addr: inner.dst, port: inner.dport, proto: inner.proto, pad: 0 };
    let copy = maps::frontend_room::<A>()?;
    if maps::frontend(&key, copy).is_some() {
        return Some(copy);
    }
    key.addr = A::default();
    maps::frontend(&key, copy).filter(|frontend| frontend.kind == Kind::NODE_PORT.0)
}

/// The backend at `addr`, if `inner` may reach it through `frontend`.
#[inline(always)]
pub fn select<A: Tables>(frontend: &Frontend, inner: &Tuple<A>, addr: &A) -> Result<Choice<A>, DropReason> {
    if !ClientRule::of(frontend.rules, ClientClass::External).has(ClientRule::DSR) {
        return Err(DropReason::UnknownDsrBackend);
    }
    if frontend.flags & SOURCE_RANGES != 0 && !maps::in_source_ranges(frontend.service, &inner.src) {
        return Err(DropReason::SourceNotAllowed);
    }
    let id = find(frontend.local, addr);
    let backend = maps::backend::<A>(id).ok_or(DropReason::UnknownDsrBackend)?;
    Ok(Choice { id, backend, snat: false, dsr: false })
}

struct Search<A> {
    range: SlotRange,
    addr: A,
    /// 0 until it is found.
    backend: u32,
}

#[inline(always)]
fn find<A: Tables>(range: SlotRange, addr: &A) -> u32 {
    let mut search = Search { range, addr: *addr, backend: 0 };
    let rounds = if range.len < SEARCH { range.len } else { SEARCH };
    // SAFETY: the callback is given `search`, which outlives the call.
    unsafe {
        helper::bpf_loop(rounds, compare::<A> as *const () as *mut c_void, (&raw mut search).cast(), 0)
    };
    search.backend
}

/// One round: 1 ends the search.
extern "C" fn compare<A: Tables>(round: u32, search: *mut Search<A>) -> i64 {
    // SAFETY: `find` passes a Search that lives on its stack during the loop.
    let search = unsafe { &mut *search };
    let Some(id) = maps::slot::<A>(search.range.offset.wrapping_add(round)) else { return 1 };
    let Some(backend) = maps::backend::<A>(id) else { return 0 };
    if !equal(&backend.addr, &search.addr) {
        return 0;
    }
    search.backend = id;
    1
}

#[inline(always)]
fn equal<A: Addr>(a: &A, b: &A) -> bool {
    a.words().iter().zip(b.words()).all(|(a, b)| a == b)
}
