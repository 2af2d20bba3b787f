//! Has the kernel sweep the connections of a family, each where it lies.

use std::io;

use aya::maps::{Array, MapData};
use proxy_common::maps::{
    settings::TimeoutSecs,
    stale_ways::{self, Way},
    sweep::{Sweep, SweptConnection},
};

use super::{
    error::KernelError, family::KernelAddr, hash::HashTable, iterators::MapIterator, object, pins::Pins,
};
use crate::dataplane::{MapError, MapName};

/// Looks at the table at most, to cut connections. Whoever opens new ones all the while is cut by the next sweep.
const LOOKS: usize = 8;

/// What sweeps the connections of a family.
pub(super) struct ConnectionSweep {
    order: Array<MapData, Sweep>,
    stale_ways: HashTable,
    iterator: MapIterator,
    pins: Pins,
}

impl ConnectionSweep {
    pub(super) fn open<A: KernelAddr>(pins: &Pins) -> Result<Self, KernelError> {
        let order = object::pinned(pins, "sweep")?;
        let order = order.try_into().map_err(|source| KernelError::Map { name: "sweep", source })?;
        let stale_ways = HashTable::open(pins, A::PINS.0.stale_ways, MapName::StaleWays)?;
        Ok(Self { order, stale_ways, iterator: A::PINS.0.sweep, pins: pins.clone() })
    }

    pub(super) fn capacity(&self) -> u32 {
        self.stale_ways.capacity()
    }

    /// Removes the connections that are over and calls `visit` with every one. Returns how many rows were
    /// looked at.
    pub(super) fn sweep<A: KernelAddr>(
        &mut self,
        now: u64,
        timeouts: TimeoutSecs,
        visit: impl FnMut(SweptConnection<A>),
    ) -> Result<usize, MapError> {
        self.run(Sweep { now, timeouts, ..Sweep::default() }, visit)?;
        let done = self.order.get(&0, 0).map_err(|e| error("count the rows", io::Error::other(e)))?;
        Ok(usize::try_from(done.rows).unwrap_or(usize::MAX))
    }

    /// Removes the connections that go one of these ways; returns how many.
    pub(super) fn cut<A: KernelAddr>(&mut self, ways: &[Way<A>]) -> Result<usize, MapError> {
        let mut count = 0;
        for ways in ways.chunks(stale_ways::CAPACITY as usize) {
            self.stale_ways.put(&ways.iter().map(|way| (*way, 1u32)).collect::<Vec<_>>())?;
            let cut = self.cut_all::<A>();
            self.stale_ways.delete(ways)?;
            count += cut?;
        }
        Ok(count)
    }

    /// Removes the connections that go ways of `stale_ways`. Where one goes, the kernel may pass over the next row of
    /// its bucket: so it takes another look.
    fn cut_all<A: KernelAddr>(&mut self) -> Result<usize, MapError> {
        let mut count = 0;
        for _ in 0..LOOKS {
            let before = count;
            self.run(Sweep { cut: 1, ..Sweep::default() }, |_: SweptConnection<A>| count += 1)?;
            if count == before {
                break;
            }
        }
        Ok(count)
    }

    fn run<A: KernelAddr>(
        &mut self,
        order: Sweep,
        visit: impl FnMut(SweptConnection<A>),
    ) -> Result<(), MapError> {
        self.order.set(0, order, 0).map_err(|e| error("say how to sweep", io::Error::other(e)))?;
        self.iterator.run(&self.pins, visit).map_err(|e| error("sweep connections", e))
    }
}

fn error(what: &str, source: io::Error) -> MapError {
    MapError::Retryable { map: MapName::Conntrack, what: what.into(), source }
}
