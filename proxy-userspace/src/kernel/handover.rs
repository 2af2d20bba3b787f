//! From one generation of maps and programs to the next without a packet in between that finds
//! neither.
//!
//! A running program cannot be given other maps, and a map cannot change its shape. So the programs
//! of both generations are attached for a while, the outgoing ones first: what they leave untouched
//! reaches the incoming ones. Connections are known by rows, each of which is at home in one
//! generation at a time; new ones are opened by whoever has frontends. The order:
//!
//! 1. the outgoing tables are copied ([`copy_tables`]), the incoming programs loaded;
//! 2. `current` names the incoming generation; both are told of each other, and masquerade with ports
//!    of their own;
//!    connections are made known ([`Handover::begin`]);
//! 3. the incoming programs are attached behind the outgoing ones;
//! 4. the outgoing ones lose their frontends: what is new falls through to the incoming ones;
//!    connections move over, row by row; the outgoing links and pins go ([`Handover::finish`]).
//!
//! Whoever is killed before 2 leaves a generation that the next agent discards, and after it one
//! that the next agent goes on with.

mod flows;
mod ports;
mod settings;
mod waiting;

use aya::maps::MapData;
use proxy_common::{
    addr::{Ip4, Ip6},
    maps::settings::flags::HANDOVER,
};

use self::{ports::Range, settings::Theirs, waiting::Waiting};
use super::{
    KernelMaps,
    bpf::{ANY, NOEXIST, wait_for_programs},
    carry::{Carrier, Rows, Table, carry_error},
    error::KernelError,
    family::KernelAddr,
    generations::Generations,
    object,
    pins::Pins,
};
use crate::dataplane::MapStore;

/// What the rows of a map are to a generation that comes after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// What is wanted, and what the host is like: copied, then written by the agent.
    Table,
    /// State of flows that programs write.
    Flows,
    /// Storage of sockets, which nobody can list: the map itself goes on.
    Storage,
    /// Counters: they go on from where they were.
    Counters,
    /// Made anew.
    Not,
}

fn kept(map: &str) -> Kept {
    match map.trim_end_matches("_v4").trim_end_matches("_v6") {
        "conntrack" | "affinity" | "fragments" | "netns_addresses" => Kept::Flows,
        "socket_peers" | "socket_datagrams" => Kept::Storage,
        "drops" | "opened" | "traffic" | "service_drops" => Kept::Counters,
        "address_filter" | "held_fragments" | "held_turns" | "next_hops" | "routes" | "stale_sockets"
        | "stale_ways" | "sweep" | "tails" | "trace" | "events" | "transient" | "turns" => Kept::Not,
        _ => Kept::Table,
    }
}

fn maps(kind: Kept) -> impl Iterator<Item = &'static str> {
    object::pin_names().filter(move |name| kept(name) == kind)
}

/// Pins the storage of sockets in the incoming generation too, before its programs are loaded: there is
/// no other way for what sockets hold to go on. Storage with other fields is left behind.
///
/// # Errors
/// When a map cannot be opened or pinned.
pub(super) fn share_storage(from: &Pins, to: &Pins) -> Result<(), KernelError> {
    for name in maps(Kept::Storage) {
        let fields = [from, to].map(|pins| std::fs::read_link(pins.fields(name)).ok());
        let same = fields[0].is_some() && fields[0] == fields[1];
        if !same || !from.map(name).exists() {
            continue;
        }
        let map = MapData::from_pin(from.map(name)).map_err(|source| KernelError::Map { name, source })?;
        map.pin(to.map(name)).map_err(|error| carry_error(name, error))?;
    }
    Ok(())
}

/// Counters as they were when they were copied.
pub(super) type Snapshot = Vec<(&'static str, Rows)>;

/// Copies what the agent needs to go on with the same ids.
///
/// # Errors
/// When a row cannot be read or written.
pub(super) fn copy_tables(from: &Pins, to: &Pins) -> Result<Snapshot, KernelError> {
    for name in maps(Kept::Table) {
        if let Some(carrier) = Carrier::open(from, to, name)? {
            carrier.copy(ANY)?;
        }
    }
    let mut snapshot = Snapshot::new();
    for name in maps(Kept::Counters) {
        if let Some(carrier) = Carrier::open(from, to, name)? {
            let rows = carrier.rows()?;
            carrier.copy(ANY)?;
            snapshot.push((name, rows));
        }
    }
    Ok(snapshot)
}

/// Generations that are to go, and the way back.
#[derive(Debug)]
pub(super) struct Handover {
    generations: Generations,
    /// Oldest first.
    outgoing: Vec<Pins>,
    snapshot: Snapshot,
    /// Which was in service.
    before: Option<Pins>,
    /// Source ports the outgoing programs had, by generation.
    ports: Vec<(Pins, Range)>,
    /// Source ports the incoming programs are to have in the end.
    wanted: Option<Range>,
}

/// What a handover moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// Rows of connections, of both families.
    pub connections: usize,
    /// Rows of affinity and of packets in fragments.
    pub other_flows: usize,
}

impl Handover {
    /// Of these generations to the one that is not among them.
    pub(super) fn new(generations: Generations, outgoing: Vec<Pins>, snapshot: Snapshot) -> Self {
        Self { generations, outgoing, snapshot, before: None, ports: Vec::new(), wanted: None }
    }

    pub(super) fn outgoing(&self) -> &[Pins] {
        &self.outgoing
    }

    /// Step 2. What it changes, [`Handover::undo`] changes back.
    ///
    /// # Errors
    /// When a map cannot be read or written.
    pub(super) fn begin(&mut self, to: &Pins, maps: &mut KernelMaps) -> Result<(), KernelError> {
        self.before = self.generations.current()?;
        self.generations.switch(to)?;
        self.tell_programs(maps)?;
        let_programs_end()?;
        let (mut v4, mut v6) = (Waiting::new(), Waiting::new());
        for from in &self.outgoing {
            let copied = flows::copy::<Ip4>(from, to, maps.v4(), &mut v4)?
                + flows::copy::<Ip6>(from, to, maps.v6(), &mut v6)?;
            copy_others(from, to)?;
            let generation = from.generation().directory();
            tracing::info!(
                generation,
                connections = copied,
                "made known what the outgoing programs translate"
            );
        }
        let waiting = v4.take_places(to)? + v6.take_places(to)?;
        tracing::debug!(waiting, "connections that give way have places");
        Ok(())
    }

    /// Tells the programs of both generations that they are not alone. Each masquerades with ports of
    /// its own, or one would take a port that the other has just given away; and none enters rows
    /// again that are missing, for the other may have them.
    fn tell_programs(&mut self, maps: &mut KernelMaps) -> Result<(), KernelError> {
        let mut settings = maps.settings()?;
        let wanted = Range { first: settings.snat_port_first, count: settings.snat_port_count };
        self.wanted = Some(wanted);
        let mut own = wanted;
        for from in &self.outgoing {
            let Some(mut theirs) = Theirs::read(from)? else { continue };
            let Some(range) = theirs.ports() else { continue };
            theirs.set_ports(range.lower_half());
            theirs.set_handover(true);
            theirs.write()?;
            own = own.without(range.lower_half());
            self.ports.push((from.clone(), range));
        }
        (settings.snat_port_first, settings.snat_port_count) = (own.first, own.count);
        settings.flags |= HANDOVER;
        Ok(maps.put_settings(&settings)?)
    }

    /// Goes back to before [`Handover::begin`]; the incoming links must be gone.
    ///
    /// # Errors
    /// When the outgoing settings cannot be written.
    pub(super) fn undo(&self) -> Result<(), KernelError> {
        if let Some(before) = &self.before {
            self.generations.switch(before)?;
        }
        for (from, range) in &self.ports {
            let Some(mut theirs) = Theirs::read(from)? else { continue };
            theirs.set_ports(*range);
            theirs.set_handover(false);
            theirs.write()?;
        }
        Ok(())
    }

    /// Step 4, without what goes on at hooks. The incoming programs must be attached.
    ///
    /// # Errors
    /// When a map cannot be read or written. The next agent goes on from here.
    pub(super) fn take_over(&self, to: &Pins, maps: &mut KernelMaps) -> Result<HandedOver, KernelError> {
        let mut moved = HandedOver::default();
        for from in &self.outgoing {
            // Once more, for clients that have come since: where they go must not change.
            copy_others(from, to)?;
            // A client may open a connection from the port of one that has ended, whose row must not be
            // there any more when the incoming programs open it.
            let ended = (flows::rows::<Ip4>(from, to, true)?, flows::rows::<Ip6>(from, to, true)?);
            drain::<Ip4>(from)?;
            drain::<Ip6>(from)?;
            moved.connections += flows::take(from, to, maps.v4(), &ended.0)?;
            moved.connections += flows::take(from, to, maps.v6(), &ended.1)?;
        }
        let_programs_end()?;
        for from in &self.outgoing {
            moved.connections += flows::take_all::<Ip4>(from, to, maps.v4())?;
            moved.connections += flows::take_all::<Ip6>(from, to, maps.v6())?;
            moved.other_flows += copy_others(from, to)?;
            for (name, before) in &self.snapshot {
                if let Some(carrier) = Carrier::open(from, to, name)? {
                    carrier.add_growth(before)?;
                }
            }
        }
        if let Some(wanted) = self.wanted {
            let mut settings = maps.settings()?;
            (settings.snat_port_first, settings.snat_port_count) = (wanted.first, wanted.count);
            settings.flags &= !HANDOVER;
            maps.put_settings(&settings)?;
        }
        Ok(moved)
    }

    /// The end of it: nothing is left to translate there.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub(super) fn retire(&self) -> Result<(), KernelError> {
        self.outgoing.iter().try_for_each(Pins::remove)
    }
}

/// Copies affinity and fragments that are not known here, or were used later there.
fn copy_others(from: &Pins, to: &Pins) -> Result<usize, KernelError> {
    let mut copied = 0;
    for name in maps(Kept::Flows).filter(|name| !name.starts_with("conntrack")) {
        let Some(carrier) = Carrier::open(from, to, name)? else { continue };
        let used = |row: &[u8]| carrier.to.value.number(row, "last_used");
        carrier.each(|row| {
            copied += 1;
            match carrier.to.map.put(&row.key, &row.value, NOEXIST) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                    let here = carrier.to.map.get(&row.key)?;
                    let later = here.is_some_and(|here| used(&row.value) > used(&here));
                    if later { carrier.to.map.put(&row.key, &row.value, ANY) } else { Ok(()) }
                }
                other => other,
            }
        })?;
    }
    Ok(copied)
}

fn let_programs_end() -> Result<(), KernelError> {
    let what = "connections of programs that still run".to_owned();
    wait_for_programs().map_err(|error| KernelError::Handover { what, source: error.into() })
}

/// Takes away what connections are opened by. Rows that stand for whole addresses and ranges go
/// first: with them, a port that has no row any more would be refused.
fn drain<A: KernelAddr>(from: &Pins) -> Result<(), KernelError> {
    let names = A::PINS.0;
    for (name, is_turn) in [
        (names.service_cidrs, (|_, _| true) as fn(Option<u64>, Option<u64>) -> bool),
        (names.frontends, |port, proto| port == Some(0) && proto == Some(0)),
        (names.frontends, |_, _| true),
    ] {
        let Some(table) = Table::open(from, name)? else { continue };
        let mut keys = Vec::new();
        let read = table.map.each(|key, _| {
            if is_turn(table.key.number(key, "port"), table.key.number(key, "proto")) {
                keys.push(key.to_vec());
            }
            Ok(())
        });
        read.and_then(|()| table.map.delete(&keys)).map_err(|error| carry_error(name, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_map_is_kept_for_a_reason() {
        assert_eq!(kept("conntrack_v6"), Kept::Flows);
        assert_eq!(kept("drops"), Kept::Counters);
        assert_eq!(kept("address_filter_v4"), Kept::Not);
        assert_eq!(kept("frontends_v4"), Kept::Table);
        assert!(maps(Kept::Flows).count() >= 8 && maps(Kept::Table).count() > 10);
    }
}
