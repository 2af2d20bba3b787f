//! The pinned maps as the inspection commands read them: no agent needed, nothing written.

mod copy;
mod size;

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    io,
    os::fd::AsFd,
};

use aya::{
    Pod,
    maps::{MapData, PerCpuArray},
};
use proxy_common::{
    DropReason,
    maps::{
        affinity::{Affinity, AffinityKey},
        backends::{Backend, flags::PRESENT},
        conntrack::{CtEntry, CtKey},
        counters::{CounterKey, Traffic},
        device_status::DeviceStatus,
        devices::Device,
        frontends::{Frontend, FrontendKey},
        netns_addresses::Netns,
        refused_services::{RefusedKey, RefusedService},
        service_drops::ServiceDropKey,
        services::ServiceRow,
        socket_datagrams::ListedPair,
    },
};

use super::{
    XdpStatus, bpf,
    counts::counts,
    error::KernelError,
    family::{KernelAddr, each_socket_pair},
    mmap::MappedArray,
    object,
    pins::Pins,
};

pub use size::MapSize;

/// Rows of `conntrack`.
pub type ConntrackRows<A> = Vec<(CtKey<A>, CtEntry<A>)>;

/// The kernel writes rows of its own size. An agent of another version may have put other maps in
/// the place of those that were there when the reader was opened.
fn check_shape<K, V>(name: &'static str, data: &MapData) -> Result<(), KernelError> {
    let info = data.info().map_err(|source| KernelError::Map { name, source })?;
    let (found, wanted) = ((info.key_size(), info.value_size()), (size_of::<K>(), size_of::<V>()));
    if (found.0 as usize, found.1 as usize) == wanted {
        return Ok(());
    }
    let what = format!("read the map {name}, which an agent of another version made");
    Err(KernelError::System { what, source: io::Error::from(io::ErrorKind::InvalidData) })
}

/// A reader of all pinned maps.
#[derive(Debug)]
pub struct PinnedMaps {
    pins: Pins,
}

impl PinnedMaps {
    /// A reader of the maps below `pins`.
    ///
    /// # Errors
    /// When no agent has ever run with them, or one of a version with another layout does.
    pub fn open(pins: Pins) -> Result<Self, KernelError> {
        pins.check_layout()?;
        let path = pins.map("services");
        match std::fs::metadata(&path) {
            Ok(_) => Ok(Self { pins }),
            Err(source) => {
                Err(KernelError::File { what: "no agent has run here: cannot open", path, source })
            }
        }
    }

    fn rows<K: Pod, V: Pod>(&self, name: &'static str) -> Result<Vec<(K, V)>, KernelError> {
        let data =
            MapData::from_pin(self.pins.map(name)).map_err(|source| KernelError::Map { name, source })?;
        check_shape::<K, V>(name, &data)?;
        let mut rows = Vec::new();
        bpf::lookup_all(data.fd().as_fd(), |k, v| rows.push((k, v)))
            .map_err(|source| KernelError::System { what: format!("read the map {name}"), source })?;
        Ok(rows)
    }

    /// Rows of a map in which each CPU counts.
    fn counts<K: Pod + Eq + Hash>(&self, name: &'static str) -> Result<Vec<(K, u64)>, KernelError> {
        counts(&self.pins, name)
            .map_err(|source| KernelError::System { what: format!("read the map {name}"), source })
    }

    fn array<T: Pod>(&self, name: &'static str) -> Result<Vec<T>, KernelError> {
        let data =
            MapData::from_pin(self.pins.map(name)).map_err(|source| KernelError::Map { name, source })?;
        let system = |source| KernelError::System { what: format!("read the map {name}"), source };
        let array = MappedArray::<T>::new(&data).map_err(system)?;
        (0..array.len()).map(|i| array.get(i).map_err(system)).collect()
    }

    /// Service ids and what people call them.
    ///
    /// # Errors
    /// When the map cannot be read; so for all of these.
    pub fn services(&self) -> Result<Vec<(u32, ServiceRow)>, KernelError> {
        self.rows("services")
    }

    /// What people call the services with these ids, as far as there are any.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn services_of(&self, ids: &BTreeSet<u32>) -> Result<HashMap<u32, ServiceRow>, KernelError> {
        let name = "services";
        let data =
            MapData::from_pin(self.pins.map(name)).map_err(|source| KernelError::Map { name, source })?;
        check_shape::<u32, ServiceRow>(name, &data)?;
        let row = |id: &u32| Ok(bpf::lookup(data.fd().as_fd(), id)?.map(|row| (*id, row)));
        let rows = ids.iter().filter_map(|id| row(id).transpose()).collect::<io::Result<_>>();
        rows.map_err(|source| KernelError::System { what: format!("read the map {name}"), source })
    }

    /// Rows of `frontends`.
    pub fn frontends<A: KernelAddr>(&self) -> Result<Vec<(FrontendKey<A>, Frontend)>, KernelError> {
        self.rows(A::PINS.0.frontends)
    }

    /// Rows of `backends` that are in use, with their ids.
    pub fn backends<A: KernelAddr>(&self) -> Result<Vec<(u32, Backend<A>)>, KernelError> {
        let rows = self.array::<Backend<A>>(A::PINS.0.backends)?;
        Ok((0..).zip(rows).filter(|(_, b)| b.flags & PRESENT != 0).collect())
    }

    /// All slots.
    pub fn slots<A: KernelAddr>(&self) -> Result<Vec<u32>, KernelError> {
        self.array(A::PINS.0.slots)
    }

    /// Rows of `conntrack`.
    pub fn conntrack<A: KernelAddr>(&self) -> Result<ConntrackRows<A>, KernelError> {
        self.rows(A::PINS.0.conntrack)
    }

    /// What UDP sockets hold of services.
    pub fn socket_pairs<A: KernelAddr>(&self) -> Result<Vec<ListedPair<A>>, KernelError> {
        let error = |source| KernelError::System { what: "list what UDP sockets hold".into(), source };
        let mut pairs = Vec::new();
        each_socket_pair(&self.pins, |pair| pairs.push(pair)).map_err(error)?;
        Ok(pairs)
    }

    /// Rows of `affinity`.
    pub fn affinity<A: KernelAddr>(&self) -> Result<Vec<(AffinityKey<A>, Affinity)>, KernelError> {
        self.rows(A::PINS.0.affinity)
    }

    /// Addresses of network namespaces, by cookie.
    ///
    /// # Errors
    /// When there is no such map, or it has another shape.
    pub fn netns_addresses<A: KernelAddr>(&self) -> Result<Vec<(Netns, A)>, KernelError> {
        self.rows(A::PINS.0.netns_addresses)
    }

    /// Connections opened so far.
    pub fn opened<A: KernelAddr>(&self) -> Result<Vec<(CounterKey, u64)>, KernelError> {
        self.counts(A::PINS.0.opened)
    }

    /// What connections that are over have carried; those that are open have it in their rows of
    /// `conntrack`.
    pub fn traffic<A: KernelAddr>(&self) -> Result<Vec<(CounterKey, Traffic)>, KernelError> {
        self.rows(A::PINS.0.traffic)
    }

    /// Refused packets and connections by service and reason.
    pub fn service_drops(&self) -> Result<Vec<(ServiceDropKey, u64)>, KernelError> {
        self.counts("service_drops")
    }

    /// Addresses of the host, and bits of `node_addresses::flags`.
    pub fn node_addresses<A: KernelAddr>(&self) -> Result<Vec<(A, u32)>, KernelError> {
        self.rows(A::PINS.0.node_addresses)
    }

    /// Devices by interface index.
    pub fn devices(&self) -> Result<Vec<(u32, Device)>, KernelError> {
        self.rows("devices")
    }

    /// What became of XDP, by the agent's own record. `name` gives the name of a device.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn xdp_statuses(&self, name: impl Fn(u32) -> String) -> Result<Vec<XdpStatus>, KernelError> {
        let rows: Vec<(u32, DeviceStatus)> = self.rows("device_status")?;
        Ok(rows.iter().map(|(ifindex, row)| XdpStatus::read(*ifindex, name(*ifindex), row)).collect())
    }

    /// Services for which there is no room, each with the reason, by the agent's own record.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn refused_services(&self) -> Result<Vec<(String, String)>, KernelError> {
        let rows: Vec<(RefusedKey, RefusedService)> = self.rows("refused_services")?;
        Ok(rows.iter().map(|(key, row)| (key.name().to_owned(), row.reason().to_owned())).collect())
    }

    /// Refused packets and connections by reason, over all CPUs.
    pub fn drops(&self) -> Result<Vec<(DropReason, u64)>, KernelError> {
        let map_error = |source| KernelError::Map { name: "drops", source };
        let drops: PerCpuArray<MapData, u64> =
            object::pinned(&self.pins, "drops")?.try_into().map_err(map_error)?;
        let sum = |reason: &DropReason| {
            let counts = drops.get(&(*reason as u32), 0).map_err(map_error)?;
            Ok((*reason, counts.iter().sum()))
        };
        DropReason::ALL.iter().map(sum).collect()
    }
}
