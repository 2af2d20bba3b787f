//! What drivers remember of next hops: which they are, and that it is no longer good.

use std::collections::BTreeSet;

use proxy_common::maps::next_hops::NextHop;

use super::{KernelError, family::mapped, mmap::MappedArray, pins::Pins};

/// How often routes, rules, neighbours or devices have changed, as the programs read it.
pub(super) struct Routes(MappedArray<u64>);

impl Routes {
    /// Opens what is pinned.
    pub(super) fn open(pins: &Pins) -> Result<Self, KernelError> {
        Ok(Self(mapped(pins, "routes")?))
    }

    /// What is remembered is not good any more.
    pub(super) fn changed(&mut self) -> Result<(), KernelError> {
        self.0.add(0, 1).map_err(|source| KernelError::System { what: "write the map routes".into(), source })
    }
}

/// The next hops that drivers remember.
pub(super) struct NextHops(MappedArray<NextHop>);

impl NextHops {
    /// Opens what is pinned.
    pub(super) fn open(pins: &Pins) -> Result<Self, KernelError> {
        Ok(Self(mapped(pins, "next_hops")?))
    }

    /// Takes all out; returns the link-layer addresses that frames have been sent to. Those that frames go to after
    /// that, programs put there again.
    pub(super) fn take(&mut self) -> Result<BTreeSet<[u8; 6]>, KernelError> {
        let failed = |source| KernelError::System { what: "read the map next_hops".into(), source };
        let mut addresses = BTreeSet::new();
        for place in 0..self.0.len() {
            let hop = self.0.get(place).map_err(failed)?;
            // A program that reads half of it, or writes at the same time, finds that it is not what its row names.
            if hop != NextHop::default() {
                self.0.set(place, NextHop::default()).map_err(failed)?;
            }
            if hop.ifindex != 0 {
                addresses.insert(hop.dst);
            }
        }
        Ok(addresses)
    }
}
