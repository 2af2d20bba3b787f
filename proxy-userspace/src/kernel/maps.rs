//! All pinned maps as the dataplane writes them.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    io,
};

use aya::{
    Pod,
    maps::{Map, MapData},
};
use proxy_common::{
    addr::{Ip4, Ip6},
    maps::{
        device_status::DeviceStatus,
        devices::Device,
        refused_services::{self, RefusedKey, RefusedService},
        services::ServiceRow,
        settings::{Settings, flags::NONE_EXEMPT},
    },
};

use super::{
    bpf, error::KernelError, family::KernelFamily, hash::HashTable, next_hops::Routes, object, pins::Pins,
    xdp::XdpStatus,
};
use crate::{
    dataplane::{MapError, MapName, MapStore},
    model::ObjectName,
};

/// All pinned maps, open for writing.
pub struct KernelMaps {
    v4: KernelFamily<Ip4>,
    v6: KernelFamily<Ip6>,
    services: HashTable,
    settings: aya::maps::Array<MapData, Settings>,
    devices: HashTable,
    routes: Routes,
    device_status: HashTable,
    refused_services: HashTable,
    socket_lb_exempt: HashTable,
}

impl KernelMaps {
    /// Opens the maps that [`Datapath::open`](super::Datapath::open) pinned.
    ///
    /// # Errors
    /// When one is missing or cannot be mapped, or an agent of another version made them.
    pub fn open(pins: &Pins) -> Result<Self, KernelError> {
        pins.check_layout()?;
        let settings: Map = object::pinned(pins, "settings")?;
        let settings = settings.try_into().map_err(|source| KernelError::Map { name: "settings", source })?;
        Ok(Self {
            v4: KernelFamily::open(pins)?,
            v6: KernelFamily::open(pins)?,
            services: HashTable::open(pins, "services", MapName::Services)?,
            settings,
            devices: HashTable::open(pins, "devices", MapName::Devices)?,
            routes: Routes::open(pins)?,
            device_status: HashTable::open(pins, "device_status", MapName::DeviceStatus)?,
            refused_services: HashTable::open(pins, "refused_services", MapName::RefusedServices)?,
            socket_lb_exempt: HashTable::open(pins, "socket_lb_exempt", MapName::SocketLbExempt)?,
        })
    }

    /// Makes `devices` hold exactly `rows`. What drivers remember of next hops is not good any more: none may send
    /// frames to a device that takes none now.
    ///
    /// # Errors
    /// When a row cannot be read or written.
    pub fn replace_devices(&mut self, rows: &[(u32, Device)]) -> Result<(), MapError> {
        replace(&mut self.devices, rows)?;
        self.routes.changed().map_err(|error| MapError::Retryable {
            map: MapName::Devices,
            what: error.to_string(),
            source: io::Error::other(error),
        })
    }

    /// Makes `device_status` hold exactly these.
    ///
    /// # Errors
    /// When a row cannot be read or written.
    pub fn replace_xdp_status(&mut self, statuses: &[XdpStatus]) -> Result<(), MapError> {
        let rows: Vec<(u32, DeviceStatus)> = statuses.iter().map(XdpStatus::row).collect();
        replace(&mut self.device_status, &rows)
    }

    /// Makes `refused_services` hold exactly these Services, each with the reason, as far as there is room.
    ///
    /// # Errors
    /// When a row cannot be read or written.
    pub fn replace_refused<'a>(
        &mut self,
        refused: impl Iterator<Item = (&'a ObjectName, String)>,
    ) -> Result<(), MapError> {
        let row = |(service, reason): (&ObjectName, String)| {
            (RefusedKey::new(&service.to_string()), RefusedService::new(&reason))
        };
        let rows: Vec<_> = refused.take(refused_services::CAPACITY as usize).map(row).collect();
        replace(&mut self.refused_services, &rows)
    }

    /// Makes `socket_lb_exempt` hold these cgroups, and of the `undecided` ones those that it holds. True if it was
    /// otherwise before.
    ///
    /// # Errors
    /// When a row cannot be read or written.
    pub fn replace_exempt(
        &mut self,
        cgroups: &BTreeSet<u64>,
        undecided: &BTreeSet<u64>,
    ) -> Result<bool, MapError> {
        let held = self.socket_lb_exempt.rows()?.into_iter();
        let held: BTreeSet<u64> = held.map(|(id, _): (u64, u32)| id).collect();
        let wanted = &(&held & undecided) | cgroups;
        let new: Vec<_> = wanted.difference(&held).map(|id| (*id, 1u32)).collect();
        let gone: Vec<_> = held.difference(&wanted).copied().collect();
        // The programs ask the table unless they are told that it is empty.
        if !new.is_empty() {
            self.set_none_exempt(false)?;
        }
        self.socket_lb_exempt.put(&new)?;
        self.socket_lb_exempt.delete(&gone)?;
        self.set_none_exempt(wanted.is_empty())?;
        Ok(!new.is_empty() || !gone.is_empty())
    }

    fn set_none_exempt(&mut self, none: bool) -> Result<(), MapError> {
        let held = self.settings()?;
        let flags = if none { held.flags | NONE_EXEMPT } else { held.flags & !NONE_EXEMPT };
        if flags == held.flags { Ok(()) } else { self.put_settings(&Settings { flags, ..held }) }
    }
}

impl MapStore for KernelMaps {
    type V4 = KernelFamily<Ip4>;
    type V6 = KernelFamily<Ip6>;

    fn v4(&mut self) -> &mut Self::V4 {
        &mut self.v4
    }

    fn v6(&mut self) -> &mut Self::V6 {
        &mut self.v6
    }

    fn each_service(&self, visit: &mut dyn FnMut(u32, &ServiceRow)) -> Result<(), MapError> {
        self.services.each(|id, row| visit(id, &row))
    }

    fn services(&self) -> Result<Vec<(u32, ServiceRow)>, MapError> {
        self.services.rows()
    }

    fn put_services(&mut self, rows: &[(u32, ServiceRow)]) -> Result<(), MapError> {
        self.services.put(rows)
    }

    fn delete_services(&mut self, ids: &[u32]) -> Result<(), MapError> {
        self.services.delete(ids)
    }

    fn service_capacity(&self) -> u32 {
        self.services.capacity()
    }

    fn settings(&self) -> Result<Settings, MapError> {
        self.settings.get(&0, 0).map_err(settings_error("read"))
    }

    fn put_settings(&mut self, settings: &Settings) -> Result<(), MapError> {
        self.settings.set(0, settings, 0).map_err(settings_error("write"))
    }

    fn wait_for_programs(&mut self) -> Result<(), MapError> {
        bpf::wait_for_programs().map_err(|source| MapError::Retryable {
            map: MapName::Slots,
            what: "wait for the programs that read it".into(),
            source,
        })
    }
}

fn replace<K: Pod + Eq + Hash, V: Pod + PartialEq>(
    table: &mut HashTable,
    rows: &[(K, V)],
) -> Result<(), MapError> {
    let held: HashMap<K, V> = table.rows()?.into_iter().collect();
    let wanted: HashMap<K, V> = rows.iter().copied().collect();
    let changed: Vec<_> =
        wanted.iter().filter(|(k, v)| held.get(k) != Some(v)).map(|(k, v)| (*k, *v)).collect();
    let gone: Vec<_> = held.keys().filter(|k| !wanted.contains_key(k)).copied().collect();
    // First what goes: it may be in the way.
    table.delete(&gone)?;
    table.put(&changed)
}

fn settings_error(verb: &str) -> impl Fn(aya::maps::MapError) -> MapError + '_ {
    move |e| MapError::Retryable {
        map: MapName::Settings,
        what: format!("{verb} the row"),
        source: io::Error::other(e),
    }
}
