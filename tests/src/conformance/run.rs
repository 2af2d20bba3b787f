//! A case from beginning to end.

use super::{
    case::{Case, Flow, Health, Profile, Step, addresses},
    config, conntrack,
    flow::{self, Memory},
    health,
    objects::Objects,
    overdue,
    scene::Scene,
};
use crate::{agent::SocketLb, control_plane::SharedControlPlane};
use anyhow::{Context, Result};
use std::sync::Arc;

/// What came out of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything is as promised.
    Passed,
    /// The first difference, in one line with everything it happened in; see [`mod@crate::late`].
    Failed(String),
    /// Why it was not run.
    Skipped(&'static str),
}

/// How cases are run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Whose sockets the agent translates.
    pub socket_lb: SocketLb,
    /// What feeds the agent; manifests without it.
    pub api_server: Option<Arc<SharedControlPlane>>,
}

/// Runs one case.
pub fn run(case: &Case, setting: &Setting) -> Verdict {
    if let Some(reason) = case.reason_to_skip(setting.api_server.is_some()) {
        return Verdict::Skipped(reason);
    }
    let played = match &case.expect_config {
        Some(expect) => config::check(&case.config, expect),
        None => play(case, setting),
    };
    match played {
        Ok(()) => Verdict::Passed,
        Err(error) => Verdict::Failed(format!("{error:#}")),
    }
}

fn play(case: &Case, setting: &Setting) -> Result<()> {
    let entries = conntrack::flows(case)?;
    let mut objects = Objects::new(&case.objects, &case.node);
    let mut scene = Scene::build(case, &entries, setting).context("build the scene")?;
    let mut memory = Memory::new(case.flows());
    scene.agent.write(&objects.all())?;
    scene.agent.start(&scene.stage.node)?;
    scene.agent.wait_in_sync()?;
    if let Some(conntrack) = &case.conntrack {
        conntrack::check(&mut scene, case, conntrack, &entries)?;
    }
    if let Some(state) = case.proxy_state {
        overdue::bring_about(&mut scene.agent, objects.all(), state)?;
    }
    check(&scene, &case.flows, &case.health, &mut memory)?;
    for (number, step) in case.steps.iter().enumerate() {
        let place = || format!("step {}", number + 1);
        objects.change(step);
        change(&mut scene, step, &objects).with_context(place)?;
        check(&scene, &step.flows, &step.health, &mut memory).with_context(place)?;
    }
    Ok(())
}

fn change(scene: &mut Scene, step: &Step, objects: &Objects) -> Result<()> {
    if (step.stop || step.restart) && scene.agent.is_running() {
        scene.agent.stop()?;
    }
    if let Some(addresses) = addresses(&step.node_update) {
        scene.stage.readdress(&addresses?).context("give the node other addresses")?;
    }
    scene.agent.write(&objects.all())?;
    if step.restart {
        scene.agent.start(&scene.stage.node)?;
    }
    if scene.agent.is_running() {
        scene.agent.wait_in_sync()?;
    }
    Ok(())
}

fn check(scene: &Scene, flows: &[Flow], checks: &[Health], memory: &mut Memory) -> Result<()> {
    for flow in flows.iter().filter(|flow| flow.profile.contains(&Profile::Nftables)) {
        flow::check(scene, flow, memory)?;
    }
    checks.iter().try_for_each(|check| health::check(scene, check))
}
