//! The devices that carry the programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::AsFd,
};

use aya::programs::Xdp;

use super::Datapath;
use crate::kernel::{
    KernelError,
    attach::{self, Direction, Target},
    handover::Handover,
    host::{Edge, EdgeKind, XdpPlan},
    loopback, object,
    xdp::{self, XdpStatus},
};

/// What [`Datapath::follow`] did about one device.
#[derive(Debug)]
pub enum EdgeChange {
    /// The programs are attached to it from here on.
    Attached(Edge),
    /// It is gone, or no edge any more.
    Detached(Target),
    /// The programs are not attached; the next call tries again.
    Failed(Edge, KernelError),
}

impl Datapath {
    fn attach(&mut self, target: &Target, direction: Direction) -> Result<(), KernelError> {
        if !target.ethernet {
            self.load_layer3()?;
        }
        let by_tcx = self.is_tcx();
        let outgoing = self.handover.as_ref().map_or(&[][..], Handover::outgoing);
        attach::attach(&mut self.ebpf, &self.pins, outgoing, by_tcx, target, direction)
    }

    /// The devices that the tc programs are attached to, and how: `tcx` or `clsact`.
    pub fn attachments(&self) -> Vec<(String, &'static str)> {
        let mode = if self.is_tcx() { "tcx" } else { "clsact" };
        self.attached.values().map(|target| (target.name.clone(), mode)).collect()
    }

    /// Programs are attached by TCX. While another generation is attached, in the way of that one:
    /// programs at TCX come before all filters.
    pub(super) fn is_tcx(&self) -> bool {
        let outgoing = self.handover.as_ref().map_or(&[][..], Handover::outgoing);
        attach::mode_of(outgoing).unwrap_or(self.options.tc_mode).is_tcx()
    }

    /// Makes `edges` the devices that carry the programs.
    pub fn follow(&mut self, edges: &[Edge]) -> Vec<EdgeChange> {
        self.unused = false;
        let wanted: BTreeMap<u32, &Edge> = edges.iter().map(|e| (e.target.ifindex, e)).collect();
        let mut changes = self.detach_others(&wanted);
        let mut new: Vec<_> = wanted
            .into_values()
            .filter(|edge| self.attached.get(&edge.target.ifindex) != Some(&edge.target))
            .collect();
        if new.iter().any(|edge| edge.kind == EdgeKind::Loopback) {
            loopback::accept_own_sources(true);
        }
        // All devices one way, then all the other: a connection that enters by the first of them may leave
        // by the last.
        self.refused.clear();
        for direction in attach::DIRECTIONS {
            new.retain(|edge| match self.attach(&edge.target, direction) {
                Ok(()) => true,
                Err(error) => {
                    self.refused.insert(edge.target.ifindex);
                    changes.push(EdgeChange::Failed((*edge).clone(), error));
                    false
                }
            });
        }
        for edge in new {
            self.attached.insert(edge.target.ifindex, edge.target.clone());
            changes.push(EdgeChange::Attached(edge.clone()));
        }
        changes
    }

    /// Makes the devices of `plan` those whose drivers run the XDP program. What became of
    /// every device.
    pub fn follow_xdp(&mut self, plan: &XdpPlan) -> Vec<XdpStatus> {
        let program = match &self.no_xdp {
            Some(reason) => Err(reason.as_str()),
            None => Ok(()),
        };
        let program = program.and_then(|()| {
            let program =
                object::program::<Xdp>(&mut self.ebpf, object::DRIVER).map_err(|_| "there is no program")?;
            let (fd, info) = (program.fd(), program.info());
            fd.ok().zip(info.ok()).ok_or("the program is not loaded")
        });
        let program = program.as_ref().map_err(|reason| *reason);
        let program = program.map(|(fd, info)| xdp::Program { fd: fd.as_fd(), id: info.id() });
        self.xdp.follow(&self.pins, self.options.xdp, program, plan)
    }

    /// Devices that send what XDP on another device redirects to them.
    pub fn xdp_transmitters(&self) -> BTreeSet<u32> {
        self.xdp.transmitters()
    }

    /// Those attached by this agent, and those an earlier one left pinned.
    fn detach_others(&mut self, wanted: &BTreeMap<u32, &Edge>) -> Vec<EdgeChange> {
        let mut changes = Vec::new();
        let gone: Vec<u32> = self.attached.keys().filter(|i| !wanted.contains_key(i)).copied().collect();
        for ifindex in gone {
            if let Some(target) = self.attached.remove(&ifindex) {
                attach::detach(&self.pins, ifindex, &target.name);
                changes.push(EdgeChange::Detached(target));
            }
        }
        for pin in self.pins.links().unwrap_or_default() {
            if attach::ifindex_of_pin(&pin).is_some_and(|i| !wanted.contains_key(&i)) {
                // The pin is all that is left to remove; without it the kernel detaches the program.
                let _ = fs::remove_file(self.pins.link(&pin));
            }
        }
        changes
    }
}
