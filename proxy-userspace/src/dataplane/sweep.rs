//! Removes rows of the flow tables that are over or no longer allowed.
//!
//! Level-triggered: each sweep looks at every row, whatever happened before. The kernel does, where
//! the rows lie (`proxy-ebpf/src/sweep.rs`), and sums come here. UDP has no end of its own, so its
//! flows are cut when the service no longer leads where they go; TCP and SCTP connections to a
//! backend that is gone go on until they end.
//!
//! A connected UDP socket asks nobody when it sends. One that socket LB connected to a
//! backend that is no longer allowed is destroyed, so that its program gets an error and
//! connects anew.
//!
//! Going through a large table takes long, and what is wanted may not change while it is judged.
//! So a sweep has three steps. The first and the last need only maps, and any thread can
//! take them: [`Survey::take`] has all flows looked at and those that are over removed, and
//! [`Survey::remove`] removes those that are not allowed. Between them
//! [`Reconciler::judge`] says which ways are not, and that is short: however many flows
//! there are, they go few ways.

mod counters;
mod remove;
mod survey;

use std::{
    collections::{HashMap, HashSet},
    io,
};

use proxy_common::{
    addr::{Ip4, Ip6},
    maps::{counters::CounterKey, frontends::FrontendKey, stale_ways::Way},
    proto,
};

pub(super) use self::survey::{Clients, Flows};
pub use self::{counters::Served, survey::Survey};
use super::{MapAddr, MapError, Reconciler, family::FamilyTable};
pub use crate::model::Timeouts;

/// How many connections a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Silent for too long, or ended.
    pub expired: usize,
    /// To a backend or by a frontend that is no longer theirs.
    pub stale: usize,
    /// Pairs of UDP sockets that are no longer allowed.
    pub socket_pairs: usize,
    /// Connected sockets that were destroyed.
    pub destroyed: usize,
    /// `stale` and `socket_pairs` together, of IPv4 and of IPv6.
    pub cut: [usize; 2],
}

/// Why a sweep was not completed; the next one begins from the start.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A flow table could not be read or written.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Connected sockets may still send to a backend that is gone.
    #[error("cannot destroy sockets whose backend is gone: {0}")]
    Sockets(#[from] io::Error),
}

/// The ways that datagrams may no longer go, and counters that nobody needs any more.
#[derive(Debug, Default)]
pub struct Verdict {
    v4: FamilyVerdict<Ip4>,
    v6: FamilyVerdict<Ip6>,
}

#[derive(Debug, Default)]
struct FamilyVerdict<A> {
    stale: HashSet<Way<A>>,
    counters: Vec<CounterKey>,
}

impl Reconciler {
    /// Says which of the ways that flows go are not allowed.
    ///
    /// To be called only once all that exists has been applied and pruned: flows of a
    /// service that is not known yet would be cut.
    pub fn judge(&self, survey: &Survey) -> Verdict {
        Verdict { v4: Judge::new(&self.v4).judge(&survey.v4), v6: Judge::new(&self.v6).judge(&survey.v6) }
    }
}

struct Judge<'a, A> {
    table: &'a FamilyTable<A>,
    /// Backends of each service port that has come up, to ask about many flows of a large one.
    allowed: HashMap<u32, HashSet<u32>>,
}

impl<'a, A: MapAddr> Judge<'a, A> {
    fn new(table: &'a FamilyTable<A>) -> Self {
        Self { table, allowed: HashMap::new() }
    }

    fn judge(mut self, flows: &Flows<A>) -> FamilyVerdict<A> {
        let stale = flows.ways.keys().filter(|way| self.is_stale(way)).copied().collect();
        let mut unused =
            |key: &CounterKey, served: &Served| served.open == 0 && !self.allows(key.service, key.backend);
        let counters = flows.counts.iter().filter(|(key, served)| unused(key, served));
        FamilyVerdict { stale, counters: counters.map(|(key, _)| *key).collect() }
    }

    fn is_stale(&mut self, way: &Way<A>) -> bool {
        let misled = way.has_ends() && {
            let unanswered = !self.table.answers((way.frontend, way.frontend_port), proto::UDP, way.service);
            unanswered || self.leads_elsewhere(way.backend, (way.backend_addr, way.backend_port))
        };
        misled || !self.allows(way.service, way.backend)
    }

    /// True when the id stands for another backend: ids are given out again.
    fn leads_elsewhere(&self, id: u32, backend: (A, u16)) -> bool {
        self.table.backends.row(id).is_none_or(|row| (row.addr, row.port) != backend)
    }

    fn allows(&mut self, service: u32, backend: u32) -> bool {
        let ids = || self.table.ports.get(&service).map(|port| port.backends().collect()).unwrap_or_default();
        self.allowed.entry(service).or_insert_with(ids).contains(&backend)
    }
}

impl<A: MapAddr> FamilyTable<A> {
    /// True when a service port answers on this address, or on every address of the node.
    fn answers(&self, (addr, port): (A, u16), proto: u8, service: u32) -> bool {
        [addr, A::default()].into_iter().any(|addr| {
            let key = FrontendKey { addr, port, proto, pad: 0 };
            self.frontends.get(&key).is_some_and(|written| written.value.service == service)
        })
    }
}

#[cfg(test)]
mod tests;
