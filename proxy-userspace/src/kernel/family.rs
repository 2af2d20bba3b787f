//! The pinned maps of one address family as the dataplane writes them.

use std::io;

use aya::{
    Pod,
    maps::{LpmTrie, MapData, lpm_trie::Key},
};
use proxy_common::{
    addr::{Addr, Ip4, Ip6},
    maps::{
        self,
        affinity::{Affinity, AffinityKey},
        backends::{Backend, flags::PRESENT},
        conntrack::{CtEntry, CtKey},
        counters::{CounterKey, Traffic},
        frontends::{Frontend, FrontendKey},
        service_cidrs::Prefix,
        settings::TimeoutSecs,
        socket_datagrams::{ListedPair, SocketPair},
        source_ranges::SourceRange,
        stale_ways::Way,
        sweep::SweptConnection,
    },
};

use super::{
    counts::counts,
    error::KernelError,
    filter::AddressFilter,
    hash::HashTable,
    iterators::{LIST_SOCKETS, MapIterator, SWEEPS},
    mmap::MappedArray,
    pins::Pins,
    sweep::ConnectionSweep,
    trie::{self, ServiceAddr, cidr_rows, delete_from, range_key, range_rows, trie_error},
};
use crate::dataplane::{FamilyMaps, MapError, MapName};

/// The maps of one family.
pub struct KernelFamily<A: Addr> {
    pub(super) address_filter: AddressFilter,
    frontends: HashTable,
    backends: MappedArray<Backend<A>>,
    slots: MappedArray<u32>,
    node_addresses: HashTable,
    service_cidrs: LpmTrie<MapData, A, u32>,
    source_ranges: LpmTrie<MapData, ServiceAddr<A>, u32>,
    conntrack: HashTable,
    affinity: HashTable,
    stale_sockets: HashTable,
    sweep: ConnectionSweep,
    pins: Pins,
    opened: HashTable,
    traffic: HashTable,
}

/// Names of the pins of one family.
pub(super) struct FamilyPins {
    pub(super) address_filter: &'static str,
    pub(super) frontends: &'static str,
    pub(super) backends: &'static str,
    pub(super) slots: &'static str,
    pub(super) node_addresses: &'static str,
    pub(super) service_cidrs: &'static str,
    pub(super) source_ranges: &'static str,
    pub(super) conntrack: &'static str,
    pub(super) transient: &'static str,
    pub(super) turns: &'static str,
    pub(super) affinity: &'static str,
    pub(super) netns_addresses: &'static str,
    pub(super) stale_sockets: &'static str,
    pub(super) stale_ways: &'static str,
    pub(super) list_sockets: MapIterator,
    pub(super) sweep: MapIterator,
    pub(super) opened: &'static str,
    pub(super) traffic: &'static str,
}

pub(super) const V4: FamilyPins = FamilyPins {
    address_filter: "address_filter_v4",
    frontends: "frontends_v4",
    backends: "backends_v4",
    slots: "slots_v4",
    node_addresses: "node_addresses_v4",
    service_cidrs: "service_cidrs_v4",
    source_ranges: "source_ranges_v4",
    conntrack: "conntrack_v4",
    transient: "transient_v4",
    turns: "turns_v4",
    affinity: "affinity_v4",
    netns_addresses: "netns_addresses_v4",
    stale_sockets: "stale_sockets_v4",
    stale_ways: "stale_ways_v4",
    list_sockets: LIST_SOCKETS[0],
    sweep: SWEEPS[0],
    opened: "opened_v4",
    traffic: "traffic_v4",
};

pub(super) const V6: FamilyPins = FamilyPins {
    address_filter: "address_filter_v6",
    frontends: "frontends_v6",
    backends: "backends_v6",
    slots: "slots_v6",
    node_addresses: "node_addresses_v6",
    service_cidrs: "service_cidrs_v6",
    source_ranges: "source_ranges_v6",
    conntrack: "conntrack_v6",
    transient: "transient_v6",
    turns: "turns_v6",
    affinity: "affinity_v6",
    netns_addresses: "netns_addresses_v6",
    stale_sockets: "stale_sockets_v6",
    stale_ways: "stale_ways_v6",
    list_sockets: LIST_SOCKETS[1],
    sweep: SWEEPS[1],
    opened: "opened_v6",
    traffic: "traffic_v6",
};

/// An address whose map rows may be copied to and from the kernel.
pub trait KernelAddr: Addr + Pod + std::hash::Hash {
    #[doc(hidden)]
    const PINS: FamilyPinsOf;
}

/// The pins of an address family; opaque outside this module.
pub struct FamilyPinsOf(pub(super) &'static FamilyPins);

impl KernelAddr for Ip4 {
    const PINS: FamilyPinsOf = FamilyPinsOf(&V4);
}

impl KernelAddr for Ip6 {
    const PINS: FamilyPinsOf = FamilyPinsOf(&V6);
}

pub(super) fn mapped<T: Pod>(pins: &Pins, name: &'static str) -> Result<MappedArray<T>, KernelError> {
    let data = MapData::from_pin(pins.map(name)).map_err(|source| KernelError::Map { name, source })?;
    MappedArray::new(&data)
        .map_err(|source| KernelError::System { what: format!("map {name} into memory"), source })
}

impl<A: KernelAddr> KernelFamily<A> {
    pub(super) fn open(pins: &Pins) -> Result<Self, KernelError> {
        let names = A::PINS.0;
        let mut maps = Self {
            address_filter: AddressFilter::new(mapped(pins, names.address_filter)?),
            frontends: HashTable::open(pins, names.frontends, MapName::Frontends)?,
            backends: mapped(pins, names.backends)?,
            slots: mapped(pins, names.slots)?,
            node_addresses: HashTable::open(pins, names.node_addresses, MapName::NodeAddresses)?,
            service_cidrs: trie::open(pins, names.service_cidrs)?,
            source_ranges: trie::open(pins, names.source_ranges)?,
            conntrack: HashTable::open(pins, names.conntrack, MapName::Conntrack)?,
            affinity: HashTable::open(pins, names.affinity, MapName::Affinity)?,
            stale_sockets: HashTable::open(pins, names.stale_sockets, MapName::StaleSockets)?,
            sweep: ConnectionSweep::open::<A>(pins)?,
            pins: pins.clone(),
            opened: HashTable::open(pins, names.opened, MapName::Opened)?,
            traffic: HashTable::open(pins, names.traffic, MapName::Traffic)?,
        };
        maps.admit_all()?;
        maps.clear_stale_sockets()?;
        Ok(maps)
    }

    fn each_pair(&self, visit: impl FnMut(ListedPair<A>)) -> Result<(), MapError> {
        each_socket_pair(&self.pins, visit)
            .map_err(|source| self.stale_sockets.error("list what UDP sockets hold".into(), source))
    }

    /// Listing the sockets removes nothing more from them.
    fn clear_stale_sockets(&mut self) -> Result<(), MapError> {
        let rows: Vec<(SocketPair<A>, u32)> = self.stale_sockets.rows()?;
        self.stale_sockets.delete(&rows.into_iter().map(|(pair, _)| pair).collect::<Vec<_>>())
    }

    /// Has packets looked at that rows of an earlier agent are for, whatever it left of the filter.
    fn admit_all(&mut self) -> Result<(), MapError> {
        for (key, _) in self.frontends()? {
            self.address_filter.admit_frontend(&key)?;
        }
        for (addr, _) in self.node_addresses()? {
            self.address_filter.admit_node(&addr)?;
        }
        for id in 0..self.backend_capacity() {
            let backend = self.backend(id)?;
            if backend.flags & PRESENT != 0 {
                self.address_filter.admit_backend(&backend.addr, backend.port)?;
            }
        }
        Ok(())
    }
}

/// Calls `visit` with what UDP sockets hold, without pairs of `stale_sockets`, which are removed; with nothing where
/// the kernel has no such iterators.
pub(super) fn each_socket_pair<A: KernelAddr>(
    pins: &Pins,
    visit: impl FnMut(ListedPair<A>),
) -> io::Result<()> {
    match A::PINS.0.list_sockets.run(pins, visit) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn fatal(map: MapName) -> impl Fn(io::Error) -> MapError {
    move |source| MapError::Fatal { map, source }
}

/// Sizes of rows are those of the pins: `object::fits` tells pins of another shape.
impl<A: KernelAddr> FamilyMaps<A> for KernelFamily<A> {
    fn capacity(&self, map: MapName) -> u32 {
        match map {
            MapName::AddressFilter => self.address_filter.len(),
            MapName::Frontends => self.frontends.capacity(),
            MapName::Backends => self.backends.len(),
            MapName::Slots => self.slots.len(),
            MapName::NodeAddresses => self.node_addresses.capacity(),
            MapName::Conntrack => self.conntrack.capacity(),
            MapName::Affinity => self.affinity.capacity(),
            MapName::StaleSockets => self.stale_sockets.capacity(),
            MapName::StaleWays => self.sweep.capacity(),
            MapName::Opened => self.opened.capacity(),
            MapName::Traffic => self.traffic.capacity(),
            MapName::SourceRanges => trie::capacity(&self.source_ranges),
            MapName::ServiceCidrs => maps::service_cidrs::CAPACITY,
            // Of no family.
            MapName::Services
            | MapName::Settings
            | MapName::SocketLbExempt
            | MapName::Devices
            | MapName::DeviceStatus
            | MapName::RefusedServices => 0,
        }
    }

    fn each_frontend(&self, visit: &mut dyn FnMut(&FrontendKey<A>, &Frontend)) -> Result<(), MapError> {
        self.frontends.each(|key, value| visit(&key, &value))
    }

    fn frontends(&self) -> Result<Vec<(FrontendKey<A>, Frontend)>, MapError> {
        self.frontends.rows()
    }

    fn put_frontends(&mut self, rows: &[(FrontendKey<A>, Frontend)]) -> Result<(), MapError> {
        rows.iter().try_for_each(|(key, _)| self.address_filter.admit_frontend(key))?;
        self.frontends.put(rows)
    }

    fn delete_frontends(&mut self, keys: &[FrontendKey<A>]) -> Result<(), MapError> {
        self.frontends.delete(keys)
    }

    fn backend(&self, id: u32) -> Result<Backend<A>, MapError> {
        self.backends.get(id).map_err(fatal(MapName::Backends))
    }

    fn put_backends(&mut self, rows: &[(u32, Backend<A>)]) -> Result<(), MapError> {
        rows.iter().try_for_each(|(_, row)| self.address_filter.admit_backend(&row.addr, row.port))?;
        rows.iter().try_for_each(|(id, row)| self.backends.set(*id, *row)).map_err(fatal(MapName::Backends))
    }

    fn backend_capacity(&self) -> u32 {
        self.backends.len()
    }

    fn slots(&self, offset: u32, out: &mut [u32]) -> Result<(), MapError> {
        for (index, out) in (offset..).zip(out) {
            *out = self.slots.get(index).map_err(fatal(MapName::Slots))?;
        }
        Ok(())
    }

    fn put_slots(&mut self, offset: u32, ids: &[u32]) -> Result<(), MapError> {
        (offset..)
            .zip(ids)
            .try_for_each(|(index, id)| self.slots.set(index, *id))
            .map_err(fatal(MapName::Slots))
    }

    fn slot_capacity(&self) -> u32 {
        self.slots.len()
    }

    fn node_addresses(&self) -> Result<Vec<(A, u32)>, MapError> {
        self.node_addresses.rows()
    }

    fn put_node_addresses(&mut self, rows: &[(A, u32)]) -> Result<(), MapError> {
        rows.iter().try_for_each(|(addr, _)| self.address_filter.admit_node(addr))?;
        self.node_addresses.put(rows)
    }

    fn delete_node_addresses(&mut self, addrs: &[A]) -> Result<(), MapError> {
        self.node_addresses.delete(addrs)
    }

    fn service_cidrs(&self) -> Result<Vec<Prefix<A>>, MapError> {
        cidr_rows(&self.service_cidrs)
    }

    fn put_service_cidrs(&mut self, rows: &[Prefix<A>]) -> Result<(), MapError> {
        rows.iter()
            .try_for_each(|p| self.service_cidrs.insert(&Key::new(p.bits, p.addr), 1, 0))
            .map_err(trie_error(MapName::ServiceCidrs, "write a row"))
    }

    fn delete_service_cidrs(&mut self, rows: &[Prefix<A>]) -> Result<(), MapError> {
        let map = MapName::ServiceCidrs;
        rows.iter().try_for_each(|p| delete_from(&mut self.service_cidrs, &Key::new(p.bits, p.addr), map))
    }

    fn source_ranges(&self) -> Result<Vec<SourceRange<A>>, MapError> {
        range_rows(&self.source_ranges)
    }

    fn put_source_ranges(&mut self, rows: &[SourceRange<A>]) -> Result<(), MapError> {
        let written = rows.iter().try_for_each(|row| self.source_ranges.insert(&range_key(row), 1, 0));
        written.map_err(|error| trie::write_error(&self.source_ranges, MapName::SourceRanges, error))
    }

    fn delete_source_ranges(&mut self, rows: &[SourceRange<A>]) -> Result<(), MapError> {
        let map = MapName::SourceRanges;
        rows.iter().try_for_each(|row| delete_from(&mut self.source_ranges, &range_key(row), map))
    }

    fn each_conntrack(&self, visit: &mut dyn FnMut(&CtKey<A>, &CtEntry<A>)) -> Result<(), MapError> {
        self.conntrack.each(|k, v| visit(&k, &v))
    }

    fn put_conntrack(&mut self, rows: &[(CtKey<A>, CtEntry<A>)]) -> Result<(), MapError> {
        rows.iter().try_for_each(|(key, row)| self.address_filter.admit_row(key, row))?;
        self.conntrack.put(&rows.iter().map(|(key, row)| (*key, row.at(key))).collect::<Vec<_>>())
    }

    fn delete_conntrack(&mut self, keys: &[CtKey<A>]) -> Result<(), MapError> {
        self.conntrack.delete(keys)
    }

    fn sweep(
        &mut self,
        now_ns: u64,
        timeouts: TimeoutSecs,
        visit: &mut dyn FnMut(&SweptConnection<A>),
    ) -> Result<usize, MapError> {
        self.sweep.sweep(now_ns, timeouts, |swept| visit(&swept))
    }

    fn cut(&mut self, ways: &[Way<A>]) -> Result<usize, MapError> {
        self.sweep.cut(ways)
    }

    fn each_affinity(&self, visit: &mut dyn FnMut(&AffinityKey<A>, &Affinity)) -> Result<(), MapError> {
        self.affinity.each(|key, row| visit(&key, &row))
    }

    fn each_socket_pair(&self, visit: &mut dyn FnMut(&ListedPair<A>)) -> Result<(), MapError> {
        self.each_pair(|listed| visit(&listed))
    }

    fn forget_socket_pairs(&mut self, pairs: &[SocketPair<A>]) -> Result<(), MapError> {
        for pairs in pairs.chunks(maps::stale_sockets::CAPACITY as usize) {
            self.stale_sockets.put(&pairs.iter().map(|pair| (*pair, 1u32)).collect::<Vec<_>>())?;
            let removed = self.each_pair(|_| ());
            self.clear_stale_sockets()?;
            removed?;
        }
        Ok(())
    }

    fn opened(&self) -> Result<Vec<(CounterKey, u64)>, MapError> {
        let rows = counts(&self.pins, A::PINS.0.opened);
        rows.map_err(|source| self.opened.error("read the rows".into(), source))
    }

    fn traffic(&self) -> Result<Vec<(CounterKey, Traffic)>, MapError> {
        self.traffic.rows()
    }

    fn delete_counters(&mut self, keys: &[CounterKey]) -> Result<(), MapError> {
        self.opened.delete(keys)?;
        let by_programs: Vec<_> = keys.iter().map(|key| key.by_programs()).collect();
        self.traffic.delete(&by_programs)?;
        self.traffic.delete(keys)
    }
}
