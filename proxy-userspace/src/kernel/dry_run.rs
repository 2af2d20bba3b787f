//! The tc programs over the maps of a running node, without a trace: they read the very rows
//! that the live programs read, and write connections, affinity and counters into maps of
//! their own, which vanish with them.

use std::{fs, os::fd::AsFd};

use aya::{
    Ebpf, EbpfLoader,
    maps::{HashMap, MapData, MapError, PerCpuArray, ProgramArray},
    programs::SchedClassifier,
};
use proxy_common::{
    DropReason,
    maps::{
        affinity::{Affinity, AffinityKey},
        conntrack::{CtEntry, CtKey},
        tails::Tail,
    },
};

use super::{
    bpf::{self, Run},
    error::KernelError,
    family::KernelAddr,
    generations::Generations,
    object,
    pins::{Pins, failed},
    tails,
};

/// Maps that programs only read. All others are the dry run's own.
const READ: [&str; 8] = [
    "address_filter",
    "frontends",
    "slots",
    "backends",
    "node_addresses",
    "service_cidrs",
    "source_ranges",
    "socket_lb_exempt",
];
const READ_BY_BOTH: [&str; 2] = ["devices", "settings"];

/// Room for what is copied and what a few packets add. In a table of this size nothing gives way yet.
const ROOM: u32 = 4096;

/// The programs that a packet passes which opens a connection, or is refused.
const TAILS: [Tail; 6] = [Tail::In, Tail::Out, Tail::InOpen, Tail::OutOpen, Tail::InRefuse, Tail::OutRefuse];

/// The tc programs for devices with an Ethernet header.
pub struct DryRun {
    ebpf: Ebpf,
    /// The kernel empties the array when nobody holds it.
    _tails: ProgramArray<MapData>,
}

impl DryRun {
    /// Loads the programs over the maps below `pins`, with room for as many rows of live
    /// connections and affinities as `rows`.
    ///
    /// # Errors
    /// When a map is missing or of another layout, or the kernel refuses a program.
    pub fn open(pins: &Pins, rows: usize) -> Result<Self, KernelError> {
        // One generation throughout: an agent may hand over to another meanwhile.
        let current = Generations::below(pins.root()).current()?;
        let pins = current.as_ref().unwrap_or(pins);
        pins.check_layout()?;
        let mut loader = EbpfLoader::new();
        let (log_level, cables) = (0u8, 0u8);
        loader.override_global(aya_log::LEVEL, &log_level, true);
        loader.override_global("CABLES", &cables, true);
        let room = ROOM.saturating_add(2 * u32::try_from(rows).unwrap_or(u32::MAX / 4));
        loader.override_global("CONNTRACK_ROWS", &room, true);
        for &(name, pin, capacity) in object::MAPS {
            if is_read(pin) {
                let path = pins.map(pin);
                // A pin that is missing would be made.
                fs::metadata(&path).map_err(failed("cannot open", &path))?;
                loader.map_pin_path(name, path);
            } else if capacity.is_some() {
                loader.map_max_entries(name, room);
            }
        }
        let mut ebpf = loader.load(object::OBJECT)?;
        object::load_programs(&mut ebpf, TAILS.map(|tail| tail.program(true)))?;
        let map_error = |source| KernelError::Map { name: "tails", source };
        let array = ebpf
            .take_map("TAILS")
            .ok_or_else(|| map_error(MapError::InvalidName { name: "TAILS".into() }))?;
        let mut tails = ProgramArray::try_from(array).map_err(map_error)?;
        tails::enter(&mut ebpf, &mut tails, TAILS.map(|tail| (tail.index(true), tail.program(true))))?;
        Ok(Self { ebpf, _tails: tails })
    }

    /// Enters copies of live connections.
    ///
    /// # Errors
    /// When a row is not taken; so for all of these.
    pub fn enter_connections<A: KernelAddr>(
        &mut self,
        rows: &[(CtKey<A>, CtEntry<A>)],
    ) -> Result<(), KernelError> {
        // Those of another layout say nothing of their keys.
        let rows: Vec<_> = rows.iter().map(|(key, row)| (*key, row.at(key))).collect();
        self.enter(A::PINS.0.conntrack, &rows)
    }

    /// Enters copies of live affinities.
    ///
    /// # Errors
    /// When a row is not taken.
    pub fn enter_affinities<A: KernelAddr>(
        &mut self,
        rows: &[(AffinityKey<A>, Affinity)],
    ) -> Result<(), KernelError> {
        self.enter(A::PINS.0.affinity, rows)
    }

    /// The connection under this key.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn connection<A: KernelAddr>(&mut self, key: &CtKey<A>) -> Result<Option<CtEntry<A>>, KernelError> {
        let name = A::PINS.0.conntrack;
        let map: HashMap<&mut MapData, CtKey<A>, CtEntry<A>> = self.map(name)?;
        match map.get(key, 0) {
            Ok(row) => Ok(Some(row)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(source) => Err(KernelError::Map { name, source }),
        }
    }

    /// Runs a packet through the program at tc ingress of the device `ifindex`.
    ///
    /// # Errors
    /// When the kernel refuses the packet or has no such device.
    pub fn ingress(&mut self, packet: &[u8], ifindex: u32) -> Result<Run, KernelError> {
        self.run(object::CLASSIFIERS[0], packet, bpf::Passage { came_by: ifindex, at: ifindex })
    }

    /// Runs a packet through the program at tc egress of the device `ifindex`. It came in by
    /// `came_by`; 0 stands for this host.
    ///
    /// # Errors
    /// When the kernel refuses the packet or has no such device.
    pub fn egress(&mut self, packet: &[u8], came_by: u32, ifindex: u32) -> Result<Run, KernelError> {
        self.run(object::CLASSIFIERS[1], packet, bpf::Passage { came_by, at: ifindex })
    }

    /// Why packets were refused since the programs were loaded; none if none was.
    ///
    /// # Errors
    /// When the counters cannot be read.
    pub fn refused(&mut self) -> Result<Option<DropReason>, KernelError> {
        let drops: PerCpuArray<&mut MapData, u64> = self.map("drops")?;
        for reason in DropReason::ALL {
            let counts = drops.get(&(*reason as u32), 0);
            let counts = counts.map_err(|source| KernelError::Map { name: "drops", source })?;
            if counts.iter().any(|count| *count > 0) {
                return Ok(Some(*reason));
            }
        }
        Ok(None)
    }

    fn run(&mut self, name: &'static str, packet: &[u8], passage: bpf::Passage) -> Result<Run, KernelError> {
        let program = object::program::<SchedClassifier>(&mut self.ebpf, name)?;
        let fd = program.fd().map_err(|source| KernelError::Program { name, source })?;
        bpf::test_run_at(fd.as_fd(), packet, passage, 1).map_err(|source| KernelError::System {
            what: format!("run a packet of {} bytes through {name}", packet.len()),
            source,
        })
    }

    fn enter<K: aya::Pod, V: aya::Pod>(
        &mut self,
        name: &'static str,
        rows: &[(K, V)],
    ) -> Result<(), KernelError> {
        let mut map: HashMap<&mut MapData, K, V> = self.map(name)?;
        rows.iter()
            .try_for_each(|(key, row)| map.insert(key, row, 0))
            .map_err(|source| KernelError::Map { name, source })
    }

    fn map<'a, M>(&'a mut self, pin: &'static str) -> Result<M, KernelError>
    where
        M: TryFrom<&'a mut aya::maps::Map, Error = MapError>,
    {
        let error = |source| KernelError::Map { name: pin, source };
        let found = object::MAPS.iter().find(|(_, other, _)| *other == pin);
        let map = found.and_then(|(name, _, _)| self.ebpf.map_mut(name));
        let map = map.ok_or_else(|| error(MapError::InvalidName { name: pin.into() }))?;
        M::try_from(map).map_err(error)
    }
}

fn is_read(pin: &str) -> bool {
    let family = pin.strip_suffix("_v4").or_else(|| pin.strip_suffix("_v6"));
    READ_BY_BOTH.contains(&pin) || READ.contains(&family.unwrap_or(pin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_write_is_never_the_live_map() {
        let written = [
            "conntrack",
            "affinity",
            "fragments",
            "stale_sockets",
            "stale_ways",
            "socket_datagrams",
            "socket_peers",
            "netns_addresses",
        ];
        for name in written {
            assert!(!is_read(&format!("{name}_v4")) && !is_read(&format!("{name}_v6")), "{name}");
        }
        for name in ["held_fragments", "held_turns", "drops", "tails", "sweep"] {
            assert!(!is_read(name), "{name}");
        }
        for name in READ_BY_BOTH.into_iter().chain(["frontends_v4", "slots_v6", "socket_lb_exempt"]) {
            assert!(is_read(name), "{name}");
            assert!(object::MAPS.iter().any(|(_, pin, _)| *pin == name), "{name}");
        }
    }
}
