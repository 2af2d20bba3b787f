//! The cluster tier: an agent fed by a real API server, on a node of the stage. Needs
//! root and the binaries of a control plane; `cargo xtask test cluster` brings both.

mod benchmark;
mod dead;
mod deploy;
mod migrate;
mod objects;
mod rights;
mod slow;
mod world;

use anyhow::Result;
use k8s_openapi::jiff::Timestamp;
use objects::Kind;
use tests::{
    agent::{Agent, SocketLb},
    probe::Proto,
};
use world::{FIRST, SECOND, VIP, VIP6, World};

const CLIENT: &str = "10.0.0.2";
const CLIENT6: &str = "fd00:10::2";
const OUTSIDE: &str = "203.0.113.2";
const NODE_PORT: &str = "192.168.0.2:30080";

#[test]
fn services_of_the_api_server_take_traffic() -> Result<()> {
    let mut world = World::build(SocketLb::Off)?;
    world.put(&[objects::service(), objects::slice(&[FIRST]), objects::slice6()])?;
    world.start_agent()?;
    world.soon_reaches("first", Proto::Tcp, CLIENT, VIP)?;
    for proto in [Proto::Tcp, Proto::Udp] {
        world.reaches("first", proto, CLIENT, VIP)?;
        world.reaches("first", proto, CLIENT6, VIP6)?;
        world.reaches("first", proto, OUTSIDE, NODE_PORT)?;
    }
    world.put(&[objects::slice(&[SECOND])])?;
    world.soon_reaches("second", Proto::Tcp, CLIENT, VIP)?;
    world.put(&[objects::slice(&[])])?;
    world.soon_refuses(Proto::Tcp, CLIENT, VIP)?;
    world.delete(Kind::Service, objects::NAME)?;
    world.soon_dropped("unallocated-address", Proto::Tcp, CLIENT, VIP)
}

#[test]
fn sockets_are_translated_too() -> Result<()> {
    let mut world = World::build(SocketLb::All)?;
    world.put(&[objects::service(), objects::slice(&[FIRST]), objects::slice6()])?;
    world.start_agent()?;
    world.soon_reaches("first", Proto::Tcp, CLIENT, VIP)?;
    for proto in [Proto::Tcp, Proto::Udp] {
        world.reaches("first", proto, CLIENT, VIP)?;
        world.reaches("first", proto, CLIENT6, VIP6)?;
    }
    world.put(&[objects::slice(&[SECOND])])?;
    world.soon_reaches("second", Proto::Tcp, CLIENT, VIP)
}

#[test]
fn an_outage_of_the_api_server_changes_nothing() -> Result<()> {
    let mut world = World::build(SocketLb::Off)?;
    world.put(&[objects::service(), objects::slice(&[FIRST])])?;
    world.start_agent()?;
    world.soon_reaches("first", Proto::Tcp, CLIENT, VIP)?;
    world.stop_api_server();
    world.always_reaches("first", CLIENT, VIP)?;
    // An agent that finds no API server must not take that for an empty cluster.
    world.restart_agent()?;
    world.always_reaches("first", CLIENT, VIP)?;
    world.start_api_server()?;
    world.put(&[objects::slice(&[SECOND])])?;
    world.soon_reaches("second", Proto::Tcp, CLIENT, VIP)
}

#[test]
fn a_restart_writes_nothing_before_all_lists_are_complete() -> Result<()> {
    let mut world = World::build(SocketLb::Off)?;
    world.put(&[objects::service(), objects::slice(&[FIRST])])?;
    world.start_agent()?;
    world.soon_reaches("first", Proto::Tcp, CLIENT, VIP)?;
    world.stop_agent()?;
    world.always_reaches("first", CLIENT, VIP)?;
    world.put(&[objects::slice(&[SECOND])])?;
    world.start_agent()?;
    // First the old backend, then the new one; in between there is always one.
    world.never_unanswered_until("second", CLIENT, VIP)
}

#[test]
fn a_useless_object_does_not_disturb_the_rest() -> Result<()> {
    let mut world = World::build(SocketLb::Off)?;
    world.put(&objects::useless())?;
    world.put(&[objects::service(), objects::slice(&[FIRST])])?;
    world.start_agent()?;
    world.soon_reaches("first", Proto::Tcp, CLIENT, VIP)?;
    world.put(&[objects::slice(&[SECOND])])?;
    world.soon_reaches("second", Proto::Tcp, CLIENT, VIP)
}

/// Nobody reads conditions of a Service here, and the API server takes such a time.
#[test]
fn a_service_with_a_time_of_null_is_followed() -> Result<()> {
    const MORE: &str = "172.30.0.41:81";
    let mut world = World::build(SocketLb::Off)?;
    world.put(&[objects::service(), objects::slice(&[FIRST])])?;
    world.start_agent()?;
    world.soon_reaches("first", Proto::Tcp, CLIENT, VIP)?;
    world.put_condition_without_time()?;
    world.put(&[objects::service_with_port(81), objects::slice_with_port(&[FIRST], "more")])?;
    world.soon_reaches("first", Proto::Tcp, CLIENT, MORE)?;
    world.restart_agent()?;
    world.wait_in_sync()?;
    world.reaches("first", Proto::Tcp, CLIENT, MORE)?;
    for wrong in ["shunt_watch_errors_total", "shunt_rejected_objects_total"] {
        world.soon_shows(&format!("{wrong}{{kind=\"Service\"}} 0"))?;
    }
    world.soon_shows("shunt_watch_up{kind=\"Service\"} 1")
}

#[test]
fn the_time_from_a_change_of_a_pod_to_the_maps_is_measured() -> Result<()> {
    let count =
        |count| format!("kubeproxy_network_programming_duration_seconds_count{{ip_family=\"IPv4\"}} {count}");
    let mut world = World::build(SocketLb::Off)?;
    // What happened before the agent started says nothing about it.
    world.put(&[objects::service(), objects::slice_triggered(&[FIRST], "2020-01-01T00:00:00.5Z")])?;
    world.start_agent()?;
    world.soon_reaches("first", Proto::Tcp, CLIENT, VIP)?;
    world.soon_shows(&count(0))?;
    world.put(&[objects::slice_triggered(&[SECOND], &Timestamp::now().to_string())])?;
    world.soon_reaches("second", Proto::Tcp, CLIENT, VIP)?;
    world.soon_shows(&count(1))?;
    world.soon_shows("shunt_watch_up{kind=\"EndpointSlice\"} 1")?;
    world.stop_api_server();
    world.soon_shows("shunt_watch_up{kind=\"EndpointSlice\"} 0")
}

#[test]
fn source_ports_that_run_out_are_told_about_the_node() -> Result<()> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["snatPortRange"] = "1024-1027".into();
    let mut world = World::configured(&shunt)?;
    world.put(&[objects::service(), objects::slice(&[FIRST])])?;
    world.start_agent()?;
    world.wait_in_sync()?;
    world.stay_open(4, OUTSIDE, NODE_PORT)?;
    world.soon_dropped("snat-ports-exhausted", Proto::Tcp, OUTSIDE, NODE_PORT)?;
    let told = world.soon_tells((Kind::Node, objects::NODE), "SnatPortsAlmostExhausted")?;
    assert!(told.starts_with("4 of 4 source ports of "), "{told}");
    assert!(told.contains(&format!("towards {FIRST}:8080/TCP")), "{told}");
    world.soon_dropped("snat-ports-exhausted", Proto::Tcp, OUTSIDE, NODE_PORT)?;
    let told = world.soon_tells((Kind::Node, objects::NODE), "SnatPortsExhausted")?;
    assert!(told.contains("because no source port was left"), "{told}");
    Ok(())
}

#[test]
fn the_taint_goes_when_services_work() -> Result<()> {
    const OURS: &str = "shunt.dev/agent-not-ready:NoSchedule";
    const OTHERS: &str = "shunt.dev/agent-not-ready:NoExecute";
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["nodeTaint"] = OURS.into();
    let mut world = World::configured(&shunt)?;
    world.put(&[objects::node_with_taints(&[OURS, OTHERS]), objects::service(), objects::slice(&[FIRST])])?;
    assert_eq!(world.taints()?, [OURS, OTHERS]);
    world.start_agent()?;
    world.soon_has_taints(&[OTHERS])?;
    // Not before long, but now: pods may have come.
    world.reaches("first", Proto::Tcp, CLIENT, VIP)?;
    world.reaches("first", Proto::Tcp, OUTSIDE, NODE_PORT)?;
    // A node that registers anew has it again.
    world.put(&[objects::node_with_taints(&[OTHERS, OURS])])?;
    world.soon_has_taints(&[OTHERS])
}

#[test]
fn a_service_without_room_has_an_event_and_keeps_no_taint() -> Result<()> {
    const OURS: &str = "shunt.dev/agent-not-ready:NoSchedule";
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["nodeTaint"] = OURS.into();
    shunt["maps"]["frontends"] = 16.into();
    let mut world = World::configured(&shunt)?;
    let too_large = objects::service_of_ports("too-large", "172.30.0.99", 140);
    world.put(&[
        objects::node_with_taints(&[OURS]),
        objects::service(),
        objects::slice(&[FIRST]),
        too_large,
    ])?;
    world.start_agent()?;
    world.soon_has_taints(&[])?;
    world.reaches("first", Proto::Tcp, CLIENT, VIP)?;
    let told = world.soon_tells((Kind::Service, "too-large"), "NoRoom")?;
    assert!(told.contains("map frontends: the Service needs 141 rows"), "{told}");
    Ok(())
}
