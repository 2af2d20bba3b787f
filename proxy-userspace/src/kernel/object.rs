//! The eBPF object: maps created or adopted, programs loaded.

mod side_by_side;

pub(super) use self::side_by_side::load_programs;
use super::{capacity::lru_capacity, error::KernelError, pins::Pins, tails, xdp::XdpPolicy};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Map, MapData, MapInfo},
    programs::{Program, Xdp},
};
use aya_log::EbpfLogger;
use proxy_common::maps::{self, LAYOUT_VERSION, transient};

pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/proxy-ebpf"));

/// Programs for devices, by hook and by whether the device has an Ethernet header.
pub(super) const CLASSIFIERS: [&str; 4] = ["shunt_in", "shunt_out", "shunt_in_l3", "shunt_out_l3"];

/// Program for the driver of a device with an Ethernet header.
pub(super) const DRIVER: &str = "shunt_xdp";

/// Programs for a cgroup that keep NodePorts from being bound.
pub(super) const BIND_HOOKS: [&str; 2] = ["sock_bind4", "sock_bind6"];

/// Programs for a cgroup that translate.
pub(super) const SOCKET_HOOKS: [&str; 8] = [
    "sock_connect4",
    "sock_connect6",
    "sock_sendmsg4",
    "sock_sendmsg6",
    "sock_recvmsg4",
    "sock_recvmsg6",
    "sock_getpeername4",
    "sock_getpeername6",
];

/// Rows a map has room for, per family where there are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Rows of `frontends`: addresses services answer on.
    pub frontends: u32,
    /// Entries of `backends`: endpoints.
    pub backends: u32,
    /// Entries of `slots`: candidates of all frontends together.
    pub slots: u32,
    /// Rows of `conntrack`, two to four per connection.
    pub conntrack: u32,
    /// Rows of `services`: service ports.
    pub services: u32,
    /// Rows of `affinity`: clients with session affinity.
    pub affinity: u32,
    /// Rows of `source_ranges`: ranges that load-balancer addresses are restricted to.
    pub source_ranges: u32,
}

impl Default for Capacities {
    fn default() -> Self {
        Self {
            frontends: maps::frontends::CAPACITY,
            backends: maps::backends::CAPACITY,
            slots: maps::slots::CAPACITY,
            conntrack: maps::conntrack::CAPACITY,
            services: maps::services::CAPACITY,
            affinity: maps::affinity::CAPACITY,
            source_ranges: maps::source_ranges::CAPACITY,
        }
    }
}

/// Name in the object (the kernel allows 15 bytes), name of the pin, capacity if it is not always the same.
pub(super) type MapSpec = (&'static str, &'static str, Option<fn(&Capacities) -> u32>);

pub(super) const MAPS: &[MapSpec] = &[
    ("ADDR_FILTER_V4", "address_filter_v4", None),
    ("ADDR_FILTER_V6", "address_filter_v6", None),
    ("FRONTENDS_V4", "frontends_v4", Some(|c| c.frontends)),
    ("FRONTENDS_V6", "frontends_v6", Some(|c| c.frontends)),
    ("SLOTS_V4", "slots_v4", Some(|c| c.slots)),
    ("SLOTS_V6", "slots_v6", Some(|c| c.slots)),
    ("BACKENDS_V4", "backends_v4", Some(|c| c.backends)),
    ("BACKENDS_V6", "backends_v6", Some(|c| c.backends)),
    ("CONNTRACK_V4", "conntrack_v4", Some(|c| c.conntrack)),
    ("CONNTRACK_V6", "conntrack_v6", Some(|c| c.conntrack)),
    ("TRANSIENT_V4", "transient_v4", Some(|c| transient::capacity(c.conntrack))),
    ("TRANSIENT_V6", "transient_v6", Some(|c| transient::capacity(c.conntrack))),
    ("TURNS_V4", "turns_v4", None),
    ("TURNS_V6", "turns_v6", None),
    ("NEXT_HOPS", "next_hops", None),
    ("ROUTES", "routes", None),
    ("NODE_ADDRS_V4", "node_addresses_v4", None),
    ("NODE_ADDRS_V6", "node_addresses_v6", None),
    ("SERVICE_CIDR_V4", "service_cidrs_v4", None),
    ("SERVICE_CIDR_V6", "service_cidrs_v6", None),
    ("SRC_RANGES_V4", "source_ranges_v4", Some(|c| c.source_ranges)),
    ("SRC_RANGES_V6", "source_ranges_v6", Some(|c| c.source_ranges)),
    ("AFFINITY_V4", "affinity_v4", Some(|c| c.affinity)),
    ("AFFINITY_V6", "affinity_v6", Some(|c| c.affinity)),
    ("FRAGMENTS_V4", "fragments_v4", Some(|_| lru_capacity(maps::fragments::CAPACITY))),
    ("FRAGMENTS_V6", "fragments_v6", Some(|_| lru_capacity(maps::fragments::CAPACITY))),
    ("HELD_PORTS_V4", "held_ports_v4", Some(|_| lru_capacity(maps::held_ports::CAPACITY))),
    ("HELD_PORTS_V6", "held_ports_v6", Some(|_| lru_capacity(maps::held_ports::CAPACITY))),
    ("HELD_FRAGMENTS", "held_fragments", None),
    ("HELD_TURNS", "held_turns", None),
    ("SOCK_DATA_V4", "socket_datagrams_v4", None),
    ("SOCK_DATA_V6", "socket_datagrams_v6", None),
    ("STALE_SOCKS_V4", "stale_sockets_v4", None),
    ("STALE_SOCKS_V6", "stale_sockets_v6", None),
    ("STALE_WAYS_V4", "stale_ways_v4", None),
    ("STALE_WAYS_V6", "stale_ways_v6", None),
    ("SOCK_PEERS_V4", "socket_peers_v4", None),
    ("SOCK_PEERS_V6", "socket_peers_v6", None),
    ("NETNS_ADDRS_V4", "netns_addresses_v4", Some(|_| lru_capacity(maps::netns_addresses::CAPACITY))),
    ("NETNS_ADDRS_V6", "netns_addresses_v6", Some(|_| lru_capacity(maps::netns_addresses::CAPACITY))),
    ("OPENED_V4", "opened_v4", Some(|c| c.backends)),
    ("OPENED_V6", "opened_v6", Some(|c| c.backends)),
    ("TRAFFIC_V4", "traffic_v4", Some(|c| c.backends.saturating_mul(2))),
    ("TRAFFIC_V6", "traffic_v6", Some(|c| c.backends.saturating_mul(2))),
    ("SOCKET_EXEMPT", "socket_lb_exempt", None),
    ("DEVICES", "devices", None),
    ("DEVICE_STATUS", "device_status", None),
    ("REFUSED", "refused_services", None),
    ("SETTINGS", "settings", None),
    ("SWEEP", "sweep", None),
    ("DROPS", "drops", None),
    ("SERVICE_DROPS", "service_drops", Some(|_| lru_capacity(maps::service_drops::CAPACITY))),
    ("TRACE", "trace", None),
    ("EVENTS", "events", None),
    ("TAILS", "tails", None),
    ("SERVICES", "services", Some(|c| c.services)),
];

/// Loads the object with its maps pinned or adopted, and the programs that every node needs
/// through the verifier.
///
/// # Errors
/// When the kernel refuses a map or a program.
pub(super) fn load(
    pins: &Pins,
    capacities: &Capacities,
    log_level: u8,
    xdp: XdpPolicy,
) -> Result<Ebpf, KernelError> {
    let mut loader = EbpfLoader::new();
    let cables = u8::from(xdp.takes_cables());
    loader.override_global(aya_log::LEVEL, &log_level, true);
    loader.override_global("CABLES", &cables, true);
    loader.override_global("CONNTRACK_ROWS", &capacities.conntrack, true);
    for &(name, pin, capacity) in MAPS {
        loader.map_pin_path(name, pins.map(pin));
        if let Some(capacity) = capacity {
            loader.map_max_entries(name, capacity(capacities));
        }
    }
    let mut ebpf = loader.load(OBJECT)?;
    let hooks = BIND_HOOKS.into_iter().chain(SOCKET_HOOKS);
    load_programs(&mut ebpf, classifiers(true).chain(hooks))?;
    Ok(ebpf)
}

/// Loads the programs for devices without an Ethernet header. Few nodes have such devices, and they are half of what
/// the verifier has to do.
///
/// # Errors
/// When the kernel refuses one.
pub(super) fn load_layer3(ebpf: &mut Ebpf) -> Result<(), KernelError> {
    load_programs(ebpf, classifiers(false))
}

/// The programs for devices with an Ethernet header, or without.
fn classifiers(ethernet: bool) -> impl Iterator<Item = &'static str> {
    let entries = if ethernet { &CLASSIFIERS[..2] } else { &CLASSIFIERS[2..] };
    entries.iter().copied().chain(tails::programs(ethernet).map(|(_, name)| name))
}

/// Loads the program for drivers. The node works without it, so a kernel that refuses it is
/// no reason not to start.
///
/// # Errors
/// When the verifier refuses it.
pub(super) fn load_driver(ebpf: &mut Ebpf) -> Result<(), KernelError> {
    let program = program::<Xdp>(ebpf, DRIVER)?;
    program.load().map_err(|source| KernelError::Program { name: DRIVER, source })
}

/// The program called `name`, of the kind `P`.
///
/// # Errors
/// When the object has no such program of that kind.
pub(super) fn program<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, KernelError>
where
    &'a mut P: TryFrom<&'a mut Program, Error = aya::programs::ProgramError>,
{
    let source = aya::programs::ProgramError::NotLoaded;
    let program = ebpf.program_mut(name).ok_or(KernelError::Program { name, source })?;
    program.try_into().map_err(|source| KernelError::Program { name, source })
}

/// The reader of the programs' log lines, which it passes on to the `log` façade.
pub(super) fn logger(ebpf: &mut Ebpf) -> Option<EbpfLogger<&'static dyn log::Log>> {
    EbpfLogger::init(ebpf).inspect_err(|error| tracing::warn!(%error, "no logs from the datapath")).ok()
}

/// Whether the pinned maps are such as this agent would make: aya takes a pinned map as it finds
/// it, and a row of another layout would be read as garbage. Maps that are missing can be made.
///
/// # Errors
/// When a map cannot be looked at.
pub(super) fn fits(pins: &Pins, capacities: &Capacities) -> Result<bool, KernelError> {
    if pins.generation().layout() != Some(LAYOUT_VERSION) || pins.generation().number() == 0 {
        return Ok(false);
    }
    let object = parse()?;
    for &(name, pin, capacity) in MAPS {
        let path = pins.map(pin);
        let Some(wanted) = object.maps.get(name).filter(|_| path.exists()) else { continue };
        let info = MapInfo::from_pin(&path).map_err(|source| KernelError::Map { name: pin, source })?;
        let max_entries = capacity.map_or(wanted.max_entries(), |c| c(capacities));
        let found = (info.key_size(), info.value_size(), info.max_entries());
        if found != (wanted.key_size(), wanted.value_size(), max_entries) {
            tracing::info!(map = pin, ?found, wanted = ?(wanted.key_size(), wanted.value_size(), max_entries), "a map of another shape");
            return Ok(false);
        }
    }
    Ok(true)
}

/// What the object declares.
///
/// # Errors
/// When it is none.
pub(super) fn parse() -> Result<aya_obj::Object, KernelError> {
    Ok(aya_obj::Object::parse(OBJECT).map_err(aya::EbpfError::ParseError)?)
}

/// The names of all maps in the object, with those of their pins.
pub(super) fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    MAPS.iter().map(|(name, pin, ..)| (*name, *pin))
}

/// The names of all pins of maps.
pub(super) fn pin_names() -> impl Iterator<Item = &'static str> {
    MAPS.iter().map(|(_, pin, _)| *pin)
}

/// Opens a pinned map.
///
/// # Errors
/// When there is no such pin.
pub(super) fn pinned(pins: &Pins, name: &'static str) -> Result<Map, KernelError> {
    let data = MapData::from_pin(pins.map(name)).map_err(|source| KernelError::Map { name, source })?;
    Map::from_map_data(data).map_err(|source| KernelError::Map { name, source })
}

#[cfg(test)]
mod stack;
