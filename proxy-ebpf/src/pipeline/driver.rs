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
        conntrack::{EGRESS, INGRESS, Role, flags},
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
        nat,
        next_hop::{self, Known},
        ports,
        route::{self, Answer},
        snat,
        stray::Stray,
        takeover, transient,
    },
};

/// What became of a frame. In one word, in which functions return it.
#[derive(Clone, Copy)]
pub struct Forwarded(u64);

impl Forwarded {
    const UP: Self = Self(0);
    const SPOILT: Self = Self(u64::MAX);

    /// Sent by `ifindex`, if the rewriting went well.
    #[inline(always)]
    fn by(ifindex: u32, rewritten: bool) -> Self {
        if rewritten { Self(ifindex.into()) } else { Self::SPOILT }
    }

    /// The device it leaves by, 0 if it goes up.
    #[inline(always)]
    pub fn ifindex(self) -> u32 {
        self.0 as u32
    }

    /// It is changed by half and must not go anywhere.
    #[inline(always)]
    pub fn is_spoilt(self) -> bool {
        self.0 == Self::SPOILT.0
    }
}

/// Rewrites a frame that can be sent on from here.
#[inline(always)]
pub fn forward<F: Framing, A: Family>(frame: &Frame<F>) -> Forwarded {
    forwarded::<F, A>(frame).unwrap_or(Forwarded::UP)
}

#[inline(always)]
fn forwarded<F: Framing, A: Family>(frame: &Frame<F>) -> Option<Forwarded> {
    if !parse::<F, A>(frame) {
        return None;
    }
    let macs = frame.read::<Macs>(0)?;
    let role = match next_hop::recall::<F, A>(frame, &macs) {
        Known::Sent => Role::DNAT,
        Known::Up => return None,
        Known::No => find_out::<F, A>(frame, &macs)?,
    };
    if role == Role::DSR {
        return Some(Forwarded(encapsulate::<F, A>(frame, &macs)));
    }
    let hop = maps::next_hop::<A>()?;
    Some(Forwarded::by(hop.ifindex, rewrite::<F, A>(frame)))
}

/// Parses a frame that may be a connection's and has a hop to go. False if it goes up.
///
/// Not inlined, like the steps that follow: the stack has no room for all side by side.
#[inline(never)]
fn parse<F: Framing, A: Family>(frame: &Frame<F>) -> bool {
    let Some(transport) = A::transport(frame).filter(|t| !t.is_fragment()) else { return false };
    let ports = may_enter(&transport).with_rows();
    if ports.is_none() {
        return false;
    }
    let has_hops = A::hops(frame).is_some_and(|hops| hops > 1);
    super::parsed(frame, transport).is_some_and(|parsed: &Parsed<A>| has_hops && ports.include(parsed))
}

/// The role of a frame's connection, of which the room says then what the frame becomes. Where it is translated, it also
/// says the next hop.
#[inline(always)]
fn find_out<F: Framing, A: Family>(frame: &Frame<F>, macs: &Macs) -> Option<Role> {
    // A bridge floods frames to others to everybody.
    if maps::device(frame.ifindex()).is_none_or(|device| device.mac != macs.dst) {
        return None;
    }
    let found = Found(find_entry::<F, A>(frame));
    if found.role() == Role::NONE {
        return None;
    }
    // Also of what goes up: the row knows the flags from here on, so the tc program does not look.
    let parsed = maps::parsed::<A>()?;
    note_end(parsed, &parsed.tuple, INGRESS);
    match found.role() {
        Role::DSR => {}
        Role::DNAT | Role::REV_SNAT => {
            let epoch = next_hop::epoch();
            let out = route_on::<F, A>(frame, macs, epoch);
            if out == 0 || !follow::<F, A>(frame, out, found.hash(), epoch) {
                return None;
            }
        }
        _ => return None,
    }
    Some(found.role())
}

/// The role of the row of a connection, and the hash of a connection that is opened, else 0. In one word, in which
/// functions return it.
#[derive(Clone, Copy)]
struct Found(u64);

impl Found {
    const NOTHING: Self = Self::new(Role::NONE, 0);

    #[inline(always)]
    const fn new(role: Role, hash: u32) -> Self {
        Self((role.0 as u64) << 32 | hash as u64)
    }

    #[inline(always)]
    fn role(self) -> Role {
        Role((self.0 >> 32) as u8)
    }

    #[inline(always)]
    fn hash(self) -> u32 {
        self.0 as u32
    }
}

/// Finds the row of a frame's connection, or opens one; the room says then what the packet becomes by it. What is in
/// the middle of a connection that has no rows is the tc program's to judge, as is a refusal: it counts and answers.
#[inline(never)]
fn find_entry<F: Framing, A: Family>(frame: &Frame<F>) -> u64 {
    entry_of::<F, A>(frame).unwrap_or(Found::NOTHING).0
}

#[inline(always)]
fn entry_of<F: Framing, A: Family>(frame: &Frame<F>) -> Option<Found> {
    let parsed = maps::parsed::<A>()?;
    // It may go up yet, where it is counted.
    let arrival = Arrival::uncounted(frame, Hook::XDP);
    let found = conntrack::find::<_, A>(frame, &arrival, INGRESS).ok()?;
    let (entry, hash) = if let Some(entry) = found {
        (entry, 0)
    } else {
        if takeover::is_netfilters(parsed) || !parsed.opens() {
            return None;
        }
        let frontend = frontend_of_packet::<A>().ok()??;
        let hash = ports::hash(&parsed.tuple);
        (open::connect(&arrival, parsed, frontend, Stray::Opens, hash).ok()?, hash)
    };
    *maps::step()? = entry.target(parsed.tuple.proto);
    Some(Found::new(Role(entry.role), hash))
}

/// If the frame may end its connection. It is `own` at `hook`.
#[inline(always)]
fn note_end<A: Family>(parsed: &Parsed<A>, own: &Tuple<A>, hook: u8) {
    if flow::ends(parsed.tcp_flags) {
        transient::note_end(own, parsed.tcp_flags, hook);
    }
}

/// Where the stack would send the packet that the room says, which says the next hop then. The device of the route; 0 if
/// the frame goes up.
#[inline(never)]
fn route_on<F: Framing, A: Family>(frame: &Frame<F>, macs: &Macs, epoch: u32) -> u32 {
    let (Some(step), Some(hop)) = (maps::step::<A>(), maps::next_hop::<A>()) else { return 0 };
    let route = route::find(frame, step, next_hop::ip_len(frame) as u16);
    *hop = forward::next_hop(frame, macs, &route);
    if hop.ifindex != 0 {
        return route.ifindex;
    }
    (hop.src, hop.dst, hop.mtu) = ([0; 6], [0; 6], 0);
    // That the next hop is not known yet, or a packet is too large, says nothing of those that follow.
    if matches!(route.answer, Answer::Reachable | Answer::None) {
        next_hop::remember_up::<A>(epoch);
    }
    0
}

/// What the egress program of the device `out` would make of the packet that the room says. `hash` is that of its
/// connection if it opens one, else 0. False if the frame goes up.
#[inline(never)]
fn follow<F: Framing, A: Family>(frame: &Frame<F>, out: u32, hash: u32, epoch: u32) -> bool {
    followed::<F, A>(frame, out, hash, epoch).is_some()
}

#[inline(always)]
fn followed<F: Framing, A: Family>(frame: &Frame<F>, out: u32, hash: u32, epoch: u32) -> Option<()> {
    let (parsed, step) = (maps::parsed::<A>()?, maps::step::<A>()?);
    let next = conntrack::follow::<A>(EGRESS, parsed.tcp_flags, next_hop::ip_len(frame)).ok()?;
    if let Some(row) = next {
        note_end(parsed, step, EGRESS);
        let row = match row.flags & flags::SNAT_PENDING {
            0 => row,
            // No port or no address: the tc program will not find one either, and says so.
            _ if hash != 0 => snat::complete(row, step, out, hash).ok()?,
            _ => return None,
        };
        *step = row.target(parsed.tuple.proto);
    }
    if hash != 0 {
        next_hop::count_first::<F, A>(frame);
    } else {
        next_hop::remember::<F, A>(frame, epoch);
    }
    Some(())
}

/// Rewrites the frame to what the room says, and addresses it to the next hop. False if it is changed by half.
#[inline(never)]
fn rewrite<F: Framing, A: Family>(frame: &Frame<F>) -> bool {
    let (Some(parsed), Some(step), Some(hop)) = (maps::parsed::<A>(), maps::step(), maps::next_hop::<A>())
    else {
        return false;
    };
    nat::rewrite(frame, parsed, step).is_ok() && forward::address::<F, A>(frame, hop).is_ok()
}

/// Direct server return: the frame goes inside another to the node of the backend that the room says.
#[inline(never)]
fn encapsulate<F: Framing, A: Family>(frame: &Frame<F>, macs: &Macs) -> u64 {
    encapsulated::<F, A>(frame, macs).unwrap_or(Forwarded::UP).0
}

#[inline(always)]
fn encapsulated<F: Framing, A: Family>(frame: &Frame<F>, macs: &Macs) -> Option<Forwarded> {
    let (parsed, step, hop) = (maps::parsed::<A>()?, maps::step::<A>()?, maps::next_hop::<A>()?);
    let epoch = next_hop::epoch();
    let inner_len = encap::inner_len::<Frame<F>, A>(&parsed.transport);
    let route = encap::route(frame, &step.dst, inner_len);
    let node = snat::address::<A>(route.ifindex).ok()?;
    *hop = forward::next_hop(frame, macs, &route);
    if hop.ifindex == 0 {
        return None;
    }
    next_hop::remember::<F, A>(frame, epoch);
    let rewritten = forward::address::<F, A>(frame, hop).is_ok()
        && encap::encapsulate(frame, &node, &step.dst, inner_len).is_ok();
    Some(Forwarded::by(hop.ifindex, rewritten))
}
