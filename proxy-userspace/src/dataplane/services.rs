//! Which service port has which id.

use std::collections::HashMap;

use proxy_common::maps::services::ServiceRow;

use super::{MapError, MapName, encode, ids::IdPool};
use crate::model::{ObjectName, Protocol, ServicePortName};

/// The rows of `services`.
#[derive(Debug)]
pub(super) struct ServiceTable {
    records: HashMap<u32, Record>,
    /// The ids of each service.
    objects: HashMap<ObjectName, Vec<u32>>,
    pool: IdPool,
    capacity: u32,
}

#[derive(Debug)]
struct Record {
    name: ServicePortName,
    protocol: Protocol,
    /// The kernel is known to hold the row.
    written: bool,
}

impl ServiceTable {
    /// The rows the kernel holds, and ids that frontends name without a row.
    pub(super) fn adopt(capacity: u32, rows: &[(u32, ServiceRow)], named_by_frontends: &[u32]) -> Self {
        let ids = rows.iter().map(|(id, _)| id).chain(named_by_frontends).copied();
        let pool = IdPool::new(capacity, ids);
        let mut table = Self { records: HashMap::new(), objects: HashMap::new(), pool, capacity };
        for (id, row) in rows {
            match encode::service_name(row) {
                Some((name, protocol)) if !table.has(&name, protocol) => {
                    table.insert(*id, name, protocol, true);
                }
                _ => table.insert_nameless(*id),
            }
        }
        for id in named_by_frontends {
            if !table.records.contains_key(id) {
                table.insert_nameless(*id);
            }
        }
        table
    }

    /// What no service claims: under a name that none can have it waits to be pruned.
    fn insert_nameless(&mut self, id: u32) {
        let service = ObjectName::new("", format!("#{id}"));
        self.insert(id, ServicePortName { service, port: "".into() }, Protocol::Tcp, false);
    }

    fn insert(&mut self, id: u32, name: ServicePortName, protocol: Protocol, written: bool) {
        self.objects.entry(name.service.clone()).or_default().push(id);
        self.records.insert(id, Record { name, protocol, written });
    }

    /// The id of a service port, a new one if it has none.
    pub(super) fn id(&mut self, name: &ServicePortName, protocol: Protocol) -> Result<u32, MapError> {
        if let Some(id) = self.find(name, protocol) {
            return Ok(id);
        }
        let full = MapError::Full { map: MapName::Services, capacity: self.capacity };
        let id = self.pool.take().ok_or(full)?;
        self.insert(id, name.clone(), protocol, false);
        Ok(id)
    }

    /// The ids of a service.
    pub(super) fn ids_of(&self, service: &ObjectName) -> &[u32] {
        self.objects.get(service).map_or(&[], Vec::as_slice)
    }

    /// The service port that has this id.
    pub(super) fn name(&self, id: u32) -> Option<(&ServicePortName, Protocol)> {
        self.records.get(&id).map(|record| (&record.name, record.protocol))
    }

    /// Whether a service port has an id.
    pub(super) fn has(&self, name: &ServicePortName, protocol: Protocol) -> bool {
        self.find(name, protocol).is_some()
    }

    /// A service has few ports.
    fn find(&self, name: &ServicePortName, protocol: Protocol) -> Option<u32> {
        let is_it = |id: &u32| self.name(*id) == Some((name, protocol));
        self.ids_of(&name.service).iter().copied().find(is_it)
    }

    /// Every service that has an id.
    pub(super) fn objects(&self) -> impl Iterator<Item = &ObjectName> {
        self.objects.keys()
    }

    /// The rows among `ids` that the kernel may not hold.
    pub(super) fn unwritten(&self, ids: &[u32]) -> Vec<(u32, ServiceRow)> {
        let record = |id: &u32| Some((*id, self.records.get(id)?));
        let unwritten = ids.iter().filter_map(record).filter(|(_, record)| !record.written);
        unwritten.map(|(id, record)| (id, record.row())).collect()
    }

    /// Notes whether the kernel is known to hold the rows.
    pub(super) fn set_written(&mut self, ids: impl IntoIterator<Item = u32>, written: bool) {
        for id in ids {
            if let Some(record) = self.records.get_mut(&id) {
                record.written = written;
            }
        }
    }

    /// Makes ids available that were forgotten before: every program that may have come across them has ended.
    pub(super) fn settle(&mut self) {
        self.pool.settle();
    }

    /// Ids that [`ServiceTable::settle`] would make available.
    pub(super) fn resting(&self) -> usize {
        self.pool.resting()
    }

    /// Forgets an id, after the kernel has.
    pub(super) fn forget(&mut self, id: u32) {
        let Some(record) = self.records.remove(&id) else { return };
        if let Some(ids) = self.objects.get_mut(&record.name.service) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.objects.remove(&record.name.service);
            }
        }
        self.pool.release(id);
    }

    /// Every row the kernel has to hold.
    pub(super) fn expected(&self) -> impl Iterator<Item = (u32, ServiceRow)> {
        self.records.iter().filter(|(_, record)| record.written).map(|(id, record)| (*id, record.row()))
    }

    /// The row that the kernel has to hold under an id, if any.
    pub(super) fn expected_row(&self, id: u32) -> Option<ServiceRow> {
        self.records.get(&id).filter(|record| record.written).map(Record::row)
    }

    /// Number of rows in use.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }
}

impl Record {
    fn row(&self) -> ServiceRow {
        encode::service(&self.name, self.protocol)
    }
}
