//! Places in the queues of the incoming programs for connections that give way. Without one nobody would
//! forget them: in a flood, as many half-open connections as the outgoing programs had would fill the table.

use std::io;

use proxy_common::{
    flow::{self, TcpState},
    maps::{
        conntrack::{CtEntry, CtKey, Role, flags::LASTING},
        transient::{Place, Queue, Turns},
    },
    proto,
};

use super::flows::bytes;
use crate::kernel::{
    KernelAddr, KernelError,
    bpf::{ANY, RawMap, typed},
    carry::carry_error,
    pins::Pins,
};

/// Connections that may have to wait, by the keys of their first rows.
pub(super) struct Waiting<A>(Vec<CtKey<A>>);

impl<A: KernelAddr> Waiting<A> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// Notes the connection if its first row, which this is, does not rule out that it gives way.
    pub(super) fn note(&mut self, key: &CtKey<A>, row: &CtEntry<A>) {
        let role = Role(row.role);
        let may_wait = match key.proto {
            proto::TCP => flow::ends(row.tcp_flags) || TcpState::of_client(row.tcp_flags).is_opening(),
            _ => row.flags & LASTING == 0,
        };
        if may_wait && (role.is_primary() || role == Role::PASS) {
            self.0.push(*key);
        }
    }

    /// Gives them places, the newest if there are not enough for all; returns to how many. The programs must not run
    /// yet.
    ///
    /// # Errors
    /// When a map cannot be read or written.
    pub(super) fn take_places(self, to: &Pins) -> Result<usize, KernelError> {
        let names = A::PINS.0;
        let open = |name| RawMap::open(&to.map(name)).map_err(|error| carry_error(name, error));
        let (conntrack, places, turns) = (open(names.conntrack)?, open(names.transient)?, open(names.turns)?);
        let error = |name| move |error| carry_error(name, error);
        let mut taken = [0; Queue::ALL.len()];
        let queued = self.queued(&conntrack).map_err(error(names.conntrack))?;
        for (queue, mut waiting) in Queue::ALL.into_iter().zip(queued) {
            let (first, room) = (queue.first(conntrack.capacity()), queue.places(conntrack.capacity()));
            waiting.sort_unstable_by_key(|place| place.since);
            let newest = waiting.iter().rev().take(room as usize).rev();
            for (index, place) in (first..).zip(newest) {
                places.put(&index.to_ne_bytes(), bytes(place), ANY).map_err(error(names.transient))?;
                taken[queue as usize] += 1;
            }
        }
        let [opening, datagram, ended] = taken;
        let next = Turns { opening, datagram, ended };
        turns.put(&0u32.to_ne_bytes(), bytes(&next), ANY).map_err(error(names.turns))?;
        Ok(taken.iter().sum::<u64>() as usize)
    }

    /// Those that give way, by the queue they wait in.
    fn queued(&self, conntrack: &RawMap) -> io::Result<[Vec<Place<A>>; Queue::ALL.len()]> {
        let read = |key: &CtKey<A>| -> io::Result<Option<CtEntry<A>>> {
            Ok(conntrack.get(bytes(key))?.as_deref().and_then(typed))
        };
        let mut queued = Queue::ALL.map(|_| Vec::new());
        for key in &self.0 {
            let Some(row) = read(key)? else { continue };
            let reply = if Role(row.role).is_alone() { None } else { read(&row.pair(key.proto, key.hook))? };
            let reply = reply.filter(|reply| key.is_undone_by(reply));
            if let Some(queue) = queue(key, &row, reply.as_ref()) {
                queued[queue as usize].push(Place { key: *key, since: row.last_seen });
            }
        }
        Ok(queued)
    }
}

/// Where the connection waits, if it gives way.
fn queue<A: KernelAddr>(key: &CtKey<A>, row: &CtEntry<A>, reply: Option<&CtEntry<A>>) -> Option<Queue> {
    let mut queues = [Queue::of(key.proto), Queue::Ended].into_iter();
    queues.find(|queue| {
        (*queue != Queue::Ended || key.proto == proto::TCP)
            && row.is_forgotten(reply, key.proto, *queue, row.last_seen)
    })
}
