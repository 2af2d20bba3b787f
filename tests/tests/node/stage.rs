//! The stage tells apart what the conformance runner has to tell apart, shown with the
//! kernel's own means in the place of an agent.

use anyhow::Result;
use std::net::IpAddr;
use tests::{
    probe::{Dial, Outcome, PATIENCE_MS, Proto, Serve, Worker},
    topology::stage::{PodKey, Port, Stage},
};

struct World {
    stage: Stage,
    inside: Worker,
    outside: Worker,
}

const POD: &str = "10.0.0.2";
const OTHER: &str = "10.180.0.1";
const PROTOS: [Proto; 4] = [Proto::Tcp, Proto::Udp, Proto::Sctp, Proto::Icmp];
/// No answer for so long is no answer, where what was sent is counted as dropped.
const SILENCE_MS: u64 = 300;

fn key(address: &str) -> PodKey {
    PodKey { address: address.parse().expect("an address"), port: Port::Bridge }
}

fn world() -> Result<World> {
    let addresses: Vec<IpAddr> = vec!["192.168.0.2".parse()?, "2001:db8::1".parse()?];
    let mut stage = Stage::build(&addresses)?;
    for pod in [POD, OTHER, "fd00:10::2"] {
        stage.add_pod(&key(pod))?;
    }
    for client in ["203.0.113.2", "2001:db8:ffff::1"] {
        stage.add_client(client.parse()?)?;
    }
    let (inside, outside) = (Worker::start(None)?, Worker::start(None)?);
    let sockets = |v: &[Proto]| -> Vec<_> {
        let any = ["0.0.0.0:80", "[::]:80"].map(|a| a.parse().expect("an address"));
        v.iter().flat_map(|proto| any.map(|a| (*proto, a))).collect()
    };
    let all = sockets(&PROTOS);
    let serve = |name: &str, netns| Serve { netns, name: name.into(), sockets: all.clone() };
    inside.serve(serve("node", stage.node.path()))?;
    inside.serve(serve("pod", stage.pod(&key(OTHER))?.path()))?;
    outside.serve(serve("sink", stage.sink.path()))?;
    Ok(World { stage, inside, outside })
}

impl World {
    /// One attempt, for so many milliseconds.
    fn dial(&self, proto: Proto, from: &str, to: &str, timeout_ms: u64) -> Result<Outcome> {
        let from: IpAddr = from.parse()?;
        let client = self.stage.pod(&PodKey { address: from, port: Port::Bridge }).ok();
        let worker = if client.is_some() { &self.inside } else { &self.outside };
        let dial = Dial {
            netns: client.unwrap_or(&self.stage.client).path(),
            proto,
            from: Some(from),
            source_port: None,
            to: to.parse()?,
            count: 1,
            timeout_ms,
            gap_ms: 0,
            keep: None,
        };
        Ok(worker.dial(&dial)?.remove(0))
    }

    fn reaches(&self, server: &str, proto: Proto, from: &str, to: &str) -> Result<()> {
        let way = format!("{proto} {from} → {to}");
        let answer = self.dial(proto, from, to, PATIENCE_MS)?.answer(&way)?;
        let addresses = (answer.local, answer.peer);
        assert_eq!((answer.server.as_str(), addresses), (server, (to.parse()?, to.parse()?)), "{way}");
        assert_eq!(answer.saw.ip(), from.parse::<IpAddr>()?, "{way}");
        Ok(())
    }
}

#[test]
fn packets_that_nobody_touches_arrive_unchanged() -> Result<()> {
    let world = world()?;
    for proto in [Proto::Tcp, Proto::Udp, Proto::Sctp] {
        world.reaches("sink", proto, POD, "198.51.100.10:80")?;
        world.reaches("sink", proto, "fd00:10::2", "[2001:db8:99::1]:80")?;
        world.reaches("sink", proto, "203.0.113.2", "198.51.100.10:80")?;
        world.reaches("sink", proto, "2001:db8:ffff::1", "[fd00:96::41]:80")?;
        world.reaches("node", proto, "203.0.113.2", "192.168.0.2:80")?;
        world.reaches("node", proto, "2001:db8:ffff::1", "[2001:db8::1]:80")?;
        world.reaches("pod", proto, POD, "10.180.0.1:80")?;
        world.reaches("pod", proto, "203.0.113.2", "10.180.0.1:80")?;
    }
    for (server, from, to) in
        [("sink", POD, "198.51.100.10:0"), ("node", "2001:db8:ffff::1", "[2001:db8::1]:0")]
    {
        world.reaches(server, Proto::Icmp, from, to)?;
    }
    Ok(())
}

#[test]
fn refusal_and_silence_are_told_apart() -> Result<()> {
    let world = world()?;
    for proto in PROTOS {
        for from in [POD, "203.0.113.2"] {
            for to in ["198.51.100.10:80", "198.51.100.20:80"] {
                let outcome = world.dial(proto, from, to, PATIENCE_MS)?;
                assert!(matches!(outcome, Outcome::Answered(_)), "{proto} {from} → {to}: {outcome}");
            }
        }
    }
    world.stage.node.nft(
        "table inet t {
            counter dropped {}
            chain f {
                type filter hook forward priority 0
                ip daddr 198.51.100.10 reject with icmpx type port-unreachable
                ip daddr 198.51.100.20 counter name dropped drop
            }
        }",
    )?;
    world.outside.arrivals()?;
    let dropped = || world.stage.node.output("nft", &["list", "counter", "inet", "t", "dropped"]);
    for proto in PROTOS {
        for from in [POD, "203.0.113.2"] {
            let refused = world.dial(proto, from, "198.51.100.10:80", PATIENCE_MS)?;
            assert_eq!(refused, Outcome::Refused, "{proto} {from}");
            let before = dropped()?;
            let silent = world.dial(proto, from, "198.51.100.20:80", SILENCE_MS)?;
            assert_eq!(silent, Outcome::TimedOut, "{proto} {from}");
            assert_ne!(dropped()?, before, "{proto} {from}: nothing was dropped");
        }
    }
    assert_eq!(world.outside.arrivals()?, []);
    Ok(())
}
