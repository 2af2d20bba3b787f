//! Source ports of connections that cannot keep their own.

use core::{ffi::c_void, ptr};

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    DropReason, Tuple,
    flow::SourcePorts,
    hash,
    maps::{
        conntrack::{CtEntry, CtKey, INGRESS, Role, Ticks, flags::ANY_REPLY},
        devices::SNAT_ADDRESSES,
        settings::Settings,
    },
};

use super::{
    conntrack::{now, ticks},
    held_ports::{Known, pass_over, remember},
    lost,
    retire::{retire_all, settle},
    snat,
};
use crate::{
    global::global_by_family,
    maps::{self, Claim, Room, Tables},
};

/// Ports that are looked at before a connection that gives way loses its own, for the one that has been
/// silent longest to be among them.
const ENOUGH: u32 = 16;
/// The search ends earlier at a connection that gives way and has been silent for so long, to a second.
const LONG_NS: u64 = 2_000_000_000;
/// Ports that are looked at where no connection gives way.
const MOST: u32 = 1024;
/// How often it is searched where another CPU is faster.
const ATTEMPTS: u32 = 3;
/// Those, and words of which all ports are passed over: as many as eight addresses have by default.
const ROUNDS: u32 = MOST + 8 * 453;

/// The source addresses whose ports are tried: 64 of one, then the same of the next.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sources {
    /// 0 if it is the one that the connection has; else they are in the room.
    count: u32,
    /// The one that comes first.
    first: u32,
    /// The present one.
    index: u32,
}

/// A search for a source port, in the room of this CPU: a program's stack and that of its loops are one.
#[repr(C)]
pub struct Search {
    pub ports: SourcePorts,
    sources: Sources,
    /// The port of the connection that gives way and has been silent longest, 0 if none does.
    oldest: u32,
    /// Whose port that is: as [`Sources::index`].
    oldest_source: u32,
    /// The timer tick of its last packet.
    oldest_ticks: Ticks,
    /// Timer ticks since its last packet; all ones if that is long.
    silent: u32,
    /// 1 if that is long.
    is_long: u32,
    found: u32,
    /// Ports that have been looked at.
    looked_at: u32,
    /// The timer tick in which there was none.
    in_vain: u32,
    /// 1 if the table has no room for the row.
    is_full: u32,
    /// While maps are replaced, what a connection has become is known to the other ones.
    may_take: u32,
    pub known: Known,
}

/// Gives `forward` a source port, and enters the row that its reply meets at `hook`, which is in the room
/// for rows. It gets the one that it has had, if its other rows were lost or the client opens it anew; else
/// one that is free; else that of the connection that gives way soonest. The hash is that of the connection.
/// Takes the room for keys.
///
/// # Errors
/// When no port is free and no connection gives way.
#[inline(always)]
pub fn claim<A: Tables>(forward: &mut Tuple<A>, hook: u8, hash: u32) -> Result<(), DropReason> {
    let search = maps::search::<A>().ok_or(DropReason::InvalidMapState)?;
    search.sources = Sources::default();
    maps::new_key::<A>().ok_or(DropReason::InvalidMapState)?.set(&forward.reversed(), hook);
    forward.sport = find::<A>(hash)?.dport;
    Ok(())
}

/// The same with the source address, too: one of those that connections leaving by `ifindex` are given. Their
/// replies come in here. The key of the row has the source as its destination.
///
/// # Errors
/// Likewise, and when there is no address.
#[inline(always)]
pub fn claim_behind<A: Tables>(
    forward: &Tuple<A>,
    ifindex: u32,
    hash: u32,
) -> Result<&'static CtKey<A>, DropReason> {
    let search = maps::search::<A>().ok_or(DropReason::InvalidMapState)?;
    let addresses = snat::Addresses::of(ifindex)?;
    let first = addresses.first(forward);
    search.sources = Sources { count: addresses.count, first, index: first };
    let key = maps::new_key::<A>().ok_or(DropReason::InvalidMapState)?;
    key.set(&forward.reversed(), INGRESS);
    key.dst = *addresses.nth(first)?;
    find(hash)
}

/// Goes on from the key in the room for keys, to the key of the row that was entered.
#[inline(always)]
fn find<A: Tables>(hash: u32) -> Result<&'static CtKey<A>, DropReason> {
    match claim_port::<A>(hash) {
        FOUND => maps::new_key::<A>().map(|key| &*key).ok_or(DropReason::InvalidMapState),
        FULL => Err(DropReason::ConntrackFull),
        _ => Err(DropReason::SnatPortsExhausted),
    }
}

/// The row is entered.
const FOUND: u32 = 0;
/// The table has no room.
const FULL: u32 = 1;
/// No port is free, and no connection gives way.
const NONE: u32 = 2;

global_by_family! {
    fn claim_port(hash: u32) = search as shunt_find_port4, shunt_find_port6;
}

#[inline(always)]
fn search<A: Tables>(hash: u32) -> u32 {
    let (key, search) = (maps::new_key::<A>(), maps::search::<A>());
    let (Some(key), Some(search)) = (key, search) else { return NONE };
    if let Some(ports_key) = maps::ports_key::<A>() {
        ports_key.set(key);
    }
    search.ports = of(hash);
    search.may_take = (!lost::is_moving()).into();
    search.is_full = 0;
    // Other CPUs may claim the ports that are found.
    for _ in 0..ATTEMPTS {
        if look::<A>() || take_oldest::<A>() {
            return FOUND;
        }
        if !is_contested::<A>() {
            break;
        }
        begin_again::<A>();
    }
    if maps::search::<A>().is_some_and(|search| search.is_full != 0) { FULL } else { NONE }
}

/// Looks at ports; true if one is claimed.
#[inline(always)]
fn look<A: Tables>() -> bool {
    let Some(search) = maps::search::<A>() else { return false };
    // Nobody is to make us search on and on.
    let rounds = if search.in_vain == ticks() as u32 { ENOUGH } else { ROUNDS };
    (search.oldest, search.silent, search.is_long) = (0, 0, 0);
    (search.found, search.looked_at) = (0, 0);
    search.known = Known::default();
    // SAFETY: the callback takes no context, and nothing that it has of the room is referred to here.
    unsafe { helper::bpf_loop(rounds, try_port::<A> as *const () as *mut c_void, ptr::null_mut(), 0) };
    let Some(search) = maps::search::<A>() else { return false };
    if search.found == 0 && search.oldest == 0 && search.is_full == 0 {
        search.in_vain = ticks() as u32;
    }
    search.found != 0
}

/// True if there was a port to be had, which could not be taken.
#[inline(always)]
fn is_contested<A: Tables>() -> bool {
    maps::search::<A>().is_some_and(|search| search.oldest != 0)
}

#[inline(always)]
fn begin_again<A: Tables>() {
    let Some(room) = maps::room::<A>() else { return };
    room.search.ports.begin_again();
    room.search.sources.begin_again();
    apply(room);
}

/// Ends the connection that gives way soonest, if there is one, and claims its port. False also if another
/// CPU was faster, or the connection has gone on.
#[inline(always)]
fn take_oldest<A: Tables>() -> bool {
    let Some(Room { key, search, snat_addresses, .. }) = maps::room::<A>() else { return false };
    if search.oldest == 0 {
        return false;
    }
    key.dport = search.oldest as u16;
    if search.sources.count != 0 {
        key.dst = snat_addresses[search.oldest_source as usize % SNAT_ADDRESSES];
    }
    // It may have gone on meanwhile.
    if maps::candidate(key).is_none_or(|row| row.ticks != search.oldest_ticks) || !retire_all::<A>() {
        return false;
    }
    let Some(Room { key, row, .. }) = maps::room::<A>() else { return false };
    // Late packets of the old one come first.
    row.flags |= ANY_REPLY;
    maps::conntrack_claim(key, row) == Claim::Entered
}

/// One round: 1 ends the search.
extern "C" fn try_port<A: Tables>(round: u32, _: *mut c_void) -> i64 {
    let Some(room) = maps::room::<A>() else { return 1 };
    if room.search.ports.is_empty() && !goes_on(room) {
        return 1;
    }
    // The first one may be its own already, and is mostly free.
    if round != 0 && room.search.known.is_of_another(&room.search.ports) {
        pass_over(room);
        if room.search.ports.is_empty() {
            return 0;
        }
    }
    room.key.dport = room.search.ports.port();
    match maps::candidate(&room.key) {
        None => match maps::conntrack_claim(&room.key, &mut room.row) {
            Claim::Entered => room.search.found = 1,
            Claim::Taken => {}
            Claim::Full => {
                room.search.is_full = 1;
                return 1;
            }
        },
        Some(known) if round == 0 => {
            if known.role != room.row.role || !known.becomes_as(&room.row) {
                return 0;
            }
            room.row.flags |= ANY_REPLY;
            settle(known);
            room.search.found = maps::conntrack_put(&room.key, &mut room.row).is_ok().into();
        }
        Some(known) if room.search.may_take != 0 => {
            let is_long = now().wrapping_sub(known.last_seen) > LONG_NS;
            let silent = if is_long { u32::MAX } else { ticks().wrapping_sub(known.ticks).into() };
            if !gives_way(known, &room.key, &mut room.other_key) {
                remember(room);
            } else if room.search.oldest == 0 || silent > room.search.silent {
                (room.search.oldest, room.search.silent) = (room.key.dport.into(), silent);
                room.search.oldest_source = room.search.sources.index;
                room.search.oldest_ticks = known.ticks;
                room.search.is_long = is_long.into();
            }
        }
        Some(_) => {}
    }
    room.search.ports.pass();
    room.search.looked_at += 1;
    room.search.is_done().into()
}

/// When all ports of a word have come: on to those of the next address, then to the next word, at last to
/// those that were passed over. False if there are none.
#[inline(always)]
fn goes_on<A: Tables>(room: &mut Room<A>) -> bool {
    let search = &mut room.search;
    search.known.forget();
    if search.sources.advance() {
        search.ports.begin_word();
    } else {
        search.ports.next_word();
        if search.ports.is_over() {
            if search.oldest != 0 || !search.known.doubt() {
                return false;
            }
            search.ports.begin_again();
        }
    }
    apply(room);
    true
}

/// Puts the present source address into the keys.
#[inline(always)]
fn apply<A: Tables>(room: &mut Room<A>) {
    let Room { search, key, ports_key, snat_addresses, .. } = room;
    if search.sources.count != 0 {
        let addr = snat_addresses[search.sources.index as usize % SNAT_ADDRESSES];
        (key.dst, ports_key.src) = (addr, addr);
    }
}

impl Sources {
    #[inline(always)]
    fn begin_again(&mut self) {
        self.index = self.first;
    }

    /// On to the next one; false if that is the first again.
    #[inline(always)]
    fn advance(&mut self) -> bool {
        self.index = if self.index + 1 < self.count { self.index + 1 } else { 0 };
        self.index != self.first
    }
}

impl Search {
    #[inline(always)]
    fn is_done(&self) -> bool {
        self.found != 0
            || self.looked_at >= MOST
            || (self.oldest != 0 && (self.is_long != 0 || self.looked_at >= ENOUGH))
    }
}

/// True if the connection whose reply meets `reply` at `own` has no need of its port any more. `other` is
/// room for keys.
#[inline(always)]
fn gives_way<A: Tables>(reply: &CtEntry<A>, own: &CtKey<A>, other: &mut CtKey<A>) -> bool {
    if !Role(reply.role).is_reply() {
        return false;
    }
    let proto = own.proto;
    other.set_pair(reply, proto, own.hook);
    match maps::other_row(other) {
        Some(pair) if own.is_undone_by(pair) => pair.gives_way(reply, proto),
        // The client goes on by another port.
        Some(_) => true,
        None => is_forgotten(own, other),
    }
}

/// True if nothing is left by which a masqueraded connection could be found again, but the row that its
/// replies meet at `own`.
#[inline(always)]
fn is_forgotten<A: Tables>(own: &CtKey<A>, other: &mut CtKey<A>) -> bool {
    // Once more: what has been read of it would take the stack.
    let Some(reply) = maps::candidate(own).filter(|row| row.role == Role::REV_SNAT.0) else { return false };
    other.set_next(reply, own.proto);
    if maps::other_row(other).is_some() {
        return false;
    }
    other.set_first(reply, own.proto);
    maps::other_row(other).is_none()
}

/// The source ports that a connection tries with this hash.
#[inline(always)]
pub fn of(hash: u32) -> SourcePorts {
    // There are settings: the map is an array of one. An Option of the ports would have fields that are not set,
    // which the compiler may move all the same.
    let range = |settings: &Settings| (settings.snat_port_first, settings.snat_port_count);
    let (first, count) = maps::settings().map_or((0, 1), range);
    SourcePorts::new(first, count, hash)
}

/// The hash of a connection by which this node finds its backend and source port again. `tuple` is that of
/// its packets where it comes by. Apart, for the stack.
#[inline(never)]
pub fn hash<A: Tables>(tuple: &Tuple<A>) -> u32 {
    let secret = maps::settings().map_or([0; 2], |settings| settings.secret);
    hash::keyed(&secret, tuple)
}
