//! Sweeps, as the kernel does them by `proxy-ebpf/src/sweep.rs`.

use std::collections::HashMap;

use proxy_common::{
    flow::{Connection, may_be_cut},
    maps::{
        conntrack::{CtEntry, CtKey},
        settings::TimeoutSecs,
        stale_ways::Way,
        sweep::{SweptConnection, flags::OVER},
    },
};

use super::{FamilyMaps as _, MapAddr, MapError, MemoryFamily};

impl<A: MapAddr> MemoryFamily<A> {
    /// Removes connections that are over; as [`FamilyMaps::sweep`](super::FamilyMaps::sweep).
    pub(super) fn sweep_connections(
        &mut self,
        now_ns: u64,
        timeouts: &TimeoutSecs,
        visit: impl FnMut(&SweptConnection<A>),
    ) -> Result<usize, MapError> {
        let rows = self.conntrack.len();
        self.remove_connections(
            |key, row| row.is_passed_over(key.proto, now_ns, timeouts),
            |connection, _| connection.is_over(now_ns, timeouts),
            visit,
        )?;
        Ok(rows)
    }

    /// Removes connections that go these ways; as [`FamilyMaps::cut`](super::FamilyMaps::cut).
    pub(super) fn cut_connections(&mut self, ways: &[Way<A>]) -> Result<usize, MapError> {
        let mut count = 0;
        self.remove_connections(
            |key, row| !may_be_cut(key.proto, row.service),
            |_, swept| ways.contains(&swept.way),
            |swept| count += usize::from(swept.flags & OVER != 0),
        )?;
        Ok(count)
    }

    /// Calls `visit` with every connection and removes those that `is_to_go`.
    fn remove_connections(
        &mut self,
        is_passed_over: impl Fn(&CtKey<A>, &CtEntry<A>) -> bool,
        is_to_go: impl Fn(&Connection<A>, &SweptConnection<A>) -> bool,
        mut visit: impl FnMut(&SweptConnection<A>),
    ) -> Result<(), MapError> {
        let table: HashMap<_, _> = self.conntrack.iter().copied().collect();
        let (rows, mut other) = (|key: &CtKey<A>| table.get(key), CtKey::default());
        for (key, row) in self.conntrack.clone() {
            if is_passed_over(&key, &row) {
                continue;
            }
            let Some(connection) = Connection::of(&key, &row, rows) else { continue };
            let mut swept = SweptConnection::default();
            swept.set(&key, &row, &connection);
            if is_to_go(&connection, &swept) {
                swept.flags |= OVER;
                let mut gone = vec![key];
                connection.each_other(&key, &row, rows, &mut other, |key| gone.push(*key));
                self.delete_conntrack(&gone)?;
                if let Some(counter) = swept.counter_key() {
                    *self.traffic.entry(counter).or_default() += swept.traffic();
                }
            }
            visit(&swept);
        }
        Ok(())
    }
}
