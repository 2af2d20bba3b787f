//! Waiting for what an agent says.

use super::{Agent, LIMIT, Line};
use crate::{control_plane::Versions, late};
use anyhow::{Error, Result, anyhow, ensure};
use std::time::Duration;

impl Agent {
    /// Waits until the kernel holds what was last written.
    pub fn wait_in_sync(&self) -> Result<()> {
        if let Some(api_server) = &self.api_server {
            return self.wait_for_versions(&api_server.written(&self.name));
        }
        let wanted = self.written;
        self.wait_for(&format!("sync with revision {wanted}"), |line| {
            line.message() == "in sync" && line.field("revision").as_u64() >= Some(wanted)
        })
    }

    /// Whether the kernel holds what was last written to the manifests.
    pub fn is_in_sync(&self) -> bool {
        let wanted = self.written;
        self.log.wait_for(Duration::ZERO, |line| {
            line.message() == "in sync" && line.field("revision").as_u64() >= Some(wanted)
        })
    }

    fn wait_for_versions(&self, wanted: &Versions) -> Result<()> {
        self.wait_for(&format!("sync with {wanted}"), |line| {
            let versions = line.field("resource_versions").as_str().unwrap_or_default();
            line.message() == "in sync" && wanted.are_reached(versions)
        })
    }

    /// Waits for the sync of a start that finds everything in the kernel as it should be.
    pub fn wait_adopted(&self) -> Result<()> {
        let is_first = |line: &Line| line.message() == "in sync" && line.field("revision") == 1;
        self.wait_for_or(
            "a first sync that writes nothing",
            |line| is_first(line) && line.field("writes") == 0,
            is_first,
        )
    }

    /// Waits for a line of the log, which may be there already.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Line) -> bool) -> Result<()> {
        self.wait_for_or(what, wanted, |_| false)
    }

    /// The same, where other lines tell that the wanted one does not come any more.
    pub fn wait_for_or(
        &self,
        what: &str,
        wanted: impl Fn(&Line) -> bool,
        refutes: impl Fn(&Line) -> bool,
    ) -> Result<()> {
        if self.log.wait_for(LIMIT, wanted) {
            return Ok(());
        }
        if let Some(line) = self.log.lines().into_iter().find(refutes) {
            return Err(anyhow!("the agent of {} has not logged {what}, but {}", self.name, line.text()));
        }
        Err(self.has_not_logged(what))
    }

    fn has_not_logged(&self, what: &str) -> Error {
        let error = self.ensure_alive().err();
        error.map(|error| error.context(format!("no {what}"))).unwrap_or_else(|| {
            let tail = self.log.tail();
            late!("the agent of {} has not logged {what} in {LIMIT:?}; its last words:\n{tail}", self.name)
                .into()
        })
    }

    /// An error if the agent that was started last has ended. Nothing it has not done yet is only
    /// late then.
    pub fn ensure_alive(&self) -> Result<()> {
        ensure!(
            !self.log.has_ended(),
            "the agent of {} has ended; its last words:\n{}",
            self.name,
            self.log.tail()
        );
        Ok(())
    }

    /// The first line of this message, if it comes within this time.
    pub fn line_within(&self, limit: Duration, message: &str) -> Option<Line> {
        let is_it = |line: &Line| line.message() == message;
        self.log.wait_for(limit, is_it).then(|| self.log.lines().into_iter().find(is_it))?
    }
}
