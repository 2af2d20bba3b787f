//! Finds the first row of a connection by its others, of which only the packet is known: where a new
//! connection with its tuple would go, and by which port, there it is.

use core::ffi::c_void;

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    Tuple,
    maps::{
        address_filter::flags::{CLIENT, DIRECT},
        affinity::AffinityKey,
        conntrack::{CtKey, EGRESS, INGRESS, Role, opposite},
        frontends::{ClientClass, Frontend},
        slots::SlotRange,
    },
    packet::Parsed,
};

use super::{
    affinity, classify, lookup::frontend_of_packet, lost, network::Network, output, ports, reject, select,
    snat,
};
use crate::{
    maps::{self, Claim, Tables},
    packet::Packet,
};

/// Backends that are asked for. Where backends have come or gone, the first one may be another than that
/// of the connection.
const BACKENDS: u32 = 64;
/// Ports that are asked for: at most so many connections have met at the ports that the connection has
/// tried before its own.
const PORTS: u32 = 4;

/// Puts back the first row of the packet's connection, if there is one.
#[inline(always)]
pub fn search<P, A>(packet: &P, parsed: &Parsed<A>, hook: u8) -> bool
where
    P: Packet,
    A: Network + classify::PodRange,
{
    if lost::is_moving() {
        return false;
    }
    let own = &parsed.tuple;
    let found = match frontend_of_packet::<A>() {
        Ok(Some(frontend)) if hook == INGRESS => of_client(packet, own, frontend),
        Ok(Some(frontend)) => of_host(packet, own, frontend),
        Ok(None) if maps::address_bits(&own.src) & DIRECT != 0 => of_direct(own, hook),
        _ => false,
    };
    // Who has found it has left the key of a reply's row there.
    let Some(key) = maps::new_key().filter(|_| found) else { return false };
    let Some(row) = maps::new_row::<A>() else { return false };
    let Some(reply) = maps::other_row(key) else { return false };
    reply.write_pair(&key.tuple(), row);
    key.set(own, hook);
    maps::conntrack_claim(key, row) == Claim::Entered
}

/// The key of a reply's row that belongs to the connection whose packets are `own`.
#[inline(always)]
fn is_reply_to<A: Tables>(key: &CtKey<A>, own: &Tuple<A>, role: Role) -> bool {
    maps::other_row(key).is_some_and(|row| row.role == role.0 && row.undoes(own))
}

#[inline(always)]
fn of_client<P, A>(packet: &P, own: &Tuple<A>, frontend: &Frontend) -> bool
where
    P: Packet,
    A: Network + classify::PodRange,
{
    if maps::address_bits(&own.src) & CLIENT == 0 {
        return false;
    }
    let class = classify::classify(&own.src, packet.ifindex());
    let Some(range) = select::range(frontend, class) else { return false };
    // Nobody is to make us search on and on.
    if !reject::within_budget() {
        return false;
    }
    let hash = ports::hash(own);
    let first = likely_slot(frontend, range, own, hash);
    let mut search = Search { own: *own, range, first, hash, found: false };
    let rounds = if range.len < BACKENDS { range.len } else { BACKENDS };
    // SAFETY: the callback is given `search`, which outlives the call.
    unsafe {
        helper::bpf_loop(rounds, try_backend::<A> as *const () as *mut c_void, (&raw mut search).cast(), 0)
    };
    search.found
}

/// Where a new connection would go.
#[inline(always)]
fn likely_slot<A: Tables>(frontend: &Frontend, range: SlotRange, own: &Tuple<A>, hash: u32) -> u32 {
    let key = AffinityKey { client: own.src, service: frontend.service };
    let sticks = frontend.affinity_secs != 0;
    let recalled = if sticks { affinity::recall(&key, range) } else { None };
    recalled.map_or(select::draw(frontend, own, hash), |slot| slot.wrapping_sub(range.offset))
}

struct Search<A> {
    own: Tuple<A>,
    range: SlotRange,
    first: u32,
    hash: u32,
    found: bool,
}

/// One round: 1 ends the search.
extern "C" fn try_backend<A: Tables>(round: u32, search: *mut Search<A>) -> i64 {
    // SAFETY: `of_client` passes a Search that lives on its stack during the loop.
    let search = unsafe { &mut *search };
    let slot = search.range.index(search.first.wrapping_add(round));
    let Some(backend) = maps::slot::<A>(slot).and_then(maps::backend::<A>) else { return 0 };
    let Some(key) = maps::new_key() else { return 1 };
    let inside = Tuple { dst: backend.addr, dport: backend.port, ..search.own };
    key.set(&inside.reversed(), EGRESS);
    if !is_reply_to(key, &search.own, Role::REV_DNAT) {
        // It had to take another port.
        key.dport = ports::of(search.hash).port();
        if !is_reply_to(key, &search.own, Role::REV_DNAT) {
            return 0;
        }
    }
    search.found = true;
    1
}

/// Of a process of the host.
#[inline(always)]
fn of_host<P: Packet, A: Network>(packet: &P, own: &Tuple<A>, frontend: &Frontend) -> bool {
    let Some(range) = select::range(frontend, ClientClass::Node) else { return false };
    let hash = ports::hash(own);
    let slot = range.index(likely_slot(frontend, range, own, hash));
    let Some(backend) = maps::slot::<A>(slot).and_then(maps::backend::<A>) else { return false };
    let mut target = Tuple { dst: backend.addr, dport: backend.port, ..*own };
    let Ok(out) = output::route(packet, &target) else { return false };
    let Ok(addresses) = snat::Addresses::of(out) else { return false };
    let Ok(addr) = addresses.nth(addresses.first(&target)) else { return false };
    target.src = *addr;
    by_any_port(&target, own, (INGRESS, Role::REV_HOST), hash)
}

/// To a backend itself.
#[inline(always)]
fn of_direct<A: Tables>(own: &Tuple<A>, hook: u8) -> bool {
    by_any_port(own, own, (opposite(hook), Role::REV_DIRECT), ports::hash(own))
}

#[inline(always)]
fn by_any_port<A: Tables>(target: &Tuple<A>, own: &Tuple<A>, (hook, role): (u8, Role), hash: u32) -> bool {
    let Some(key) = maps::new_key() else { return false };
    let mut ports = ports::of(hash);
    key.set(&target.reversed(), hook);
    for _ in 0..PORTS {
        key.dport = ports.port();
        if is_reply_to(key, own, role) {
            return true;
        }
        ports.advance();
    }
    false
}
