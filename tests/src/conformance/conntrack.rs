//! `conntrack.before`, told from the client's side: real flows make the entries, and
//! where the next packet of each flow goes shows which of them are left.
//!
//! An entry's target is made the only ready endpoint while its flow begins. Targets of
//! earlier entries are draining meanwhile, so that their entries are kept.

use super::{
    case::{Backends, Case, Conntrack, Decided, Entry, Expect, Fate, Flow, Snat, Via, both_profiles},
    flow::{self, Memory},
    objects::{Objects, slice_ports},
    scene::{Scene, proto_named},
};
use crate::probe::Proto;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};

/// Source port of the first entry's client.
const FIRST_PORT: u16 = 20_000;
/// Where the clients are.
const POD: &str = "10.0.0.2";
const OUTSIDE: &str = "203.0.113.2";
/// Addresses of services; pods are their clients, others have clients outside.
const SERVICES: [u8; 2] = [172, 30];

/// The flows that stand for the entries, so that the scene has clients for them.
pub(super) fn flows(case: &Case) -> Result<Vec<Flow>> {
    let entries = case.conntrack.iter().flat_map(|conntrack| &conntrack.before).enumerate();
    let ours = entries.filter(|(_, entry)| is_served(entry, case));
    ours.map(|(number, entry)| flow(entry, FIRST_PORT + number as u16)).collect()
}

/// Makes the entries, writes the case's objects, and looks which entries are left.
pub(super) fn check(scene: &mut Scene, case: &Case, conntrack: &Conntrack, flows: &[Flow]) -> Result<()> {
    let after: Vec<_> = flows.iter().map(|flow| follow_up(flow, case, conntrack)).collect::<Result<_>>()?;
    let mut memory = Memory::new(after.iter());
    scene.agent.write(&Objects::new(&[], &case.node).all())?;
    scene.agent.wait_in_sync()?;
    for flow in flows.iter().filter(|flow| matches!(flow.expect, Expect::Verdict(_))) {
        flow::check(scene, flow, &mut memory).context("before anything is served")?;
    }
    let mut targets: Vec<SocketAddr> = flows.iter().filter_map(target).collect();
    targets.sort();
    targets.dedup();
    for (number, now) in targets.iter().enumerate() {
        let objects: Vec<_> =
            case.objects.iter().map(|object| only(object, *now, &targets[..number])).collect();
        scene.agent.write(&Objects::new(&objects, &case.node).all())?;
        scene.agent.wait_in_sync()?;
        for flow in flows.iter().filter(|flow| target(flow) == Some(*now)) {
            flow::check(scene, flow, &mut memory)
                .with_context(|| format!("while {now} is the only endpoint"))?;
        }
    }
    scene.agent.write(&Objects::new(&case.objects, &case.node).all())?;
    scene.agent.wait_in_sync()?;
    for flow in &after {
        let id = flow.id.as_ref().or(flow.established.as_ref());
        flow::check(scene, flow, &mut memory)
            .with_context(|| format!("entry {}", id.map_or("?", |id| id)))?;
    }
    Ok(())
}

/// Entries for ports no service has are made by others, and never ours.
fn is_served(entry: &Entry, case: &Case) -> bool {
    let services = case.objects.iter().filter(|object| object["kind"] == "Service");
    let mut ports = services.flat_map(|service| service["spec"]["ports"].as_array().into_iter().flatten());
    ports.any(|port| {
        let number = json!(entry.orig_dst.port());
        let same_proto = port["protocol"].as_str().and_then(proto_named) == Some(entry.proto);
        same_proto && (port["port"] == number || port["nodePort"] == number)
    })
}

fn flow(entry: &Entry, source_port: u16) -> Result<Flow> {
    let of_pod = matches!(entry.orig_dst.ip(), IpAddr::V4(address) if address.octets()[..2] == SERVICES);
    let (from, via) = if of_pod { (POD, Via::Pod) } else { (OUTSIDE, Via::External) };
    let expect = if entry.reply_src == entry.orig_dst {
        Expect::Verdict(Decided { verdict: Fate::Pass })
    } else {
        reaches(vec![entry.reply_src], of_pod)
    };
    Ok(Flow {
        from: from.parse()?,
        via,
        proto: entry.proto,
        to: entry.orig_dst,
        iface: None,
        id: Some(entry.id.clone()),
        repeat: None,
        clients: None,
        gap_seconds: None,
        established: None,
        source_port: Some(source_port),
        profile: both_profiles(),
        expect,
    })
}

fn reaches(backends: Vec<SocketAddr>, of_pod: bool) -> Expect {
    let snat = if of_pod { Snat::No } else { Snat::Yes };
    Expect::Backends(Backends {
        backends,
        snat,
        distribution: None,
        sticky: false,
        spread: false,
        same_as: None,
    })
}

/// The next packet of a flow: to its target if the entry is kept, else to a current endpoint.
fn follow_up(flow: &Flow, case: &Case, conntrack: &Conntrack) -> Result<Flow> {
    let id = flow.id.as_ref().context("entries have an id")?;
    let mut next = flow.clone();
    if conntrack.deleted.contains(id) {
        next.expect = reaches(current(case, flow.proto), flow.via == Via::Pod);
    }
    // Whoever begins anew by the same port may be sent elsewhere.
    if matches!(flow.proto, Proto::Tcp | Proto::Sctp) {
        next.established = next.id.take();
    }
    Ok(next)
}

fn target(flow: &Flow) -> Option<SocketAddr> {
    match &flow.expect {
        Expect::Backends(expect) => expect.backends.first().copied(),
        _ => None,
    }
}

/// Ready endpoints of all slices.
fn current(case: &Case, proto: Proto) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for slice in &case.objects {
        let ready = slice["endpoints"].as_array().into_iter().flatten();
        let ready = ready.filter(|endpoint| endpoint["conditions"]["ready"] != json!(false));
        let addresses = ready.flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten());
        for address in addresses.filter_map(|address| address.as_str()?.parse::<IpAddr>().ok()) {
            let ports = slice_ports(slice).filter(|(name, _)| proto_named(name) == Some(proto));
            found.extend(ports.map(|(_, port)| SocketAddr::new(address, port)));
        }
    }
    found
}

/// The object with `now` as the only ready endpoint, if it is a slice.
fn only(object: &Value, now: SocketAddr, draining: &[SocketAddr]) -> Value {
    let mut object = object.clone();
    if object["kind"] == "EndpointSlice" {
        let drains = json!({"ready": false, "serving": true, "terminating": true});
        let endpoint = |target: &SocketAddr, conditions: &Value| json!({"addresses": [target.ip()], "nodeName": "node2", "conditions": conditions});
        let mut endpoints = vec![endpoint(&now, &json!({"ready": true}))];
        endpoints.extend(draining.iter().map(|target| endpoint(target, &drains)));
        object["endpoints"] = Value::Array(endpoints);
    }
    object
}
