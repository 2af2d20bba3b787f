//! The maps, and the only code that touches them.
//!
//! Capacities given here are defaults: the agent overrides them when it creates a map.

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC, BPF_NOEXIST},
    btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, lpm_trie::Key},
    macros::btf_map,
};
use proxy_common::{
    Addr, DropReason, Ip4, Ip6,
    maps::{
        backends::{self, Backend},
        conntrack::{self, CtEntry, CtKey},
        devices::{self, Device},
        frontends::{self, Frontend, FrontendKey},
        node_addresses, service_cidrs,
        services::{self, ServiceRow},
        settings::Settings,
        slots,
        socket_flows::{self, SocketFlow, SocketFlowKey},
    },
};

const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;
const MMAPABLE: usize = BPF_F_MMAPABLE as usize;

type Frontends<A> = HashMap<FrontendKey<A>, Frontend, { frontends::CAPACITY as usize }, NO_PREALLOC>;
type Slots = Array<u32, { slots::CAPACITY as usize }, MMAPABLE>;
type Backends<A> = Array<Backend<A>, { backends::CAPACITY as usize }, MMAPABLE>;
type Conntrack<A> = LruHashMap<CtKey<A>, CtEntry<A>, { conntrack::CAPACITY as usize }>;
type NodeAddresses<A> = HashMap<A, u32, { node_addresses::CAPACITY as usize }, NO_PREALLOC>;
type ServiceCidrs<A> = LpmTrie<A, u32, { service_cidrs::CAPACITY as usize }>;
type SocketFlows<A> = LruHashMap<SocketFlowKey<A>, SocketFlow<A>, { socket_flows::CAPACITY as usize }>;

/// Declares the maps of both families and ties them to the address type.
macro_rules! family {
    ($addr:ty, $frontends:ident, $slots:ident, $backends:ident, $conntrack:ident, $node_addresses:ident,
     $service_cidrs:ident, $socket_flows:ident) => {
        #[btf_map]
        static $frontends: Frontends<$addr> = Frontends::new();
        #[btf_map]
        static $slots: Slots = Slots::new();
        #[btf_map]
        static $backends: Backends<$addr> = Backends::new();
        #[btf_map]
        static $conntrack: Conntrack<$addr> = Conntrack::new();
        #[btf_map]
        static $node_addresses: NodeAddresses<$addr> = NodeAddresses::new();
        #[btf_map]
        static $service_cidrs: ServiceCidrs<$addr> = ServiceCidrs::new();
        #[btf_map]
        static $socket_flows: SocketFlows<$addr> = SocketFlows::new();

        impl Tables for $addr {
            #[inline(always)]
            fn frontends() -> &'static Frontends<Self> {
                &$frontends
            }
            #[inline(always)]
            fn slots() -> &'static Slots {
                &$slots
            }
            #[inline(always)]
            fn backends() -> &'static Backends<Self> {
                &$backends
            }
            #[inline(always)]
            fn conntrack() -> &'static Conntrack<Self> {
                &$conntrack
            }
            #[inline(always)]
            fn node_addresses() -> &'static NodeAddresses<Self> {
                &$node_addresses
            }
            #[inline(always)]
            fn service_cidrs() -> &'static ServiceCidrs<Self> {
                &$service_cidrs
            }
            #[inline(always)]
            fn socket_flows() -> &'static SocketFlows<Self> {
                &$socket_flows
            }
        }
    };
}

family!(
    Ip4,
    FRONTENDS_V4,
    SLOTS_V4,
    BACKENDS_V4,
    CONNTRACK_V4,
    NODE_ADDRS_V4,
    SERVICE_CIDR_V4,
    SOCK_FLOWS_V4
);
family!(
    Ip6,
    FRONTENDS_V6,
    SLOTS_V6,
    BACKENDS_V6,
    CONNTRACK_V6,
    NODE_ADDRS_V6,
    SERVICE_CIDR_V6,
    SOCK_FLOWS_V6
);

#[btf_map]
static DEVICES: HashMap<u32, Device, { devices::CAPACITY as usize }, NO_PREALLOC> = HashMap::new();
#[btf_map]
static SETTINGS: Array<Settings, 1> = Array::new();
#[btf_map]
static DROPS: PerCpuArray<u64, { DropReason::ALL.len() }> = PerCpuArray::new();
/// Read by user space alone; declared here so that one object carries every layout.
#[btf_map]
static SERVICES: HashMap<u32, ServiceRow, { services::CAPACITY as usize }, NO_PREALLOC> = HashMap::new();

/// The maps of one address family.
pub trait Tables: Addr {
    fn frontends() -> &'static Frontends<Self>;
    fn slots() -> &'static Slots;
    fn backends() -> &'static Backends<Self>;
    fn conntrack() -> &'static Conntrack<Self>;
    fn node_addresses() -> &'static NodeAddresses<Self>;
    fn service_cidrs() -> &'static ServiceCidrs<Self>;
    fn socket_flows() -> &'static SocketFlows<Self>;
}

#[inline(always)]
pub fn frontend<A: Tables>(key: &FrontendKey<A>) -> Option<&'static Frontend> {
    // SAFETY: rows are never written by programs; a row replaced meanwhile stays readable until the
    // program ends (RCU), so a reader sees the old value or the new one.
    unsafe { A::frontends().get_ptr(key).map(|p| &*p) }
}

/// The backend with `id`, if it is present.
#[inline(always)]
pub fn backend<A: Tables>(id: u32) -> Option<&'static Backend<A>> {
    A::backends().get(id).filter(|b| b.flags & backends::flags::PRESENT != 0)
}

#[inline(always)]
pub fn slot<A: Tables>(index: u32) -> Option<u32> {
    A::slots().get(index).copied()
}

#[inline(always)]
pub fn conntrack<A: Tables>(key: &CtKey<A>) -> Option<&'static mut CtEntry<A>> {
    // SAFETY: the row stays in place until the program ends (LRU rows are recycled only after a grace
    // period); fields may change under us, and each is used after one read.
    unsafe { A::conntrack().get_ptr_mut(key).map(|p| &mut *p) }
}

/// Inserts a row only if there is none.
#[inline(always)]
pub fn conntrack_claim<A: Tables>(key: &CtKey<A>, entry: &CtEntry<A>) -> bool {
    A::conntrack().insert(key, entry, u64::from(BPF_NOEXIST)).is_ok()
}

#[inline(always)]
pub fn conntrack_put<A: Tables>(key: &CtKey<A>, entry: &CtEntry<A>) -> Result<(), DropReason> {
    A::conntrack().insert(key, entry, 0).map_err(|_| DropReason::ConntrackFull)
}

/// The flags of an address the host owns.
#[inline(always)]
pub fn node_address<A: Tables>(addr: &A) -> Option<u32> {
    // SAFETY: a u32 is read once; programs never write it.
    unsafe { A::node_addresses().get_ptr(addr).map(|p| *p) }
}

#[inline(always)]
pub fn in_service_cidr<A: Tables>(addr: &A) -> bool {
    A::service_cidrs().get(&Key::new(A::BITS, *addr)).is_some()
}

#[inline(always)]
pub fn socket_flow<A: Tables>(key: &SocketFlowKey<A>) -> Option<&'static SocketFlow<A>> {
    // SAFETY: as for conntrack rows; socket flow rows are replaced as a whole.
    unsafe { A::socket_flows().get_ptr(key).map(|p| &*p) }
}

#[inline(always)]
pub fn put_socket_flow<A: Tables>(key: &SocketFlowKey<A>, flow: &SocketFlow<A>) {
    // A full table costs the program its view of the frontend, not its connection.
    let _ = A::socket_flows().insert(key, flow, 0);
}

#[inline(always)]
pub fn device(ifindex: u32) -> Option<&'static Device> {
    // SAFETY: programs never write devices; see `frontend`.
    unsafe { DEVICES.get_ptr(ifindex).map(|p| &*p) }
}

#[inline(always)]
pub fn settings() -> Option<&'static Settings> {
    SETTINGS.get(0)
}

#[inline(always)]
pub fn count_drop(reason: DropReason) {
    if let Some(count) = DROPS.get_ptr_mut(reason as u32) {
        // SAFETY: the slot belongs to this CPU, and programs on one CPU do not interrupt each other
        // between the read and the write often enough to matter for a counter.
        unsafe { *count += 1 };
    }
}
