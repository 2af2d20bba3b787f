//! Both steps at once, in the driver's hook, for connections that only pass through this
//! node: destination and source are rewritten and the frame is sent on, never seen by the
//! host's stack.
//!
//! The rows are those of the tc programs. Whatever cannot be finished here goes up as it
//! came, and they finish it: the two may take turns within one connection. Nothing is
//! refused here either.

use proxy_common::{
    Tuple, flow,
    maps::{
        conntrack::{CtEntry, EGRESS, INGRESS, Role, flags},
        events::Hook,
    },
    packet::{Bytes as _, Parsed, headers::Macs},
};

use super::{Family, open};
use crate::{
    maps,
    packet::{Frame, Framing, Packet as _},
    stage::{
        conntrack::{self, Arrival},
        encap, forward,
        lookup::{frontend_of_packet, may_enter},
        nat, ports, route, snat,
        stray::Stray,
        takeover, transient,
    },
};

/// What became of a frame.
pub struct Forwarded {
    /// The device it leaves by, 0 if it goes up.
    pub ifindex: u32,
    /// It is changed by half and must not go anywhere.
    pub spoilt: bool,
}

impl Forwarded {
    const UP: Self = Self { ifindex: 0, spoilt: false };

    /// Sent by `ifindex`, if the rewriting went well.
    #[inline(always)]
    fn by(ifindex: u32, rewritten: bool) -> Self {
        Self { ifindex, spoilt: !rewritten }
    }
}

/// Rewrites a frame that can be sent on from here.
#[inline(always)]
pub fn forward<F: Framing, A: Family>(frame: &Frame<F>) -> Forwarded {
    let Some(transport) = A::transport(frame).filter(|t| !t.is_fragment()) else { return Forwarded::UP };
    let ports = may_enter(&transport).to_frontends();
    if ports.is_none() {
        return Forwarded::UP;
    }
    let Some(parsed) = super::parsed(frame, transport) else { return Forwarded::UP };
    if !ports.include(parsed) || !is_forwarded::<F, A>(frame) {
        return Forwarded::UP;
    }
    // A refusal is the tc program's to make: it counts and answers.
    let Some((entry, hash)) = entry_of(frame, parsed) else { return Forwarded::UP };
    let target = entry.target(parsed.tuple.proto);
    let role = Role(entry.role);
    note_end(parsed, &parsed.tuple, INGRESS);
    match role {
        Role::DSR => encapsulate(frame, parsed, &target),
        Role::DNAT | Role::REV_SNAT => translate(frame, parsed, &target, hash),
        _ => Forwarded::UP,
    }
}

/// Finds the row of a frame's connection, or opens one. What is in the middle of a connection that has no rows
/// is the tc program's to judge. Also returns the hash of a connection that is opened, else 0.
#[inline(always)]
fn entry_of<F: Framing, A: Family>(
    frame: &Frame<F>,
    parsed: &Parsed<A>,
) -> Option<(&'static CtEntry<A>, u32)> {
    let arrival = Arrival::at(frame, Hook::XDP);
    if let Some(row) = conntrack::find(frame, &arrival, INGRESS).ok()? {
        return Some((row, 0));
    }
    if takeover::is_netfilters(parsed) || !parsed.opens() {
        return None;
    }
    let frontend = frontend_of_packet::<A>().ok()??;
    let hash = ports::hash(&parsed.tuple);
    open::connect(&arrival, parsed, frontend, Stray::Opens, hash).ok().map(|row| (row, hash))
}

/// Whether the stack would forward the frame at all: it is addressed to this device, and has a
/// hop to go. A bridge floods other frames to everybody.
#[inline(always)]
fn is_forwarded<F: Framing, A: Family>(frame: &Frame<F>) -> bool {
    let ours = |macs: Macs| maps::device(frame.ifindex()).is_some_and(|device| device.mac == macs.dst);
    frame.read::<Macs>(0).is_some_and(ours) && A::hops(frame).is_some_and(|hops| hops > 1)
}

/// If the frame may end its connection. It is `own` at `hook`.
#[inline(always)]
fn note_end<A: Family>(parsed: &Parsed<A>, own: &Tuple<A>, hook: u8) {
    if flow::ends(parsed.tcp_flags) {
        transient::note_end(own, parsed.tcp_flags, hook);
    }
}

/// What the stack and the egress program would make of a packet that has become `entered`. `hash` is that
/// of its connection if it opens one, else 0.
#[inline(always)]
fn translate<F: Framing, A: Family>(
    frame: &Frame<F>,
    parsed: &Parsed<A>,
    entered: &Tuple<A>,
    hash: u32,
) -> Forwarded {
    let route = route::find(frame, entered, (frame.len() - F::L2_LEN as u32) as u16);
    let way = forward::way(frame, &route);
    if way.ifindex == 0 {
        return Forwarded::UP;
    }
    let mut last = *entered;
    let arrival = Arrival::at(frame, Hook::XDP);
    let Ok(row) = conntrack::follow(&arrival, entered, EGRESS, parsed.tcp_flags) else {
        return Forwarded::UP;
    };
    if let Some(row) = row {
        note_end(parsed, entered, EGRESS);
        if row.flags & flags::SNAT_PENDING == 0 {
            last = row.target(entered.proto);
        } else if hash == 0 {
            return Forwarded::UP;
        } else if let Ok(row) = snat::complete(row, entered, route.ifindex, hash) {
            last = row.target(entered.proto);
        } else {
            // No port or no address: the tc program will not find one either, and says so.
            return Forwarded::UP;
        }
    }
    let rewritten =
        nat::rewrite(frame, parsed, &last).is_ok() && forward::address::<F, A>(frame, &route, way).is_ok();
    Forwarded::by(way.ifindex, rewritten)
}

/// Direct server return: the frame goes to the backend's node inside another.
#[inline(always)]
fn encapsulate<F: Framing, A: Family>(frame: &Frame<F>, parsed: &Parsed<A>, target: &Tuple<A>) -> Forwarded {
    let inner_len = encap::inner_len::<Frame<F>, A>(&parsed.transport);
    let route = encap::route(frame, &target.dst, inner_len);
    let way = forward::way(frame, &route);
    let Ok(node) = snat::address::<A>(route.ifindex) else { return Forwarded::UP };
    if way.ifindex == 0 {
        return Forwarded::UP;
    }
    let rewritten = forward::address::<F, A>(frame, &route, way).is_ok()
        && encap::encapsulate(frame, &node, &target.dst, inner_len).is_ok();
    Forwarded::by(way.ifindex, rewritten)
}
