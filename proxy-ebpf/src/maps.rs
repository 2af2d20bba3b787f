//! The maps, and the only code that touches them.
//!
//! Capacities given here are defaults: the agent overrides them when it creates a map.

use core::arch::asm;

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    btf_maps::{
        Array, HashMap, LpmTrie, LruHashMap, LruPerCpuHashMap, PerCpuArray, PerCpuHashMap, ProgramArray,
        RingBuf, SkStorage, lpm_trie::Key,
    },
    helpers::generated as helper,
    macros::btf_map,
    maps::ring_buf::RingBufEntry,
};
use proxy_common::{
    DropReason, Ip4, Ip6,
    maps::{
        address_filter::{self, Cell},
        affinity::{self, Affinity, AffinityKey},
        backends::{self, Backend},
        conntrack::{self, CtEntry, CtKey},
        counters::{self, CounterKey, Traffic},
        device_status::{self, DeviceStatus},
        devices::{self, Device, SnatAddresses},
        events::{self, Event, Trace},
        fragments::{self, FragmentKey, FragmentRow, HeldFragment, HeldKey, HeldTurn},
        frontends::{self, Frontend, FrontendKey},
        held_ports::{self, HeldPorts, HeldPortsKey},
        netns_addresses::{self, Netns},
        next_hops::{self, NextHop},
        node_addresses,
        refused_services::{self, RefusedKey, RefusedService},
        service_cidrs,
        service_drops::{self, ServiceDropKey},
        services::{self, ServiceRow},
        settings::{ServiceRange, Settings},
        slots,
        socket_datagrams::{SocketDatagrams, SocketPair},
        socket_lb_exempt,
        socket_peers::SocketPeer,
        source_ranges, stale_sockets,
        stale_ways::{self, Way},
        sweep::Sweep,
        tails::{self, Tail},
        transient::{self, Place, Turns},
    },
};

pub use self::{
    count::{add_traffic, count_drop, count_opened, count_refusal},
    datagrams::{
        is_written, look_at_pair, new_socket_datagrams, put_connected, put_connected_in, put_sent,
        put_sent_in, sent, socket_datagrams, use_pair, use_sent,
    },
    device::{DeviceFacts, device, snat_addresses},
    flows::{
        Claim, Row, candidate, conntrack, conntrack_apart, conntrack_claim, conntrack_put, conntrack_remove,
        found_row, other_row, take_place,
    },
    fragment::{
        claim_fragment, claim_held, delete_held, fragment, has_fragment, held, held_scratch, put_fragment,
        take_held_turn,
    },
    hops::{copy_next_hop, put_next_hop, routes},
    peers::{clear_socket_peer, put_socket_peer, socket_peer},
    room::{
        Room, Turn, carried, found, frontend_room, new_key, new_row, next_hop, other, parsed, ports_key,
        put_refusal, read_anew, refusal, room, search, step, turn,
    },
    sticky::{affinity, claim_affinity, claim_netns_address, netns_address},
    sweep::{Others, SweepRoom, copy_swept, in_sweep_room, sweep},
};
use crate::packet::Packet;

mod atomic;
mod count;
mod datagrams;
mod device;
mod flows;
mod fragment;
mod hops;
mod peers;
mod room;
mod sticky;
mod sweep;

const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;
const MMAPABLE: usize = BPF_F_MMAPABLE as usize;

type Frontends<A> = HashMap<FrontendKey<A>, Frontend, { frontends::CAPACITY as usize }, NO_PREALLOC>;
type AddressFilter = Array<u64, { address_filter::CAPACITY as usize }, MMAPABLE>;
type Slots = Array<u32, { slots::CAPACITY as usize }, MMAPABLE>;
type Backends<A> = Array<Backend<A>, { backends::CAPACITY as usize }, MMAPABLE>;
type Conntrack<A> = HashMap<CtKey<A>, CtEntry<A>, { conntrack::CAPACITY as usize }, NO_PREALLOC>;
type Transients<A> = Array<Place<A>, { transient::capacity(conntrack::CAPACITY) as usize }>;
type NodeAddresses<A> = HashMap<A, u32, { node_addresses::CAPACITY as usize }, NO_PREALLOC>;
type ServiceCidrs<A> = LpmTrie<A, u32, { service_cidrs::CAPACITY as usize }>;
type Affinities<A> = LruHashMap<AffinityKey<A>, Affinity, { affinity::CAPACITY as usize }>;
type SourceRanges<A> = LpmTrie<ServiceAddr<A>, u32, { source_ranges::CAPACITY as usize }>;
type Fragments<A> = LruHashMap<FragmentKey<A>, FragmentRow<A>, { fragments::CAPACITY as usize }>;
type HeldPortsTable<A> = LruHashMap<HeldPortsKey<A>, HeldPorts, { held_ports::CAPACITY as usize }>;
type Opened = PerCpuHashMap<CounterKey, u64, { counters::CAPACITY as usize }, NO_PREALLOC>;
type Rooms<A> = PerCpuArray<Room<A>, 1>;
type SweepRooms<A> = PerCpuArray<SweepRoom<A>, 1>;
type TrafficTable = HashMap<CounterKey, Traffic, { counters::CAPACITY as usize }, NO_PREALLOC>;
type SocketPeers<A> = SkStorage<SocketPeer<A>>;
type NetnsAddresses<A> = LruHashMap<Netns, A, { netns_addresses::CAPACITY as usize }>;
type SocketData<A> = SkStorage<SocketDatagrams<A>>;
type StaleWays<A> = HashMap<Way<A>, u32, { stale_ways::CAPACITY as usize }, NO_PREALLOC>;
type StaleSockets<A> = HashMap<SocketPair<A>, u32, { stale_sockets::CAPACITY as usize }, NO_PREALLOC>;

/// What a row of `source_ranges` matches: `SourceRange` without the length, which aya's key has.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ServiceAddr<A> {
    service: u32,
    addr: A,
}

/// Declares the maps of a family and ties them to its address type.
macro_rules! family {
    ($addr:ty: $($table:ident = $name:ident: $type:ty;)+) => {
        $(
            #[btf_map]
            static $name: $type = <$type>::new();
        )+

        impl Tables for $addr {
            $(
                #[inline(always)]
                fn $table() -> &'static $type {
                    &$name
                }
            )+
        }
    };
}

family! { Ip4:
    address_filter = ADDR_FILTER_V4: AddressFilter;
    frontends = FRONTENDS_V4: Frontends<Ip4>;
    slots = SLOTS_V4: Slots;
    backends = BACKENDS_V4: Backends<Ip4>;
    conntrack = CONNTRACK_V4: Conntrack<Ip4>;
    transient = TRANSIENT_V4: Transients<Ip4>;
    turns = TURNS_V4: Array<Turns, 1>;
    node_addresses = NODE_ADDRS_V4: NodeAddresses<Ip4>;
    service_cidrs = SERVICE_CIDR_V4: ServiceCidrs<Ip4>;
    source_ranges = SRC_RANGES_V4: SourceRanges<Ip4>;
    affinity = AFFINITY_V4: Affinities<Ip4>;
    fragments = FRAGMENTS_V4: Fragments<Ip4>;
    socket_datagrams = SOCK_DATA_V4: SocketData<Ip4>;
    stale_sockets = STALE_SOCKS_V4: StaleSockets<Ip4>;
    stale_ways = STALE_WAYS_V4: StaleWays<Ip4>;
    socket_peers = SOCK_PEERS_V4: SocketPeers<Ip4>;
    netns_addresses = NETNS_ADDRS_V4: NetnsAddresses<Ip4>;
    opened = OPENED_V4: Opened;
    traffic = TRAFFIC_V4: TrafficTable;
    held_ports = HELD_PORTS_V4: HeldPortsTable<Ip4>;
    rooms = ROOM_V4: Rooms<Ip4>;
    sweep_rooms = SWEEP_ROOM_V4: SweepRooms<Ip4>;
}

family! { Ip6:
    address_filter = ADDR_FILTER_V6: AddressFilter;
    frontends = FRONTENDS_V6: Frontends<Ip6>;
    slots = SLOTS_V6: Slots;
    backends = BACKENDS_V6: Backends<Ip6>;
    conntrack = CONNTRACK_V6: Conntrack<Ip6>;
    transient = TRANSIENT_V6: Transients<Ip6>;
    turns = TURNS_V6: Array<Turns, 1>;
    node_addresses = NODE_ADDRS_V6: NodeAddresses<Ip6>;
    service_cidrs = SERVICE_CIDR_V6: ServiceCidrs<Ip6>;
    source_ranges = SRC_RANGES_V6: SourceRanges<Ip6>;
    affinity = AFFINITY_V6: Affinities<Ip6>;
    fragments = FRAGMENTS_V6: Fragments<Ip6>;
    socket_datagrams = SOCK_DATA_V6: SocketData<Ip6>;
    stale_sockets = STALE_SOCKS_V6: StaleSockets<Ip6>;
    stale_ways = STALE_WAYS_V6: StaleWays<Ip6>;
    socket_peers = SOCK_PEERS_V6: SocketPeers<Ip6>;
    netns_addresses = NETNS_ADDRS_V6: NetnsAddresses<Ip6>;
    opened = OPENED_V6: Opened;
    traffic = TRAFFIC_V6: TrafficTable;
    held_ports = HELD_PORTS_V6: HeldPortsTable<Ip6>;
    rooms = ROOM_V6: Rooms<Ip6>;
    sweep_rooms = SWEEP_ROOM_V6: SweepRooms<Ip6>;
}

#[btf_map]
static DEVICES: HashMap<u32, Device, { devices::CAPACITY as usize }, NO_PREALLOC> = HashMap::new();
#[btf_map]
static NEXT_HOPS: Array<NextHop, { next_hops::CAPACITY as usize }, MMAPABLE> = Array::new();
#[btf_map]
static ROUTES: Array<u64, 1, MMAPABLE> = Array::new();
#[btf_map]
static SETTINGS: Array<Settings, 1> = Array::new();
#[btf_map]
static DROPS: PerCpuArray<u64, { DropReason::ALL.len() }> = PerCpuArray::new();
#[btf_map]
static SERVICE_DROPS: LruPerCpuHashMap<ServiceDropKey, u64, { service_drops::CAPACITY as usize }> =
    LruPerCpuHashMap::new();
#[btf_map]
static SWEEP: Array<Sweep, 1> = Array::new();
#[btf_map]
static TRACE: Array<Trace, 1> = Array::new();
#[btf_map]
static EVENTS: RingBuf<Event, { events::CAPACITY as usize }> = RingBuf::new();
#[btf_map]
static REJECT_BUDGET: PerCpuArray<Budget, 1> = PerCpuArray::new();
#[btf_map]
static SOCKET_EXEMPT: HashMap<u64, u32, { socket_lb_exempt::CAPACITY as usize }, NO_PREALLOC> =
    HashMap::new();
#[btf_map]
static HELD_FRAGMENTS: HashMap<HeldKey, HeldFragment, { fragments::HELD_CAPACITY as usize }> = HashMap::new();
#[btf_map]
static HELD_TURNS: Array<HeldTurn, { fragments::HELD_CAPACITY as usize }> = Array::new();
/// Where a fragment is put together before it is stored: the stack has no room.
#[btf_map]
static HELD_SCRATCH: PerCpuArray<HeldFragment, 1> = PerCpuArray::new();
#[btf_map]
static TAILS: ProgramArray<{ tails::CAPACITY as usize }> = ProgramArray::new();
/// Read by user space alone; declared here so that one object carries every layout.
#[btf_map]
static SERVICES: HashMap<u32, ServiceRow, { services::CAPACITY as usize }, NO_PREALLOC> = HashMap::new();
/// Likewise.
#[btf_map]
static REFUSED: HashMap<RefusedKey, RefusedService, { refused_services::CAPACITY as usize }, NO_PREALLOC> =
    HashMap::new();
/// Likewise.
#[btf_map]
static DEVICE_STATUS: HashMap<u32, DeviceStatus, { device_status::CAPACITY as usize }, NO_PREALLOC> =
    HashMap::new();

/// A token bucket.
#[repr(C)]
pub struct Budget {
    /// When tokens were last added, in nanoseconds since boot.
    pub filled: u64,
    pub tokens: u64,
}

/// The maps of one address family.
pub trait Tables: ServiceRange + SnatAddresses {
    fn address_filter() -> &'static AddressFilter;
    fn frontends() -> &'static Frontends<Self>;
    fn slots() -> &'static Slots;
    fn backends() -> &'static Backends<Self>;
    fn conntrack() -> &'static Conntrack<Self>;
    fn transient() -> &'static Transients<Self>;
    fn turns() -> &'static Array<Turns, 1>;
    fn node_addresses() -> &'static NodeAddresses<Self>;
    fn service_cidrs() -> &'static ServiceCidrs<Self>;
    fn source_ranges() -> &'static SourceRanges<Self>;
    fn affinity() -> &'static Affinities<Self>;
    fn fragments() -> &'static Fragments<Self>;
    fn socket_datagrams() -> &'static SocketData<Self>;
    fn stale_sockets() -> &'static StaleSockets<Self>;
    fn stale_ways() -> &'static StaleWays<Self>;
    fn socket_peers() -> &'static SocketPeers<Self>;
    fn netns_addresses() -> &'static NetnsAddresses<Self>;
    fn opened() -> &'static Opened;
    fn traffic() -> &'static TrafficTable;
    fn held_ports() -> &'static HeldPortsTable<Self>;
    fn rooms() -> &'static Rooms<Self>;
    fn sweep_rooms() -> &'static SweepRooms<Self>;
}

/// What the address may be to us: bits of [`address_filter::flags`].
#[inline(always)]
pub fn address_bits<A: Tables>(addr: &A) -> u64 {
    bits_of::<A>(Cell::of(addr))
}

/// What the port may be to us: [`NODE_PORT`](address_filter::flags::NODE_PORT),
/// [`BACKEND_PORT`](address_filter::flags::BACKEND_PORT).
#[inline(always)]
pub fn port_bits<A: Tables>(port: u16) -> u64 {
    bits_of::<A>(Cell::of_port(port))
}

/// Bits above the cell's own are those of others.
#[inline(always)]
fn bits_of<A: Tables>(Cell { word, shift }: Cell) -> u64 {
    A::address_filter().get(word).map_or(0, |word| *word >> shift)
}

/// Lets packets from or to the address be looked at, before there are rows for them.
#[inline(always)]
pub fn admit_address<A: Tables>(addr: &A, bits: u64) {
    let Cell { word, shift } = Cell::of(addr);
    let bits = bits << shift;
    if let Some(word) = A::address_filter().get_ptr_mut(word) {
        // SAFETY: an aligned u64 of the map, which all who write it change by atomic operations.
        unsafe {
            if core::ptr::read_volatile(word) & bits != bits {
                set_bits(word, bits);
            }
        }
    }
}

/// Copies the row. The kernel uses the element of a row that is replaced at once for another: what was read holds
/// if the key still leads there afterwards.
#[inline(always)]
pub fn frontend<'a, A: Tables>(key: &FrontendKey<A>, copy: &'a mut Frontend) -> Option<&'a Frontend> {
    // SAFETY: elements stay in the map's memory until the program ends, and any bytes are a Frontend.
    *copy = read_row(|| A::frontends().get_ptr(key), |row| unsafe { row.read_volatile() })?;
    Some(copy)
}

/// What `read` finds in the row that `get` gets. It must take all that the program needs of it: the kernel gives the place
/// of a row that is replaced or removed to another at once.
#[inline(always)]
fn read_row<T, R>(get: impl Fn() -> Option<*const T>, mut read: impl FnMut(*const T) -> R) -> Option<R> {
    let row = get()?;
    let found = read(row);
    let now = get()?;
    // It may have been replaced this instant: the next one is not soon to come.
    Some(if now == row { found } else { read(now) })
}

#[inline(always)]
pub fn has_frontend<A: Tables>(key: &FrontendKey<A>) -> bool {
    A::frontends().get_ptr(key).is_some()
}

/// The backend with `id`, if it is present. While a program runs that may have come across it, the agent writes
/// nothing there but that it is not.
#[inline(always)]
pub fn backend<A: Tables>(id: u32) -> Option<&'static Backend<A>> {
    A::backends().get(id).filter(|b| b.flags & backends::flags::PRESENT != 0)
}

/// The backend with `id`, which a slot has named: also one that has been taken out since that was read.
#[inline(always)]
pub fn named_backend<A: Tables>(id: u32) -> Option<&'static Backend<A>> {
    A::backends().get(id).filter(|b| b.proto != 0)
}

#[inline(always)]
pub fn slot<A: Tables>(index: u32) -> Option<u32> {
    A::slots().get(index).copied()
}

#[inline(always)]
pub fn held_ports<A: Tables>(key: &HeldPortsKey<A>) -> Option<*mut HeldPorts> {
    A::held_ports().get_ptr_mut(key)
}

/// Adds to ports that are held; true if there is a row.
#[inline(always)]
pub fn add_held_ports<A: Tables>(key: &HeldPortsKey<A>, more: u64) -> bool {
    let Some(row) = held_ports(key) else { return false };
    // SAFETY: an aligned u64 of a map row, which stays in place until the program ends.
    unsafe { set_bits(&raw mut (*row).held, more) };
    true
}

#[inline(always)]
pub fn put_held_ports<A: Tables>(key: &HeldPortsKey<A>, row: &HeldPorts) {
    // A port without a hint is looked up.
    let _ = A::held_ports().insert(key, row, 0);
}

/// The flags of an address the host owns.
#[inline(always)]
pub fn node_address<A: Tables>(addr: &A) -> Option<u32> {
    // SAFETY: a u32 is read once; programs never write it.
    unsafe { A::node_addresses().get_ptr(addr).map(|p| *p) }
}

/// True if the host owns the address.
#[inline(always)]
pub fn is_node_address<A: Tables>(addr: &A) -> bool {
    // Volatile: else the compiler may compute with the pointer instead of asking whether it is null, which the
    // verifier refuses.
    // SAFETY: as in `node_address`.
    unsafe { A::node_addresses().get_ptr(addr).map(|p| p.read_volatile()) }.is_some()
}

#[inline(always)]
pub fn in_service_cidr<A: Tables>(addr: &A) -> bool {
    A::service_cidrs().get(&Key::new(A::BITS, *addr)).is_some()
}

/// True if `addr` may use the load-balancer addresses of a service with source ranges.
#[inline(always)]
pub fn in_source_ranges<A: Tables>(service: u32, addr: &A) -> bool {
    let bits = source_ranges::SERVICE_BITS + A::BITS;
    A::source_ranges().get(&Key::new(bits, ServiceAddr { service, addr: *addr })).is_some()
}

/// Answers this CPU may still give to refused clients.
#[inline(always)]
pub fn reject_budget() -> Option<&'static mut Budget> {
    // SAFETY: the slot belongs to this CPU; see `count_drop`.
    REJECT_BUDGET.get_ptr_mut(0).map(|p| unsafe { &mut *p })
}

/// Socket LB leaves the processes of this cgroup alone.
#[inline(always)]
pub fn is_exempt(cgroup: u64) -> bool {
    SOCKET_EXEMPT.get_ptr(cgroup).is_some()
}

#[inline(always)]
pub fn settings() -> Option<&'static Settings> {
    SETTINGS.get(0)
}

/// True if the agent has found the way to lead where it may not.
#[inline(always)]
pub fn is_stale<A: Tables>(way: &Way<A>) -> bool {
    A::stale_ways().get_ptr(way).is_some()
}

/// # Safety
/// `word` is an aligned u64 of a map row, which stays in place until the program ends.
#[inline(always)]
unsafe fn set_bits(word: *mut u64, bits: u64) {
    // SAFETY: the caller's; the standard library has no atomic operations for this target.
    unsafe { asm!("lock *(u64 *)({0} + 0) |= {1}", in(reg) word, in(reg) bits, options(nostack)) };
}

/// What is listened to.
#[inline(always)]
pub fn trace() -> Option<&'static Trace> {
    TRACE.get(0)
}

/// Room for an event; none if listeners are behind.
#[inline(always)]
pub fn reserve_event() -> Option<RingBufEntry<Event>> {
    EVENTS.reserve(0)
}

/// Goes on in another program, which begins with the packet as it is now; returns only if that
/// program is missing.
#[inline(always)]
pub fn tail_call<P: Packet>(packet: &P, tail: Tail) {
    // Not by aya's method: the compiler may make a function of it, and the verifier allows a tail call
    // only where the frames below have less than 256 bytes (check_max_stack_depth_subprog in
    // kernel/bpf/verifier.c).
    let tails = core::ptr::from_ref(&TAILS).cast_mut().cast();
    // SAFETY: nothing here needs to be dropped; the context is the running program's, and the loader
    // puts the map in the place of its declaration.
    unsafe { helper::bpf_tail_call(packet.context(), tails, tail.index(P::L2_LEN != 0)) };
}
