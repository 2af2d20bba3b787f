//! The filter by which the programs tell what cannot be ours: written before the rows that need it.

use std::io;

use proxy_common::{
    addr::Addr,
    maps::{
        address_filter::{
            Cell,
            flags::{BACKEND, BACKEND_PORT, CLIENT, DIRECT, FRONTEND, MASQUERADED, NODE, NODE_PORT},
        },
        conntrack::{CtEntry, CtKey, INGRESS, Role, flags::SNAT},
        frontends::FrontendKey,
    },
};

use super::mmap::MappedArray;
use crate::dataplane::{MapError, MapName};

/// `address_filter` of a family.
pub(super) struct AddressFilter(MappedArray<u64>);

impl AddressFilter {
    pub(super) fn new(cells: MappedArray<u64>) -> Self {
        Self(cells)
    }

    /// Number of its words.
    pub(super) fn len(&self) -> u32 {
        self.0.len()
    }

    /// Has packets to a frontend looked at.
    pub(super) fn admit_frontend<A: Addr>(&mut self, key: &FrontendKey<A>) -> Result<(), MapError> {
        if !key.addr.is_unspecified() {
            return self.set(Cell::of(&key.addr), FRONTEND);
        }
        // A NodePort. A process may connect to the unspecified address itself, too.
        self.set(Cell::of_port(key.port), NODE_PORT)?;
        self.admit_node(&key.addr)
    }

    /// Has packets to NodePorts at this address of the host looked at, and from backends to it.
    pub(super) fn admit_node<A: Addr>(&mut self, addr: &A) -> Result<(), MapError> {
        self.set(Cell::of(addr), NODE)
    }

    /// Has packets from and to a backend looked at.
    pub(super) fn admit_backend<A: Addr>(&mut self, addr: &A, port: u16) -> Result<(), MapError> {
        self.set(Cell::of_port(port), BACKEND_PORT)?;
        self.set(Cell::of(addr), BACKEND)
    }

    /// Has packets of a connection looked at that this row of `conntrack` is for, whatever becomes of
    /// its service.
    pub(super) fn admit_row<A: Addr>(&mut self, key: &CtKey<A>, entry: &CtEntry<A>) -> Result<(), MapError> {
        match (key.hook, Role(entry.role)) {
            // It goes on as it came, looked at or not.
            (_, Role::LEAVE | Role::PASS) => Ok(()),
            (_, Role::DIRECT) => {
                self.set(Cell::of(&key.src), DIRECT)?;
                self.admit_backend(&key.dst, key.dport)
            }
            (INGRESS, Role::REV_SNAT | Role::REV_HOST | Role::REV_DIRECT) => {
                self.admit_backend(&key.src, key.sport)?;
                self.admit_node(&key.dst)
            }
            (INGRESS, Role::DNAT) => {
                // Those of its other rows that the kernel has forgotten are mended by this one.
                let masked = if entry.flags & SNAT != 0 { MASQUERADED } else { 0 };
                self.set(Cell::of(&key.src), CLIENT | masked)?;
                self.admit_backend(&entry.dst, entry.dport)?;
                self.admit_entry(key)
            }
            (INGRESS, _) | (_, Role::HOST) => self.admit_entry(key),
            (_, Role::SNAT) => {
                self.set(Cell::of(&key.src), MASQUERADED)?;
                self.admit_backend(&key.dst, key.dport)
            }
            _ => {
                self.admit_backend(&key.src, key.sport)?;
                self.set(Cell::of(&key.dst), CLIENT)
            }
        }
    }

    /// What connections enter by: an address of the host stays one of which only some ports matter.
    fn admit_entry<A: Addr>(&mut self, key: &CtKey<A>) -> Result<(), MapError> {
        let cell = Cell::of(&key.dst);
        if self.get(cell)? & NODE != 0 {
            return self.set(Cell::of_port(key.dport), NODE_PORT);
        }
        self.set(cell, FRONTEND)
    }

    fn get(&self, cell: Cell) -> Result<u64, MapError> {
        Ok(self.0.get(cell.word).map_err(fatal)? >> cell.shift)
    }

    fn set(&mut self, cell: Cell, bits: u64) -> Result<(), MapError> {
        self.0.set_bits(cell.word, bits << cell.shift).map_err(fatal)
    }
}

fn fatal(source: io::Error) -> MapError {
    MapError::Fatal { map: MapName::AddressFilter, source }
}
