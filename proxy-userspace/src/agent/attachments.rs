//! Looks on a timer whether what was attached still is: others manage the same devices and cgroups.

use std::collections::BTreeSet;

use tokio::time::Instant;
use tracing::{debug, error, warn};

use super::{Agent, due::ATTACHMENTS};
use crate::{
    health::Programs,
    kernel::{Lost, Part, Standing},
};

/// What was found at the last look.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    /// What could not be put right, to say so once.
    failed: BTreeSet<(Part, String)>,
    /// Nothing is left of this agent's maps and programs.
    gone: bool,
}

impl Attachments {
    /// What `/healthz` is to know, beside whether all edges have their programs.
    fn programs(&self, edges_are_attached: bool) -> Programs {
        match () {
            () if self.gone => Programs::Gone,
            () if edges_are_attached && self.failed.is_empty() => Programs::Attached,
            () => Programs::Missing,
        }
    }

    /// Tells of what was lost; returns the parts that are as they should be again.
    fn report(&mut self, lost: Vec<Lost>) -> Vec<Part> {
        let before = std::mem::take(&mut self.failed);
        let mut repaired = Vec::new();
        for Lost { part, name, repaired: result } in lost {
            let what = part.name();
            match result {
                Ok(()) => {
                    warn!(part = what, name, "put back what somebody else has taken away");
                    repaired.push(part);
                }
                Err(error) => {
                    let entry = (part, name);
                    let name = &entry.1;
                    if before.contains(&entry) {
                        debug!(part = what, name, %error, "cannot put back");
                    } else {
                        warn!(part = what, name, %error, "cannot put back what somebody else has taken away; trying again");
                    }
                    self.failed.insert(entry);
                }
            }
        }
        repaired
    }
}

impl Agent {
    /// Puts right what differs, and tries again what has failed before.
    pub(super) fn compare_attachments(&mut self) {
        self.due.attachments = Instant::now() + ATTACHMENTS;
        // Both generations are attached; the next start goes on from there.
        if self.datapath.is_taking_over() {
            return;
        }
        let standing = match self.datapath.standing() {
            Ok(standing) => standing,
            Err(error) => return warn!(%error, "cannot look at the pins; trying again"),
        };
        let was_gone = std::mem::replace(&mut self.attachments.gone, standing == Standing::Gone);
        match standing {
            Standing::InService => self.repair(),
            Standing::Gone if !was_gone => {
                error!(
                    "somebody has removed the pins of this agent, and its programs with them; a restart makes them anew"
                );
            }
            Standing::Gone | Standing::Superseded => {}
        }
        self.tell_attached();
    }

    fn repair(&mut self) {
        let mut lost = self.datapath.repair();
        if lost.iter().any(|lost| lost.part == Part::Program) || !self.edges.are_attached() {
            self.follow_edges();
            // Of a device that refuses them, the edges have told.
            let attached = self.datapath.attachments();
            let is_at = |lost: &Lost, device: &str| lost.name.split(' ').next() == Some(device);
            let is_back = |lost: &Lost| attached.iter().any(|(device, _)| is_at(lost, device));
            lost.retain(|lost| lost.part != Part::Program || is_back(lost));
        }
        let repaired = self.attachments.report(lost);
        self.metrics.count_repaired_parts(&repaired);
    }

    /// Says whether the programs are where they have to be.
    pub(super) fn tell_attached(&self) {
        self.health.set_programs(self.attachments.programs(self.edges.are_attached()));
    }
}
