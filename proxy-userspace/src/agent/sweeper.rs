//! Sweeps the flow tables without holding up the agent: what only needs maps happens on a
//! thread for blocking work, with maps of its own; only the judgement in between does not.

use std::time::Duration;

use anyhow::{Context, Result};
use proxy_common::DropReason;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::Instant,
};
use tracing::debug;

use super::{pressure::Refused, takeover::Follower};
use crate::{
    dataplane::{MapError, Survey, SweepError, Swept, Timeouts, Verdict},
    kernel::{Datapath, KernelError, KernelMaps, KernelSockets, PinnedMaps},
};

/// What a sweep works with. It belongs to the thread while one runs.
pub(super) struct Tools {
    maps: KernelMaps,
    pinned: PinnedMaps,
    sockets: KernelSockets,
    left: Follower,
}

/// One sweep after the other.
pub(super) struct Sweeper {
    /// Absent while a sweep runs.
    tools: Option<Tools>,
    running: Option<JoinHandle<(Tools, Step)>>,
    started: Instant,
}

/// What a thread has done.
pub(super) enum Step {
    /// Flows were read, and those that are over removed; now they are to be judged.
    Surveyed(Result<Box<Survey>, MapError>, Result<Refused, KernelError>),
    /// The sweep is complete.
    Removed(Result<Swept, SweepError>),
}

impl Sweeper {
    /// Sweeps the maps of these programs.
    pub(super) fn of(datapath: &Datapath) -> Result<Self> {
        let maps = datapath.maps().context("cannot open the maps")?;
        let tools = Tools {
            maps,
            pinned: datapath.pinned()?,
            sockets: KernelSockets::default(),
            left: Follower::default(),
        };
        Ok(Self { tools: Some(tools), running: None, started: Instant::now() })
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// Begins a sweep, unless one runs.
    pub(super) fn survey(&mut self, now_ns: u64, timeouts: Timeouts) {
        let Some(mut tools) = self.tools.take() else { return };
        self.started = Instant::now();
        self.running = Some(spawn_blocking(move || {
            let survey = Survey::take(&mut tools.maps, now_ns, &timeouts).map(Box::new);
            if let Ok(survey) = &survey {
                tools.left.follow(&mut tools.maps, survey.left());
            }
            let refused = refused(&tools.pinned);
            (tools, Step::Surveyed(survey, refused))
        }));
    }

    /// Goes on with what has been judged.
    pub(super) fn remove(&mut self, survey: Box<Survey>, verdict: Verdict) {
        let Some(mut tools) = self.tools.take() else { return };
        self.running = Some(spawn_blocking(move || {
            let swept = survey.remove(&verdict, &mut tools.maps, &mut tools.sockets);
            (tools, Step::Removed(swept))
        }));
    }

    /// Waits for the thread; forever if there is none.
    pub(super) async fn step(&mut self) -> Result<Step> {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let (tools, step) = running.await.context("the sweep of connections broke off")?;
        (self.tools, self.running) = (Some(tools), None);
        Ok(step)
    }

    /// The time since the sweep began.
    pub(super) fn took(&self) -> Duration {
        let took = self.started.elapsed();
        debug!(?took, "swept");
        took
    }
}

fn refused(pinned: &PinnedMaps) -> Result<Refused, KernelError> {
    let drops = pinned.drops()?;
    let of = |wanted| drops.iter().filter(|(reason, _)| *reason == wanted).map(|(_, count)| count).sum();
    Ok(Refused { ports: of(DropReason::SnatPortsExhausted), rows: of(DropReason::ConntrackFull) })
}
