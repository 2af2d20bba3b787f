//! The rows of the pinned maps, as the commands need them: read once, no kernel after that.

use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, SocketAddr},
};

use proxy_common::{
    addr::Addr,
    maps::{
        backends::Backend,
        conntrack::{CtEntry, CtKey},
        frontends::{Frontend, FrontendKey},
    },
};

use crate::kernel::{KernelAddr, KernelError, PinnedMaps};

/// An address family whose addresses can be shown.
pub trait ShownAddr: Addr + Hash + Ord + Into<IpAddr> {}
impl<A: Addr + Hash + Ord + Into<IpAddr>> ShownAddr for A {}

/// The rows of one family.
#[derive(Debug, Default)]
pub struct Rows<A: ShownAddr> {
    /// Addresses that services answer on.
    pub frontends: Vec<(FrontendKey<A>, Frontend)>,
    /// Backends by id.
    pub backends: HashMap<u32, Backend<A>>,
    /// Backend ids, in ranges that frontends name.
    pub slots: Vec<u32>,
    /// Tracked connections.
    pub conntrack: HashMap<CtKey<A>, CtEntry<A>>,
    /// Addresses of the host, with bits of `node_addresses::flags`.
    pub node_addresses: Vec<(A, u32)>,
}

impl<A: ShownAddr + KernelAddr> Rows<A> {
    /// Reads everything.
    pub fn read(maps: &PinnedMaps) -> Result<Self, KernelError> {
        Ok(Self {
            frontends: maps.frontends()?,
            backends: maps.backends()?.into_iter().collect(),
            slots: maps.slots::<A>()?,
            conntrack: maps.conntrack()?.into_iter().collect(),
            node_addresses: maps.node_addresses()?,
        })
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
pub fn socket<A: ShownAddr>(addr: A, port: u16) -> SocketAddr {
    SocketAddr::new(addr.into(), port)
}
