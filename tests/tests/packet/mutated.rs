//! Mutated packets through every program that sees packets: what is not understood goes on
//! byte for byte, what is translated keeps its checksums right or wrong as they were, and what
//! is dropped is counted.
//!
//! A few thousand packets by default; `SHUNT_FUZZ_SECONDS` goes on for longer, as
//! `cargo xtask fuzz` does.

mod oracle;

use std::{
    collections::BTreeMap,
    env,
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use etherparse::PacketBuilder;
use proxy_common::maps::{
    frontends::{ClientRule, Frontend, FrontendKey, Kind as FrontendKind, flags::MAGLEV},
    slots::SlotRange,
};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore as _},
    kernel::{KernelAddr, PinnedMaps},
};
use tests::mutate::{Rng, mutate};

use crate::{
    bench::{BACKEND_ID, BACKEND_PORT, NODE_PORT, Plan, SERVICE_PORT, plans, v4_of, v6_of},
    bpf::{self, Kind},
    frames::{ACK, FIN, Flow, SYN, checked, frame},
    uplink::{Node, on_a_node},
};
use oracle::Hook;

const VARIABLE: &str = "SHUNT_FUZZ_SECONDS";
const MUTATIONS: u64 = 15_000;
/// Mutations that start from the same connections.
const BATCH: u64 = 1_000;
/// A port of the balancer that is served by direct server return.
const DSR_PORT: u16 = 81;
/// Longer ones do not fit the buffer of a test run together with what programs add.
const MAX_LEN: usize = 2_000;

/// A frontend whose backend is elsewhere for packets that arrive plain, and here for those that
/// arrive encapsulated.
fn serve_directly<A: KernelAddr>(
    maps: &mut impl FamilyMaps<A>,
    plan: &Plan,
    addr: fn(IpAddr) -> A,
) -> Result<()> {
    for (id, proto) in (BACKEND_ID..).zip([6, 17]) {
        let key = FrontendKey { addr: addr(plan.balancer), port: DSR_PORT, proto, pad: 0 };
        let one = SlotRange { offset: id, len: 1 };
        let rule = ClientRule(ClientRule::DSR);
        let row = Frontend {
            service: 2,
            rules: ClientRule::pack(ClientRule(0), rule, rule),
            cluster: one,
            local: one,
            kind: FrontendKind::LOAD_BALANCER.0,
            flags: MAGLEV,
            ..Frontend::default()
        };
        maps.put_frontends(&[(key, row)])?;
    }
    Ok(())
}

/// The packets that mutations start from: of open connections, in all directions, and others.
fn seeds(node: &Node, plan: &Plan) -> Result<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    let backend = (plan.backend, BACKEND_PORT);
    for new in [Flow::tcp, Flow::udp, Flow::sctp] {
        let (outside, pod) = ((plan.outside, 40000), (plan.pod, 40000));
        for (from, to) in [
            (outside, (plan.node, NODE_PORT)),
            (outside, (plan.balancer, SERVICE_PORT)),
            (outside, (plan.balancer, DSR_PORT)),
            (pod, (plan.cluster_ip, SERVICE_PORT)),
            (pod, (plan.empty_ip, SERVICE_PORT)),
            (pod, (plan.cluster_ip, 443)),
            (pod, (plan.unallocated, SERVICE_PORT)),
            (pod, (plan.stranger, SERVICE_PORT)),
        ] {
            let flow = new(from, to);
            let first = frame(flow, SYN);
            let run = node.tc(&first)?;
            if run.verdict == Kind::Tc.pass() {
                let sent = checked(&run.packet);
                frames.push(frame(sent.reversed(), SYN | ACK));
                // What the egress program meets on the way back.
                frames.push(frame(new(backend, flow.src), ACK));
            }
            frames.extend([first, frame(flow, ACK), frame(flow, FIN | ACK)]);
        }
    }
    frames.push(echo(plan)?);
    Ok(frames)
}

fn echo(plan: &Plan) -> Result<Vec<u8>> {
    let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let mut bytes = Vec::new();
    match (plan.pod, plan.cluster_ip) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            ethernet
                .ipv4(src.octets(), dst.octets(), 9)
                .icmpv4_echo_request(7, 1)
                .write(&mut bytes, b"ping")?;
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            ethernet
                .ipv6(src.octets(), dst.octets(), 9)
                .icmpv6_echo_request(7, 1)
                .write(&mut bytes, b"ping")?;
        }
        _ => anyhow::bail!("one family"),
    }
    Ok(bytes)
}

/// The link-layer header for whatever the mutation made, with tags now and then.
fn framed(rng: &mut Rng, packet: &[u8], hook: Hook) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    if hook == Hook::Xdp && rng.once_in(8) {
        for _ in 0..=rng.below(2) {
            frame.extend([0x81, 0, 0, 5]);
        }
    }
    let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
    frame.extend(if is_v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
    frame.extend(packet);
    frame
}

/// A test run refuses a socket buffer that ends within its IP header.
fn is_taken(hook: Hook, frame: &[u8]) -> bool {
    let least = if frame[12..14] == [0x86, 0xdd] { 14 + 40 } else { 14 + 20 };
    hook == Hook::Xdp || frame.len() >= least
}

#[test]
fn mutated_packets() -> Result<()> {
    let seconds: Option<u64> = env::var(VARIABLE).ok().map(|text| text.parse()).transpose()?;
    let deadline = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    on_a_node(|node| {
        let [v4, v6] = plans();
        serve_directly(node.bench.maps.v4(), &v4, v4_of)?;
        serve_directly(node.bench.maps.v6(), &v6, v6_of)?;
        let counters = PinnedMaps::open(node.bench.pins.clone())?;
        let mut outcomes = BTreeMap::new();
        let mut number = 0;
        while deadline.map_or(number < MUTATIONS, |deadline| Instant::now() < deadline) {
            // Mutations end connections and crowd them out.
            forget(node.bench.maps.v4())?;
            forget(node.bench.maps.v6())?;
            let seeds = [seeds(node, &v4)?, seeds(node, &v6)?].concat();
            for _ in 0..BATCH {
                mutation(node, &counters, &seeds, number, &mut outcomes)?;
                number += 1;
            }
        }
        println!("{number} mutations");
        for ((hook, outcome), count) in &outcomes {
            println!("{:10} {outcome:24} {count:>9}", format!("{hook:?}"));
        }
        // A run that reaches next to nothing proves next to nothing.
        let changed = outcomes.iter().filter(|((_, outcome), _)| *outcome != oracle::UNTOUCHED);
        ensure!(changed.map(|(_, count)| count).sum::<u64>() > number / 8, "mutations are not understood");
        Ok(())
    })
}

fn forget<A: KernelAddr>(maps: &mut impl FamilyMaps<A>) -> Result<()> {
    let mut keys = Vec::new();
    maps.each_conntrack(&mut |key, _| keys.push(*key))?;
    Ok(maps.delete_conntrack(&keys)?)
}

/// One mutation of one of the seeds, at every hook.
fn mutation(
    node: &Node,
    counters: &PinnedMaps,
    seeds: &[Vec<u8>],
    number: u64,
    outcomes: &mut BTreeMap<(Hook, &'static str), u64>,
) -> Result<()> {
    const ETHERNET: usize = 14;
    let mut rng = Rng::new(number);
    let (seed, other) = (&seeds[rng.below(seeds.len())], &seeds[rng.below(seeds.len())]);
    let packet = mutate(&mut rng, &seed[ETHERNET..], &other[ETHERNET..]);
    for hook in Hook::ALL {
        let frame = framed(&mut rng, &packet, hook);
        if frame.len() <= MAX_LEN && is_taken(hook, &frame) {
            let outcome = one(node, counters, hook, &frame)
                .with_context(|| format!("mutation {number} at {hook:?}: {frame:02x?}"))?;
            *outcomes.entry((hook, outcome)).or_default() += 1;
        }
    }
    Ok(())
}

fn one(node: &Node, counters: &PinnedMaps, hook: Hook, frame: &[u8]) -> Result<&'static str> {
    let count = || anyhow::Ok(counters.drops()?.iter().map(|(_, count)| count).sum::<u64>());
    let before = count()?;
    let run: bpf::Run = node.run(hook.program(), hook.kind(), frame)?;
    let counted = count()? - before;
    oracle::judge(hook, frame, &run, counted)
}
