//! The rows of the pinned maps, as the commands need them: read once, no kernel after that.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    net::SocketAddr,
    path::Path,
};

use anyhow::{Context, Result};
use proxy_common::{
    addr::{Ip4, Ip6},
    maps::{
        affinity::{Affinity, AffinityKey},
        backends::Backend,
        conntrack::{CtEntry, CtKey},
        counters::{CounterKey, Traffic},
        frontends::{Frontend, FrontendKey},
        netns_addresses::Netns,
        service_drops::ServiceDropKey,
        slots::SlotRange,
    },
};

use super::output;
use crate::{
    clock::monotonic_nanos,
    dataplane::{MapAddr, Timeouts},
    kernel::{KernelAddr, KernelError, PinnedMaps, Pins},
};

/// The rows of one family.
#[derive(Debug, Default)]
pub struct Rows<A: MapAddr> {
    /// Addresses that services answer on.
    pub frontends: Vec<(FrontendKey<A>, Frontend)>,
    /// Backends by id.
    pub backends: HashMap<u32, Backend<A>>,
    /// Backend ids, in ranges that frontends name.
    pub slots: Vec<u32>,
    /// Tracked connections.
    pub conntrack: HashMap<CtKey<A>, CtEntry<A>>,
    /// Clients and the backends they stick to.
    pub affinity: Vec<(AffinityKey<A>, Affinity)>,
    /// Addresses of network namespaces, by cookie.
    pub netns_addresses: HashMap<Netns, A>,
    /// Connections opened, by service, backend and kind of frontend.
    pub opened: Vec<(CounterKey, u64)>,
    /// What connections that are over have carried, likewise.
    pub traffic: Vec<(CounterKey, Traffic)>,
    /// Addresses of the host, with bits of `node_addresses::flags`.
    pub node_addresses: Vec<(A, u32)>,
}

impl<A: MapAddr + KernelAddr> Rows<A> {
    fn read(maps: &PinnedMaps) -> Result<Self, KernelError> {
        Ok(Self {
            frontends: maps.frontends()?,
            backends: maps.backends()?.into_iter().collect(),
            slots: maps.slots::<A>()?,
            traffic: maps.traffic::<A>()?,
            conntrack: maps.conntrack()?.into_iter().collect(),
            opened: maps.opened::<A>()?,
            affinity: maps.affinity()?,
            netns_addresses: maps.netns_addresses()?.into_iter().collect(),
            node_addresses: maps.node_addresses()?,
        })
    }

    /// Whether what was read first is still so. What frontends lead to is written before them, and
    /// cleared after; connections that the agent removes leave their counts in `traffic`.
    fn is_current(&self, maps: &PinnedMaps) -> Result<bool, KernelError> {
        let by_agent = |rows: &[(CounterKey, Traffic)]| {
            rows.iter().filter(|(key, _)| !key.is_by_programs()).copied().collect::<Vec<_>>()
        };
        let same_traffic = same(&by_agent(&self.traffic), &by_agent(&maps.traffic::<A>()?));
        Ok(same_traffic && same(&self.frontends, &maps.frontends()?))
    }
}

/// True if both hold the same rows, in whatever order.
fn same<K: Copy + Eq + Hash, V: Copy + PartialEq>(left: &[(K, V)], right: &[(K, V)]) -> bool {
    let as_map = |rows: &[(K, V)]| rows.iter().copied().collect::<HashMap<_, _>>();
    as_map(left) == as_map(right)
}

/// The rows of both families, as they were at one moment.
#[derive(Debug, Default)]
pub struct Tables {
    /// IPv4.
    pub v4: Rows<Ip4>,
    /// IPv6.
    pub v6: Rows<Ip6>,
    /// What services are called.
    pub names: Names,
    /// Packets and connections refused, by service and reason.
    pub service_drops: Vec<(ServiceDropKey, u64)>,
    /// Services for which there is no room, each with the reason.
    pub refused: Vec<(String, String)>,
    /// When the agent forgets connections.
    pub timeouts: Timeouts,
    /// When they were read: `CLOCK_MONOTONIC` in nanoseconds, as the rows tell time.
    pub now: u64,
    /// The agent wrote meanwhile, every time: rows may not fit together.
    pub changed_while_reading: bool,
}

/// How often tables are read anew that changed while they were read.
const ATTEMPTS: u32 = 4;

impl Tables {
    /// Reads everything below `bpffs`; says so on standard error if it may not fit together.
    ///
    /// # Errors
    /// When no agent has ever run with these maps, or they cannot be read.
    pub fn read(bpffs: &Path, numeric: bool) -> Result<Self> {
        let tables = Self::read_quietly(bpffs, numeric)?;
        if tables.changed_while_reading {
            output::note("the agent changed the maps while they were read: rows may not fit together");
        }
        Ok(tables)
    }

    /// Likewise, and says nothing.
    ///
    /// # Errors
    /// When no agent has ever run with these maps, or they cannot be read.
    pub fn read_quietly(bpffs: &Path, numeric: bool) -> Result<Self> {
        let maps = PinnedMaps::open(Pins::new(bpffs))?;
        let mut tables = Self::read_once(&maps, numeric)?;
        for _ in 1..ATTEMPTS {
            if !tables.changed_while_reading {
                return Ok(tables);
            }
            tables = Self::read_once(&maps, numeric)?;
        }
        Ok(tables)
    }

    fn read_once(maps: &PinnedMaps, numeric: bool) -> Result<Self> {
        let (v4, v6) = (Rows::<Ip4>::read(maps)?, Rows::<Ip6>::read(maps)?);
        let names = Names::read(maps, numeric)?;
        let changed_while_reading = !(v4.is_current(maps)? && v6.is_current(maps)?);
        let now = monotonic_nanos().context("cannot read the clock")?;
        let (service_drops, refused) = (maps.service_drops()?, maps.refused_services()?);
        let timeouts = maps.settings()?.timeouts.into();
        Ok(Self { v4, v6, names, service_drops, refused, timeouts, now, changed_while_reading })
    }
}

impl<A: MapAddr> Rows<A> {
    /// The slots of a range, as far as they exist.
    pub fn slots_of(&self, range: SlotRange) -> impl Iterator<Item = u32> {
        let (start, len) = (range.offset as usize, range.len as usize);
        self.slots.iter().skip(start).take(len).copied()
    }

    /// The key of the frontend that a client's tuple leads to; NodePorts stand under no address.
    pub fn frontend_of(&self, known: &HashSet<FrontendKey<A>>, key: &CtKey<A>) -> FrontendKey<A> {
        let exact = FrontendKey { addr: key.dst, port: key.dport, proto: key.proto, pad: 0 };
        if known.contains(&exact) { exact } else { FrontendKey { addr: A::default(), ..exact } }
    }
}

/// What services are called. Ids are shown only where nobody left a name.
#[derive(Debug, Default)]
pub struct Names {
    names: HashMap<u32, String>,
    numeric: bool,
}

impl Names {
    /// Names by id; with `numeric`, ids are shown even so.
    pub fn new(names: HashMap<u32, String>, numeric: bool) -> Self {
        Self { names, numeric }
    }

    /// Reads the names that agents left.
    pub fn read(maps: &PinnedMaps, numeric: bool) -> Result<Self, KernelError> {
        let rows = maps.services()?;
        Ok(Self::new(rows.iter().map(|(id, row)| (*id, row.name().to_owned())).collect(), numeric))
    }

    /// True if somebody left a name for the service.
    pub fn knows(&self, id: u32) -> bool {
        self.names.contains_key(&id)
    }

    /// What to show for a service.
    pub fn of(&self, id: u32) -> String {
        match self.names.get(&id) {
            _ if self.numeric => format!("#{id}"),
            Some(name) if !name.is_empty() => name.clone(),
            _ => format!("?({id})"),
        }
    }
}

/// Address and port, in the form in which they are shown.
pub fn socket<A: MapAddr>(addr: A, port: u16) -> SocketAddr {
    SocketAddr::new(addr.into(), port)
}
