//! A case from beginning to end.

use super::{
    case::{Case, Flow, Health, Profile, Step},
    config, conntrack,
    flow::{self, Memory},
    health,
    objects::Objects,
    overdue,
    scene::Scene,
};
use crate::agent::SocketLb;
use anyhow::{Context, Result};

/// What came out of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything is as promised.
    Passed,
    /// The first difference.
    Failed(String),
    /// Why it was not run.
    Skipped(&'static str),
}

/// Runs one case.
pub fn run(case: &Case, socket_lb: SocketLb) -> Verdict {
    if let Some(reason) = reason_to_skip(case) {
        return Verdict::Skipped(reason);
    }
    let played = match &case.expect_config {
        Some(expect) => config::check(&case.config, expect),
        None => play(case, socket_lb),
    };
    match played {
        Ok(()) => Verdict::Passed,
        Err(error) => Verdict::Failed(format!("{error:#}")),
    }
}

fn reason_to_skip(case: &Case) -> Option<&'static str> {
    let ours = case.profile.contains(&Profile::Nftables);
    (!ours).then_some("promised by another profile")
}

fn play(case: &Case, socket_lb: SocketLb) -> Result<()> {
    let entries = conntrack::flows(case)?;
    let mut objects = Objects::new(&case.objects, &case.node);
    let mut scene = Scene::build(case, &entries, socket_lb).context("build the scene")?;
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
