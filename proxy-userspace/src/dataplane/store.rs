//! What the reconciler needs of the maps and of the host's sockets, and how writing fails.

use std::{fmt, io, net::SocketAddr};

use proxy_common::{
    addr::{Addr, Ip4, Ip6},
    maps::{
        affinity::{Affinity, AffinityKey},
        backends::Backend,
        conntrack::{CtEntry, CtKey},
        counters::{CounterKey, Traffic},
        frontends::{Frontend, FrontendKey},
        service_cidrs::Prefix,
        services::ServiceRow,
        settings::{Settings, TimeoutSecs},
        socket_datagrams::{ListedPair, SocketPair},
        source_ranges::SourceRange,
        stale_ways::Way,
        sweep::SweptConnection,
    },
};

/// All maps of the datapath that user space reconciles.
///
/// Batches may be carried out in part when they fail: the reconciler writes again what
/// it does not know to be written. Deleting what does not exist is no error. Every read
/// is of the kernel's own content, never of a cache.
pub trait MapStore {
    /// The maps of IPv4.
    type V4: FamilyMaps<Ip4>;
    /// The maps of IPv6.
    type V6: FamilyMaps<Ip6>;

    /// The maps of IPv4.
    fn v4(&mut self) -> &mut Self::V4;
    /// The maps of IPv6.
    fn v6(&mut self) -> &mut Self::V6;

    /// Calls `visit` with every row of `services`, some twice if others write meanwhile.
    fn each_service(&self, visit: &mut dyn FnMut(u32, &ServiceRow)) -> Result<(), MapError>;
    /// Every row of `services`.
    fn services(&self) -> Result<Vec<(u32, ServiceRow)>, MapError>;
    /// Inserts or replaces rows of `services`.
    fn put_services(&mut self, rows: &[(u32, ServiceRow)]) -> Result<(), MapError>;
    /// Removes rows of `services`.
    fn delete_services(&mut self, ids: &[u32]) -> Result<(), MapError>;
    /// Rows that `services` has room for.
    fn service_capacity(&self) -> u32;

    /// The row of `settings`.
    fn settings(&self) -> Result<Settings, MapError>;
    /// Writes the row of `settings`.
    fn put_settings(&mut self, settings: &Settings) -> Result<(), MapError>;

    /// Returns when every program that ran before has ended: none of them still reads what is then not named
    /// any more.
    fn wait_for_programs(&mut self) -> Result<(), MapError>;
}

/// The maps of one family.
///
/// `backends` and `slots` are arrays: their rows always exist, and reading them costs
/// memory bandwidth only. Ids and indices passed in are below the capacity.
pub trait FamilyMaps<A: Addr> {
    /// Rows that a map of this family has room for; 0 when it cannot be told.
    fn capacity(&self, map: MapName) -> u32;

    /// Calls `visit` with every row of `frontends`, some twice if others write meanwhile.
    fn each_frontend(&self, visit: &mut dyn FnMut(&FrontendKey<A>, &Frontend)) -> Result<(), MapError>;
    /// Every row of `frontends`.
    fn frontends(&self) -> Result<Vec<(FrontendKey<A>, Frontend)>, MapError>;
    /// Inserts or replaces rows of `frontends`.
    fn put_frontends(&mut self, rows: &[(FrontendKey<A>, Frontend)]) -> Result<(), MapError>;
    /// Removes rows of `frontends`.
    fn delete_frontends(&mut self, keys: &[FrontendKey<A>]) -> Result<(), MapError>;

    /// The row of a backend.
    fn backend(&self, id: u32) -> Result<Backend<A>, MapError>;
    /// Writes rows of `backends`.
    fn put_backends(&mut self, rows: &[(u32, Backend<A>)]) -> Result<(), MapError>;
    /// Rows in `backends`, id 0 included.
    fn backend_capacity(&self) -> u32;

    /// Reads `out.len()` slots from `offset` on.
    fn slots(&self, offset: u32, out: &mut [u32]) -> Result<(), MapError>;
    /// Writes slots from `offset` on.
    fn put_slots(&mut self, offset: u32, ids: &[u32]) -> Result<(), MapError>;
    /// Rows in `slots`.
    fn slot_capacity(&self) -> u32;

    /// Every row of `node_addresses`.
    fn node_addresses(&self) -> Result<Vec<(A, u32)>, MapError>;
    /// Inserts or replaces rows of `node_addresses`.
    fn put_node_addresses(&mut self, rows: &[(A, u32)]) -> Result<(), MapError>;
    /// Removes rows of `node_addresses`.
    fn delete_node_addresses(&mut self, addrs: &[A]) -> Result<(), MapError>;

    /// Every row of `service_cidrs`.
    fn service_cidrs(&self) -> Result<Vec<Prefix<A>>, MapError>;
    /// Inserts rows of `service_cidrs`.
    fn put_service_cidrs(&mut self, rows: &[Prefix<A>]) -> Result<(), MapError>;
    /// Removes rows of `service_cidrs`.
    fn delete_service_cidrs(&mut self, rows: &[Prefix<A>]) -> Result<(), MapError>;

    /// Every row of `source_ranges`.
    fn source_ranges(&self) -> Result<Vec<SourceRange<A>>, MapError>;
    /// Inserts rows of `source_ranges`.
    fn put_source_ranges(&mut self, rows: &[SourceRange<A>]) -> Result<(), MapError>;
    /// Removes rows of `source_ranges`.
    fn delete_source_ranges(&mut self, rows: &[SourceRange<A>]) -> Result<(), MapError>;

    /// Calls `visit` with the rows of `conntrack`; rows that come or go meanwhile may be missed.
    fn each_conntrack(&self, visit: &mut dyn FnMut(&CtKey<A>, &CtEntry<A>)) -> Result<(), MapError>;
    /// Inserts or replaces rows of `conntrack`.
    fn put_conntrack(&mut self, rows: &[(CtKey<A>, CtEntry<A>)]) -> Result<(), MapError>;
    /// Removes rows of `conntrack`.
    fn delete_conntrack(&mut self, keys: &[CtKey<A>]) -> Result<(), MapError>;
    /// Sweeps `conntrack`: removes connections that are over at `now_ns` (`CLOCK_MONOTONIC`), keeps in
    /// `traffic` what they carried, and calls `visit` with every one. Of connections that come or go meanwhile some
    /// may be missed. Returns how many rows were looked at: of connections that go, not all are.
    fn sweep(
        &mut self,
        now_ns: u64,
        timeouts: TimeoutSecs,
        visit: &mut dyn FnMut(&SweptConnection<A>),
    ) -> Result<usize, MapError>;
    /// Removes connections of datagrams that go one of these ways; returns how many.
    fn cut(&mut self, ways: &[Way<A>]) -> Result<usize, MapError>;

    /// Calls `visit` with the rows of `affinity`; rows that come or go meanwhile may be missed.
    fn each_affinity(&self, visit: &mut dyn FnMut(&AffinityKey<A>, &Affinity)) -> Result<(), MapError>;

    /// Calls `visit` with what UDP sockets hold; of sockets that come or go meanwhile some may be missed.
    fn each_socket_pair(&self, visit: &mut dyn FnMut(&ListedPair<A>)) -> Result<(), MapError>;
    /// Has every socket forget these pairs.
    fn forget_socket_pairs(&mut self, pairs: &[SocketPair<A>]) -> Result<(), MapError>;

    /// Every row of `opened`.
    fn opened(&self) -> Result<Vec<(CounterKey, u64)>, MapError>;
    /// Every row of `traffic`.
    fn traffic(&self) -> Result<Vec<(CounterKey, Traffic)>, MapError>;
    /// Removes rows of `opened` and of `traffic`.
    fn delete_counters(&mut self, keys: &[CounterKey]) -> Result<(), MapError>;
}

/// A socket that socket LB connected to a backend it may not use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StaleSocket {
    /// `SO_COOKIE`: no other socket ever has the same.
    pub cookie: u64,
    /// The backend.
    pub peer: SocketAddr,
}

/// The sockets of the host and of its pods.
pub trait Sockets {
    /// Destroys those of `stale` that are connected to that peer still, and returns how
    /// many there were. All others are left alone.
    fn destroy(&mut self, stale: &[StaleSocket]) -> io::Result<usize>;
}

/// A map, as errors and metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MapName {
    /// `services`.
    Services,
    /// `settings`.
    Settings,
    /// `address_filter_v4` or `address_filter_v6`.
    AddressFilter,
    /// `frontends_v4` or `frontends_v6`.
    Frontends,
    /// `backends_v4` or `backends_v6`.
    Backends,
    /// `slots_v4` or `slots_v6`.
    Slots,
    /// `node_addresses_v4` or `node_addresses_v6`.
    NodeAddresses,
    /// `service_cidrs_v4` or `service_cidrs_v6`.
    ServiceCidrs,
    /// `source_ranges_v4` or `source_ranges_v6`.
    SourceRanges,
    /// `conntrack_v4` or `conntrack_v6`.
    Conntrack,
    /// `affinity_v4` or `affinity_v6`.
    Affinity,
    /// `stale_sockets_v4` or `stale_sockets_v6`.
    StaleSockets,
    /// `stale_ways_v4` or `stale_ways_v6`.
    StaleWays,
    /// `opened_v4` or `opened_v6`.
    Opened,
    /// `traffic_v4` or `traffic_v6`.
    Traffic,
    /// `socket_lb_exempt`.
    SocketLbExempt,
    /// `devices`.
    Devices,
    /// `device_status`.
    DeviceStatus,
    /// `refused_services`.
    RefusedServices,
}

impl MapName {
    /// The name without the family.
    pub fn name(self) -> &'static str {
        match self {
            MapName::Services => "services",
            MapName::Settings => "settings",
            MapName::AddressFilter => "address_filter",
            MapName::Frontends => "frontends",
            MapName::Backends => "backends",
            MapName::Slots => "slots",
            MapName::NodeAddresses => "node_addresses",
            MapName::ServiceCidrs => "service_cidrs",
            MapName::SourceRanges => "source_ranges",
            MapName::Conntrack => "conntrack",
            MapName::Affinity => "affinity",
            MapName::StaleSockets => "stale_sockets",
            MapName::StaleWays => "stale_ways",
            MapName::Opened => "opened",
            MapName::Traffic => "traffic",
            MapName::SocketLbExempt => "socket_lb_exempt",
            MapName::Devices => "devices",
            MapName::DeviceStatus => "device_status",
            MapName::RefusedServices => "refused_services",
        }
    }
}

impl fmt::Display for MapName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a map was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// It may work the next time.
    #[error("map {map}: cannot {what}: {source}")]
    Retryable {
        /// The map.
        map: MapName,
        /// What was tried, for example `write 3 rows`.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The map has no room; it works once something else goes.
    #[error("map {map} is full ({capacity} rows)")]
    Full {
        /// The map.
        map: MapName,
        /// How many rows it has.
        capacity: u32,
    },
    /// One Service needs more of the map than it may have; it works once the map is larger.
    #[error("map {map}: the Service needs {rows} rows, and may have {share} of {capacity}")]
    TooLarge {
        /// The map.
        map: MapName,
        /// Rows that the Service needs.
        rows: usize,
        /// Rows that it may have.
        share: usize,
        /// How many rows the map has.
        capacity: u32,
    },
    /// The map does not exist or has another layout; trying again is of no use.
    #[error("map {map} is unusable: {source}")]
    Fatal {
        /// The map.
        map: MapName,
        /// What the kernel said.
        source: io::Error,
    },
}
