//! What is told to `shunt trace`: connections that are opened, and refusals, while somebody
//! listens. Nothing is told of packets that only follow.

use core::ffi::c_void;

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, generated as helper};
use proxy_common::{
    DropReason, Tuple,
    maps::{
        conntrack::CtEntry,
        events::{Event, Hook, What},
    },
};

use super::{
    conntrack::{Arrival, now},
    create::Owner,
    select::chance,
};
use crate::maps::{self, Tables};

/// A connection was opened: packets `from` become what the row says. `flags` are those of
/// events.
#[inline(always)]
pub fn opened<A: Tables>(arrival: &Arrival, from: &Tuple<A>, row: &CtEntry<A>, flags: u8) {
    tell(Owner { service: row.service, backend: row.backend, kind: row.kind }, |event| {
        event.what = What::OPENED.0;
        (event.hook, event.ifindex, event.flags) = (arrival.hook.0, arrival.ifindex, flags);
        event.set_from(from);
        event.set_to(&row.target(from.proto));
    });
}

/// A connection, opened before, got the source it leaves with.
#[inline(always)]
pub fn masqueraded<A: Tables>(ifindex: u32, from: &Tuple<A>, to: &Tuple<A>, owner: Owner) {
    tell(owner, |event| {
        (event.what, event.hook, event.ifindex) = (What::MASQUERADED.0, Hook::EGRESS.0, ifindex);
        event.set_from(from);
        event.set_to(to);
    });
}

/// A program's call that a socket hook looks at.
pub struct Call {
    pub hook: Hook,
    /// The program's context.
    pub ctx: *mut c_void,
}

/// A socket was given a backend in place of a frontend.
#[inline(always)]
pub fn translated<A: Tables>(call: &Call, from: &Tuple<A>, to: &Tuple<A>, owner: Owner) {
    tell(owner, |event| {
        event.what = What::OPENED.0;
        note_call(event, call);
        event.set_from(from);
        event.set_to(to);
    });
}

/// A call was made to fail.
#[inline(always)]
pub fn turned_away<A: Tables>(call: &Call, from: &Tuple<A>, service: u32, reason: DropReason) {
    tell(Owner { service, backend: 0, kind: 0 }, |event| {
        (event.what, event.reason) = (What::REFUSED.0, reason as u32);
        note_call(event, call);
        event.set_from(from);
    });
}

#[inline(always)]
fn note_call(event: &mut Event, call: &Call) {
    event.hook = call.hook.0;
    // SAFETY: socket hooks have this helper, and give their context.
    event.cookie = unsafe { helper::bpf_get_socket_cookie(call.ctx) };
    event.pid = (bpf_get_current_pid_tgid() >> 32) as u32;
}

/// A packet was refused.
#[inline(always)]
pub fn refused<A: Tables>(arrival: &Arrival, from: &Tuple<A>, service: u32, reason: DropReason) {
    tell(Owner { service, backend: 0, kind: 0 }, |event| {
        (event.what, event.hook, event.ifindex) = (What::REFUSED.0, arrival.hook.0, arrival.ifindex);
        event.reason = reason as u32;
        event.set_from(from);
    });
}

#[inline(always)]
fn tell(owner: Owner, describe: impl FnOnce(&mut Event)) {
    if !is_heard(owner.service) {
        return;
    }
    let Some(mut entry) = maps::reserve_event() else { return };
    // SAFETY: the room is an event's, and zeroes are an event.
    let event = unsafe {
        core::ptr::write_bytes(entry.as_mut_ptr(), 0, 1);
        entry.assume_init_mut()
    };
    event.time = now();
    (event.service, event.backend, event.kind) = (owner.service, owner.backend, owner.kind);
    describe(event);
    entry.submit(0);
}

#[inline(always)]
fn is_heard(service: u32) -> bool {
    let Some(trace) = maps::trace() else { return false };
    if trace.until == 0 || trace.service != 0 && trace.service != service || now() >= trace.until {
        return false;
    }
    trace.one_in < 2 || chance().is_multiple_of(trace.one_in)
}
