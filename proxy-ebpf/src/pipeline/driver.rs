//! Both steps at once, in the driver's hook, for connections that only pass through this
//! node: destination and source are rewritten and the frame is sent on, never seen by the
//! host's stack.
//!
//! The rows are those of the tc programs. Whatever cannot be finished here goes up as it
//! came, and they finish it: the two may take turns within one connection. Nothing is
//! refused here either.

use proxy_common::{
    DropReason, Tuple, flow,
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
        next_hop::{self, Recalled},
        output::{How, Output},
        ports,
        route::{self, Answer},
        snat,
        stray::Stray,
        takeover, transient,
    },
};

/// Rewrites a frame that can be sent on from here. What goes up continues.
#[inline(always)]
pub fn forward<F: Framing, A: Family>(frame: &Frame<F>) -> Output {
    forwarded::<F, A>(frame).unwrap_or(Output::CONTINUE)
}

#[inline(always)]
fn forwarded<F: Framing, A: Family>(frame: &Frame<F>) -> Option<Output> {
    if !parse::<F, A>(frame) {
        return None;
    }
    let macs = frame.read::<Macs>(0)?;
    let role = match next_hop::recall::<F, A>(frame, &macs) {
        Recalled::Sent => Role::DNAT,
        Recalled::Up => return None,
        Recalled::No => find_out::<F, A>(frame, &macs)?,
    };
    let rewritten = match role {
        Role::DSR => encapsulate::<F, A>(frame, &macs),
        _ => rewrite::<F, A>(frame),
    };
    let hop = maps::next_hop::<A>()?;
    Some(match rewritten {
        WHOLE => Output::by(How::Transmit, hop.ifindex),
        SPOILT => Output::DROP,
        _ => Output::CONTINUE,
    })
}

// What rewriting has made of a frame, in numbers, which functions return.
/// It is as it came.
const UNTOUCHED: u32 = 0;
/// It is ready to be sent.
const WHOLE: u32 = 1;
/// It is changed by half, and must not go anywhere.
const SPOILT: u32 = 2;

#[inline(always)]
fn outcome(rewritten: Result<(), DropReason>) -> u32 {
    if rewritten.is_ok() { WHOLE } else { SPOILT }
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
    let matched = Matched(match_row::<F, A>(frame));
    if matched.role() == Role::NONE {
        return None;
    }
    // Also of what goes up: the row knows the flags from here on, so the tc program does not look.
    let parsed = maps::parsed::<A>()?;
    note_end(parsed, &parsed.tuple, INGRESS);
    match matched.role() {
        Role::DSR => {}
        Role::DNAT | Role::REV_SNAT => {
            let epoch = next_hop::epoch();
            let out = route_on::<F, A>(frame, macs, epoch);
            if out == 0 || !follow::<F, A>(frame, out, matched.hash(), epoch) {
                return None;
            }
        }
        _ => return None,
    }
    Some(matched.role())
}

/// The role of the row of a connection, and the hash of a connection that is opened, else 0. In one word, in which
/// functions return it.
#[derive(Clone, Copy)]
struct Matched(u64);

impl Matched {
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
fn match_row<F: Framing, A: Family>(frame: &Frame<F>) -> u64 {
    matched_row::<F, A>(frame).unwrap_or(Matched::NOTHING).0
}

#[inline(always)]
fn matched_row<F: Framing, A: Family>(frame: &Frame<F>) -> Option<Matched> {
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
    Some(Matched::new(Role(entry.role), hash))
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

/// Rewrites the frame to what the room says, and addresses it to the next hop.
#[inline(never)]
fn rewrite<F: Framing, A: Family>(frame: &Frame<F>) -> u32 {
    let (Some(parsed), Some(step), Some(hop)) = (maps::parsed::<A>(), maps::step(), maps::next_hop::<A>())
    else {
        return UNTOUCHED;
    };
    outcome(nat::rewrite(frame, parsed, step).and_then(|()| forward::address::<F, A>(frame, hop)))
}

/// Direct server return: the frame goes inside another to the node of the backend that the room says, which says the next
/// hop then.
#[inline(never)]
fn encapsulate<F: Framing, A: Family>(frame: &Frame<F>, macs: &Macs) -> u32 {
    encapsulated::<F, A>(frame, macs).map_or(UNTOUCHED, outcome)
}

#[inline(always)]
fn encapsulated<F: Framing, A: Family>(frame: &Frame<F>, macs: &Macs) -> Option<Result<(), DropReason>> {
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
    let addressed = forward::address::<F, A>(frame, hop);
    Some(addressed.and_then(|()| encap::encapsulate(frame, node, &step.dst, inner_len)))
}
