//! Maps in memory, for tests and for trying what would be written: they keep what they are told,
//! count it, and fail on demand.
//!
//! Like the kernel's, a batch that fails may have been carried out in part. There is no
//! LRU: flow tables hold whatever is put into them.

mod faults;
mod readers;
mod room;
mod sweep;

use std::collections::BTreeMap;

use proxy_common::{
    addr::{Ip4, Ip6},
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

pub use self::{
    faults::{Fault, Faults},
    readers::Readers,
    room::Room,
};
use super::{FamilyMaps, MapAddr, MapError, MapName, MapStore};

/// All maps.
#[derive(Clone, Debug)]
pub struct MemoryMaps {
    /// The maps of IPv4.
    pub v4: MemoryFamily<Ip4>,
    /// The maps of IPv6.
    pub v6: MemoryFamily<Ip6>,
    /// `services`.
    pub services: BTreeMap<u32, ServiceRow>,
    /// `settings`.
    pub settings: Settings,
    /// Of `services` and `settings`.
    pub faults: Faults,
    service_capacity: u32,
}

/// The maps of one family.
#[derive(Clone, Debug)]
pub struct MemoryFamily<A> {
    /// `frontends`.
    pub frontends: BTreeMap<FrontendKey<A>, Frontend>,
    /// `backends`.
    pub backends: Vec<Backend<A>>,
    /// `slots`.
    pub slots: Vec<u32>,
    /// `node_addresses`.
    pub node_addresses: BTreeMap<A, u32>,
    /// `service_cidrs`.
    pub service_cidrs: Vec<Prefix<A>>,
    /// `source_ranges`.
    pub source_ranges: BTreeMap<SourceRange<A>, ()>,
    /// `conntrack`.
    pub conntrack: Vec<(CtKey<A>, CtEntry<A>)>,
    /// `affinity`.
    pub affinity: Vec<(AffinityKey<A>, Affinity)>,
    /// `socket_datagrams` of all sockets.
    pub socket_pairs: Vec<ListedPair<A>>,
    /// `opened`.
    pub opened: BTreeMap<CounterKey, u64>,
    /// `traffic`.
    pub traffic: BTreeMap<CounterKey, Traffic>,
    /// Of this family's maps.
    pub faults: Faults,
    /// Programs that read them, if there are to be any.
    pub readers: Option<Readers>,
    frontend_capacity: usize,
    source_range_capacity: usize,
}

impl MemoryMaps {
    /// Empty maps, each of them with this capacity.
    pub fn new(capacity: u32) -> Self {
        Self::with_room(Room::each(capacity))
    }

    /// Empty maps.
    pub fn with_room(room: Room) -> Self {
        Self {
            v4: MemoryFamily::new(room),
            v6: MemoryFamily::new(room),
            services: BTreeMap::new(),
            settings: Settings::default(),
            faults: Faults::default(),
            service_capacity: room.services,
        }
    }

    /// Rows that there is room for.
    pub fn room(&self) -> Room {
        Room {
            services: self.service_capacity,
            frontends: self.v4.frontend_capacity as u32,
            backends: self.v4.backends.len() as u32,
            slots: self.v4.slots.len() as u32,
            source_ranges: self.v4.source_range_capacity as u32,
        }
    }

    /// Gives the maps this much room. They lose nothing by it: what has more keeps it.
    pub fn widen(&mut self, room: Room) {
        self.service_capacity = self.service_capacity.max(room.services);
        self.v4.widen(room);
        self.v6.widen(room);
    }

    /// Rows written or deleted so far, in all maps.
    pub fn rows_written(&self) -> u64 {
        self.v4.faults.rows + self.v6.faults.rows + self.faults.rows
    }
}

impl<A: MapAddr> MemoryFamily<A> {
    fn new(room: Room) -> Self {
        Self {
            frontends: BTreeMap::new(),
            backends: vec![Backend::default(); room.backends as usize],
            slots: vec![0; room.slots as usize],
            node_addresses: BTreeMap::new(),
            service_cidrs: Vec::new(),
            source_ranges: BTreeMap::new(),
            conntrack: Vec::new(),
            affinity: Vec::new(),
            socket_pairs: Vec::new(),
            opened: BTreeMap::new(),
            traffic: BTreeMap::new(),
            faults: Faults::default(),
            readers: None,
            frontend_capacity: room.frontends as usize,
            source_range_capacity: room.source_ranges as usize,
        }
    }

    fn widen(&mut self, room: Room) {
        self.backends.resize(self.backends.len().max(room.backends as usize), Backend::default());
        self.slots.resize(self.slots.len().max(room.slots as usize), 0);
        self.frontend_capacity = self.frontend_capacity.max(room.frontends as usize);
        self.source_range_capacity = self.source_range_capacity.max(room.source_ranges as usize);
    }
}

fn put<K: Ord + Copy, V: Copy>(map: &mut BTreeMap<K, V>, rows: &[(K, V)]) {
    map.extend(rows.iter().copied());
}

fn delete<K: Ord, V>(map: &mut BTreeMap<K, V>, keys: &[K]) {
    keys.iter().for_each(|key| drop(map.remove(key)));
}

impl MapStore for MemoryMaps {
    type V4 = MemoryFamily<Ip4>;
    type V6 = MemoryFamily<Ip6>;

    fn v4(&mut self) -> &mut Self::V4 {
        &mut self.v4
    }

    fn v6(&mut self) -> &mut Self::V6 {
        &mut self.v6
    }

    fn each_service(&self, visit: &mut dyn FnMut(u32, &ServiceRow)) -> Result<(), MapError> {
        self.services.iter().for_each(|(id, row)| visit(*id, row));
        Ok(())
    }

    fn services(&self) -> Result<Vec<(u32, ServiceRow)>, MapError> {
        Ok(self.services.iter().map(|(id, row)| (*id, *row)).collect())
    }

    fn put_services(&mut self, rows: &[(u32, ServiceRow)]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::Services, rows.len());
        put(&mut self.services, &rows[..done]);
        result
    }

    fn delete_services(&mut self, ids: &[u32]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::Services, ids.len());
        delete(&mut self.services, &ids[..done]);
        result
    }

    fn service_capacity(&self) -> u32 {
        self.service_capacity
    }

    fn settings(&self) -> Result<Settings, MapError> {
        Ok(self.settings)
    }

    fn put_settings(&mut self, settings: &Settings) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::Settings, 1);
        if done > 0 {
            self.settings = *settings;
        }
        result
    }

    fn wait_for_programs(&mut self) -> Result<(), MapError> {
        self.v4.readers.iter_mut().chain(&mut self.v6.readers).for_each(Readers::end);
        Ok(())
    }
}

impl<A: MapAddr> FamilyMaps<A> for MemoryFamily<A> {
    fn capacity(&self, map: MapName) -> u32 {
        match map {
            MapName::Backends => self.backends.len() as u32,
            MapName::Slots => self.slots.len() as u32,
            MapName::SourceRanges => self.source_range_capacity as u32,
            _ => self.frontend_capacity as u32,
        }
    }

    fn each_frontend(&self, visit: &mut dyn FnMut(&FrontendKey<A>, &Frontend)) -> Result<(), MapError> {
        self.frontends.iter().for_each(|(key, value)| visit(key, value));
        Ok(())
    }

    fn frontends(&self) -> Result<Vec<(FrontendKey<A>, Frontend)>, MapError> {
        Ok(self.frontends.iter().map(|(key, value)| (*key, *value)).collect())
    }

    fn put_frontends(&mut self, rows: &[(FrontendKey<A>, Frontend)]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::Frontends, rows.len());
        for row in &rows[..done] {
            if self.frontends.len() >= self.frontend_capacity && !self.frontends.contains_key(&row.0) {
                let capacity = self.frontend_capacity as u32;
                return Err(MapError::Full { map: MapName::Frontends, capacity });
            }
            let held = self.frontends.get(&row.0).copied();
            self.leave(held.filter(|held| *held != row.1));
            put(&mut self.frontends, &[*row]);
        }
        result
    }

    fn delete_frontends(&mut self, keys: &[FrontendKey<A>]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::Frontends, keys.len());
        for key in &keys[..done] {
            let held = self.frontends.remove(key);
            self.leave(held);
        }
        result
    }

    fn backend(&self, id: u32) -> Result<Backend<A>, MapError> {
        Ok(self.backends[id as usize])
    }

    fn put_backends(&mut self, rows: &[(u32, Backend<A>)]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::Backends, rows.len());
        for (id, row) in &rows[..done] {
            self.look_at_backend(*id, row);
            self.backends[*id as usize] = *row;
        }
        result
    }

    fn backend_capacity(&self) -> u32 {
        self.backends.len() as u32
    }

    fn slots(&self, offset: u32, out: &mut [u32]) -> Result<(), MapError> {
        let offset = offset as usize;
        out.copy_from_slice(&self.slots[offset..offset + out.len()]);
        Ok(())
    }

    fn put_slots(&mut self, offset: u32, ids: &[u32]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::Slots, ids.len());
        self.look_at_slots(offset, &ids[..done]);
        let offset = offset as usize;
        self.slots[offset..offset + done].copy_from_slice(&ids[..done]);
        result
    }

    fn slot_capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    fn node_addresses(&self) -> Result<Vec<(A, u32)>, MapError> {
        Ok(self.node_addresses.iter().map(|(addr, flags)| (*addr, *flags)).collect())
    }

    fn put_node_addresses(&mut self, rows: &[(A, u32)]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::NodeAddresses, rows.len());
        put(&mut self.node_addresses, &rows[..done]);
        result
    }

    fn delete_node_addresses(&mut self, addrs: &[A]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::NodeAddresses, addrs.len());
        delete(&mut self.node_addresses, &addrs[..done]);
        result
    }

    fn service_cidrs(&self) -> Result<Vec<Prefix<A>>, MapError> {
        Ok(self.service_cidrs.clone())
    }

    fn put_service_cidrs(&mut self, rows: &[Prefix<A>]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::ServiceCidrs, rows.len());
        self.service_cidrs.retain(|row| !rows[..done].contains(row));
        self.service_cidrs.extend(&rows[..done]);
        result
    }

    fn delete_service_cidrs(&mut self, rows: &[Prefix<A>]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::ServiceCidrs, rows.len());
        self.service_cidrs.retain(|row| !rows[..done].contains(row));
        result
    }

    fn source_ranges(&self) -> Result<Vec<SourceRange<A>>, MapError> {
        Ok(self.source_ranges.keys().copied().collect())
    }

    fn put_source_ranges(&mut self, rows: &[SourceRange<A>]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::SourceRanges, rows.len());
        for row in &rows[..done] {
            if self.source_ranges.len() >= self.source_range_capacity && !self.source_ranges.contains_key(row)
            {
                let capacity = self.source_range_capacity as u32;
                return Err(MapError::Full { map: MapName::SourceRanges, capacity });
            }
            self.source_ranges.insert(*row, ());
        }
        result
    }

    fn delete_source_ranges(&mut self, rows: &[SourceRange<A>]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::SourceRanges, rows.len());
        delete(&mut self.source_ranges, &rows[..done]);
        result
    }

    fn each_conntrack(&self, visit: &mut dyn FnMut(&CtKey<A>, &CtEntry<A>)) -> Result<(), MapError> {
        self.conntrack.iter().for_each(|(key, entry)| visit(key, entry));
        Ok(())
    }

    fn put_conntrack(&mut self, rows: &[(CtKey<A>, CtEntry<A>)]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::Conntrack, rows.len());
        for (key, row) in &rows[..done] {
            self.conntrack.retain(|(other, _)| other != key);
            self.conntrack.push((*key, row.at(key)));
        }
        result
    }

    fn delete_conntrack(&mut self, keys: &[CtKey<A>]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::Conntrack, keys.len());
        self.conntrack.retain(|(key, _)| !keys[..done].contains(key));
        result
    }

    fn sweep(
        &mut self,
        now_ns: u64,
        timeouts: TimeoutSecs,
        visit: &mut dyn FnMut(&SweptConnection<A>),
    ) -> Result<usize, MapError> {
        self.sweep_connections(now_ns, &timeouts, visit)
    }

    fn cut(&mut self, ways: &[Way<A>]) -> Result<usize, MapError> {
        self.cut_connections(ways)
    }

    fn each_affinity(&self, visit: &mut dyn FnMut(&AffinityKey<A>, &Affinity)) -> Result<(), MapError> {
        self.affinity.iter().for_each(|(key, row)| visit(key, row));
        Ok(())
    }

    fn each_socket_pair(&self, visit: &mut dyn FnMut(&ListedPair<A>)) -> Result<(), MapError> {
        self.socket_pairs.iter().for_each(visit);
        Ok(())
    }

    fn forget_socket_pairs(&mut self, pairs: &[SocketPair<A>]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::StaleSockets, pairs.len());
        self.socket_pairs.retain(|listed| !pairs[..done].contains(&listed.pair));
        result
    }

    fn opened(&self) -> Result<Vec<(CounterKey, u64)>, MapError> {
        Ok(self.opened.iter().map(|(key, count)| (*key, *count)).collect())
    }

    fn traffic(&self) -> Result<Vec<(CounterKey, Traffic)>, MapError> {
        Ok(self.traffic.iter().map(|(key, traffic)| (*key, *traffic)).collect())
    }

    fn delete_counters(&mut self, keys: &[CounterKey]) -> Result<(), MapError> {
        let (done, result) = self.faults.admit(MapName::Opened, keys.len());
        delete(&mut self.opened, &keys[..done]);
        delete(&mut self.traffic, &keys[..done]);
        result
    }
}
