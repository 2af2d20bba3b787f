//! `stale_ways_v4`, `stale_ways_v6`: hash, ways that the agent has found to lead datagrams where they may not.
//! A sweep that is to cut removes the connections that go them.

use super::{
    assert_size,
    conntrack::{CtEntry, CtKey, Role},
    pod,
};
use crate::addr::{Addr, Ip4, Ip6};

/// Rows per family: ways that are cut at once.
pub const CAPACITY: u32 = 1024;

/// The way that a connection goes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Way<A> {
    /// Key in `services`, 0 if no service has it.
    pub service: u32,
    /// Key in `backends`.
    pub backend: u32,
    /// Address of the frontend. Unspecified if the first row of the connection is lost.
    pub frontend: A,
    /// Address of the backend, unspecified if no row is left that tells.
    pub backend_addr: A,
    /// Port of the frontend.
    pub frontend_port: u16,
    /// Port of the backend.
    pub backend_port: u16,
}

impl<A: Addr> Way<A> {
    /// Makes this the way of the connection that the row stands for.
    #[inline(always)]
    pub fn set(&mut self, key: &CtKey<A>, row: &CtEntry<A>) {
        let role = Role(row.role);
        (self.service, self.backend) = (row.service, row.backend);
        (self.frontend, self.frontend_port) = (A::default(), 0);
        (self.backend_addr, self.backend_port) = (A::default(), 0);
        if role.is_primary() {
            (self.frontend, self.frontend_port) = (key.dst, key.dport);
            (self.backend_addr, self.backend_port) = (row.dst, row.dport);
        } else if role == Role::SNAT {
            (self.backend_addr, self.backend_port) = (key.dst, key.dport);
        } else if role == Role::REV_SNAT {
            (self.backend_addr, self.backend_port) = (key.src, key.sport);
        }
    }

    /// True if both ends are known.
    pub fn has_ends(&self) -> bool {
        self.frontend_port != 0
    }
}

assert_size!(Way<Ip4> = 20, Way<Ip6> = 44);
pod!(Way<A>);
