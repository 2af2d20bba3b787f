//! How much went by each face of a service and to each of its backends: what the programs counted,
//! what the agent noted of connections that are over, and what live ones have carried so far.

use std::{
    collections::HashMap,
    ops::{Add, AddAssign, Sub},
};

use proxy_common::maps::{
    conntrack::Role,
    counters::{CounterKey, Traffic},
};
use serde::Serialize;

use super::{
    list::conn::{TcpState, is_open, state},
    rows::Rows,
};
use crate::dataplane::MapAddr;

/// What went by a row since the maps were made, and what is open now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Open connections whose packets are rewritten.
    pub connections: u64,
    /// Others whose packets are rewritten: being opened, or over and not forgotten yet.
    pub inactive: u64,
    /// Connections opened, by sockets as well as by packets.
    pub opened: u64,
    /// Packets from clients.
    pub in_packets: u64,
    /// Packets to clients.
    pub out_packets: u64,
    /// Their bytes.
    pub in_bytes: u64,
    /// Their bytes.
    pub out_bytes: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.connections += other.connections;
        self.inactive += other.inactive;
        self.opened += other.opened;
        self.in_packets += other.in_packets;
        self.out_packets += other.out_packets;
        self.in_bytes += other.in_bytes;
        self.out_bytes += other.out_bytes;
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
    }
}

/// What came to it since an earlier time; what is open is as it is now. Where less is known than
/// before, because rows were forgotten or the maps are new, nothing came.
impl Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            opened: self.opened.saturating_sub(earlier.opened),
            in_packets: self.in_packets.saturating_sub(earlier.in_packets),
            out_packets: self.out_packets.saturating_sub(earlier.out_packets),
            in_bytes: self.in_bytes.saturating_sub(earlier.in_bytes),
            out_bytes: self.out_bytes.saturating_sub(earlier.out_bytes),
            ..self
        }
    }
}

/// Counts by service, backend and kind of frontend, in one family.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    counts: HashMap<CounterKey, Counts>,
}

impl Usage {
    /// All that the rows tell.
    pub fn of<A: MapAddr>(rows: &Rows<A>) -> Self {
        let mut usage = Self::default();
        for (key, opened) in &rows.opened {
            usage.at(*key).opened += opened;
        }
        for (key, traffic) in &rows.traffic {
            usage.at(key.by_anybody()).add_traffic(traffic);
        }
        usage.add_live(rows);
        usage
    }

    fn add_live<A: MapAddr>(&mut self, rows: &Rows<A>) {
        for (key, entry) in &rows.conntrack {
            // Those that no service has are of nobody's use.
            let Some(counted) = entry.counter_key() else { continue };
            let counts = self.at(counted);
            counts.add_traffic(&entry.traffic());
            if Role(entry.role).is_primary() {
                let opening = matches!(state(rows, key, entry), Some(TcpState::SynSent | TcpState::SynRecv));
                let open = !opening && is_open(rows, key, entry);
                *(if open { &mut counts.connections } else { &mut counts.inactive }) += 1;
            }
        }
    }

    fn at(&mut self, key: CounterKey) -> &mut Counts {
        self.counts.entry(key).or_default()
    }

    /// Everything by its key.
    pub fn iter(&self) -> impl Iterator<Item = (&CounterKey, &Counts)> {
        self.counts.iter()
    }

    /// What one kind of frontends of a service sent to a backend.
    pub fn of_backend(&self, service: u32, kind: u8, backend: u32) -> Counts {
        let key = CounterKey { service, backend, kind: u32::from(kind) };
        self.counts.get(&key).copied().unwrap_or_default()
    }

    /// What came since an earlier time.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |key| earlier.counts.get(key).copied().unwrap_or_default();
        Self { counts: self.counts.iter().map(|(key, counts)| (*key, *counts - before(key))).collect() }
    }
}

impl Counts {
    fn add_traffic(&mut self, traffic: &Traffic) {
        self.in_packets += traffic.in_packets;
        self.out_packets += traffic.out_packets;
        self.in_bytes += traffic.in_bytes;
        self.out_bytes += traffic.out_bytes;
    }
}
