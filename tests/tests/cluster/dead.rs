//! A connection to the API server that dies without a word: the agent notices within half a minute, says so, and goes
//! on by the next way that there is.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tests::{
    agent::{Agent, SocketLb},
    control_plane::{Detour, Traffic},
    probe::Proto,
};

use crate::{
    CLIENT,
    objects::{service, slice},
    world::{FIRST, SECOND, VIP, World},
};

/// Until a death shows.
const NOTICED: Duration = Duration::from_secs(30);

/// From when there is a way again until what was changed has its effect.
const BACK: Duration = Duration::from_secs(30);

/// Kinds with a watch of their own each.
const KINDS: [&str; 3] = ["Service", "EndpointSlice", "Node"];

/// An agent that follows the API server by the first of several ways.
struct Followed {
    world: World,
    // After the agent, which uses them.
    ways: Vec<Detour>,
}

impl Followed {
    fn build(ways: usize) -> Result<Self> {
        let mut made = Vec::new();
        let mut world = World::configured_for(|stage, control_plane| {
            for _ in 0..ways {
                made.push(control_plane.detour(&stage.node)?);
            }
            let further = made.iter().skip(1).map(|way| format!("https://127.0.0.1:{}", way.port()));
            let mut shunt = Agent::small(SocketLb::Off);
            if ways > 1 {
                shunt["apiServers"] = further.collect();
            }
            Ok(shunt)
        })?;
        world.put(&[service(), slice(&[FIRST])])?;
        let first = made.first().context("no way")?;
        world.start_agent_by(&world.control_plane.kubeconfig_by(first)?)?;
        world.soon_reaches("first", Proto::Tcp, CLIENT, VIP)?;
        let followed = Self { world, ways: made };
        followed.shows(NOTICED, true)?;
        Ok(followed)
    }

    fn shows(&self, limit: Duration, up: bool) -> Result<()> {
        let deadline = Instant::now() + limit;
        KINDS.into_iter().try_for_each(|kind| {
            let line = format!("shunt_watch_up{{kind=\"{kind}\"}} {}", u8::from(up));
            self.world.shows_within(deadline.saturating_duration_since(Instant::now()), &line)
        })
    }

    /// That the connection is dead shows in time; traffic does not notice.
    fn notices(&self) -> Result<()> {
        let since = Instant::now();
        self.shows(NOTICED, false).context("nobody noticed")?;
        eprintln!("noticed after {:?}", since.elapsed());
        self.world.reaches("first", Proto::Tcp, CLIENT, VIP)
    }

    /// What is changed now takes effect in time, and all is well.
    fn is_back(&self) -> Result<()> {
        let since = Instant::now();
        self.world.put(&[slice(&[SECOND])])?;
        self.world.reaches_within(BACK, "second", CLIENT, VIP).context("not back")?;
        self.shows(BACK, true)?;
        eprintln!("back after {:?}", since.elapsed());
        Ok(())
    }
}

#[test]
fn a_server_that_is_stopped_is_noticed() -> Result<()> {
    let followed = Followed::build(1)?;
    followed.world.control_plane.hold_api_server(true)?;
    followed.notices()?;
    followed.world.control_plane.hold_api_server(false)?;
    followed.is_back()
}

#[test]
fn packets_that_are_dropped_are_noticed() -> Result<()> {
    let followed = Followed::build(1)?;
    let port = followed.ways[0].port();
    let node = &followed.world.stage.node;
    let lost = format!("tcp dport {port} drop\ntcp sport {port} drop");
    node.nft(&format!(
        "table inet dead {{\nchain input {{\ntype filter hook input priority 0\n{lost}\n}}\n}}\n"
    ))?;
    followed.notices()?;
    node.nft("delete table inet dead\n")?;
    followed.is_back()
}

#[test]
fn a_load_balancer_that_swallows_everything_is_noticed() -> Result<()> {
    let followed = Followed::build(1)?;
    followed.ways[0].set(Traffic::Vanishes);
    followed.notices()?;
    followed.ways[0].set(Traffic::Passes);
    followed.is_back()
}

#[test]
fn an_end_that_is_not_told_is_noticed() -> Result<()> {
    let mut followed = Followed::build(1)?;
    followed.ways[0].set(Traffic::LosesEnds);
    followed.world.stop_api_server();
    followed.notices()?;
    followed.world.start_api_server()?;
    followed.is_back()
}

#[test]
fn an_agent_that_gets_no_answer_from_the_start_says_so_and_tries_again() -> Result<()> {
    let mut followed = Followed::build(1)?;
    followed.world.stop_agent()?;
    followed.ways[0].set(Traffic::Vanishes);
    let kubeconfig = followed.world.control_plane.kubeconfig_by(&followed.ways[0])?;
    followed.world.start_agent_by(&kubeconfig)?;
    followed.notices()?;
    followed.ways[0].set(Traffic::Passes);
    followed.is_back()
}

#[test]
fn another_api_server_is_asked_while_one_is_dead() -> Result<()> {
    let followed = Followed::build(2)?;
    followed.ways[0].set(Traffic::Vanishes);
    let since = Instant::now();
    followed.world.put(&[slice(&[SECOND])])?;
    followed.world.reaches_within(NOTICED + BACK, "second", CLIENT, VIP)?;
    followed.shows(BACK, true)?;
    eprintln!("served by the second after {:?}", since.elapsed());
    // And back to the first, when the second one fails as well.
    followed.ways[0].set(Traffic::Passes);
    followed.ways[1].set(Traffic::Vanishes);
    followed.world.put(&[slice(&[FIRST])])?;
    followed.world.reaches_within(NOTICED + BACK, "first", CLIENT, VIP)
}
