//! Levels as metrics: how full maps and port ranges were when last looked at, and what became
//! of XDP on the devices.

use std::{fmt::Error, sync::Arc};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use proxy_common::addr::{Ip4, Ip6};

use super::AgentMetrics;
use crate::{
    dataplane::{MapFill, MapName, SnatPorts},
    kernel::{XdpMode, XdpStatus, conntrack_bytes},
    meter::Meter,
    model::Family,
};

const ROWS: Meter = Meter::gauge(
    "shunt_map_rows",
    &["map", "ip_family"],
    "Rows in use, by map; of affinity, those of clients whose time is not over",
);
const TRANSIENT: Meter = Meter::gauge(
    "shunt_map_transient_rows",
    &["map", "ip_family"],
    "Of these, rows of connections that make room for others: half-open ones, single datagrams, ended ones",
);
const CAPACITY: Meter =
    Meter::gauge("shunt_map_capacity", &["map", "ip_family"], "Rows there is room for, by map");
const MEMORY: Meter = Meter::gauge(
    "shunt_conntrack_memory_bytes",
    &["ip_family"],
    "Kernel memory that the entries of translated connections take, with their table and queues",
);
const MEMORY_LIMIT: Meter = Meter::gauge(
    "shunt_conntrack_memory_limit_bytes",
    &[],
    "Kernel memory to which these of both families may grow (maps.conntrackMemory)",
);
const PORTS: Meter = Meter::gauge(
    "shunt_snat_ports_in_use",
    &["address", "protocol"],
    "Source ports behind a node address that masqueraded connections hold, until they end",
);
const FULLEST: Meter = Meter::gauge(
    "shunt_snat_ports_fullest_backend",
    &["address", "protocol"],
    "Of these, ports towards the backend with most; it can have shunt_snat_ports_capacity",
);
const PORT_CAPACITY: Meter = Meter::gauge(
    "shunt_snat_ports_capacity",
    &["address", "protocol"],
    "Source ports there are behind a node address towards one backend",
);
const REDUCED: Meter = Meter::gauge(
    "shunt_reduced_tables",
    &[],
    "Lookup tables (Maglev) that are smaller than they should be, for want of slots",
);
const XDP: Meter = Meter::gauge(
    "shunt_xdp_mode",
    &["interface", "configured", "mode", "reason"],
    "1 for the mode in force on a node edge, and the reason where it is not native",
);

const ATTACHED: Meter = Meter::gauge(
    "shunt_program_attached",
    &["interface", "direction", "mode"],
    "1 for each program at a device: ingress and egress by tcx or clsact, xdp by native or generic",
);

/// The metrics of this module.
pub(super) const LEVELS: [Meter; 11] =
    [ROWS, TRANSIENT, CAPACITY, MEMORY, MEMORY_LIMIT, PORTS, FULLEST, PORT_CAPACITY, REDUCED, XDP, ATTACHED];

/// Shows the levels of the agent.
#[derive(Debug)]
pub(super) struct Levels(pub(super) Arc<AgentMetrics>);

impl Collector for Levels {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let pressure = self.0.pressure();
        let maps =
            |value: fn(&MapFill) -> usize| pressure.maps.iter().map(move |f| (map_labels(f), value(f)));
        ROWS.gauges(&mut encoder, maps(|fill| fill.rows))?;
        TRANSIENT.gauges(&mut encoder, maps(|fill| fill.transient))?;
        CAPACITY.gauges(&mut encoder, maps(|fill| fill.capacity))?;
        MEMORY.gauges(&mut encoder, pressure.maps.iter().filter_map(memory))?;
        MEMORY_LIMIT.gauges(&mut encoder, [(MEMORY_LIMIT.with::<&str, 0>([]), self.0.conntrack_limit)])?;
        let ports = |value: fn(&SnatPorts) -> usize| {
            pressure.snat.iter().map(move |ports| (snat_labels(ports), value(ports)))
        };
        PORTS.gauges(&mut encoder, ports(|p| p.in_use))?;
        FULLEST.gauges(&mut encoder, ports(|p| p.fullest))?;
        PORT_CAPACITY.gauges(&mut encoder, ports(|p| p.capacity))?;
        REDUCED.gauges(&mut encoder, [(REDUCED.with::<&str, 0>([]), pressure.reduced_tables)])?;
        let xdp = self.0.xdp();
        XDP.gauges(&mut encoder, xdp.iter().map(|status| (xdp_labels(status), 1)))?;
        let attached = self.0.attached();
        let at = |interface, direction, mode| (ATTACHED.with([interface, direction, mode]), 1);
        let tc = attached.iter().flat_map(|(interface, mode)| {
            ["ingress", "egress"].map(|direction| at(interface.as_str(), direction, *mode))
        });
        let drivers = xdp.iter().filter(|status| status.mode != XdpMode::None);
        let drivers = drivers.map(|status| at(&*status.interface, "xdp", status.mode.name()));
        ATTACHED.gauges(&mut encoder, tc.chain(drivers))
    }
}

fn map_labels(fill: &MapFill) -> [(&'static str, &'static str); 2] {
    ROWS.with([fill.map.name(), fill.family.map_or("", |family| family.name())])
}

/// Bytes of a family's connections, if this is their map.
fn memory(fill: &MapFill) -> Option<([(&'static str, &'static str); 1], u64)> {
    let family = fill.family.filter(|_| fill.map == MapName::Conntrack)?;
    let (capacity, rows) = (fill.capacity as u32, fill.rows as u64);
    let bytes = match family {
        Family::V4 => conntrack_bytes::<Ip4>(capacity, rows),
        Family::V6 => conntrack_bytes::<Ip6>(capacity, rows),
    };
    Some((MEMORY.with([family.name()]), bytes))
}

fn snat_labels(ports: &SnatPorts) -> [(&'static str, String); 2] {
    PORTS.with([ports.address.to_string(), ports.protocol().to_owned()])
}

fn xdp_labels(status: &XdpStatus) -> [(&'static str, &str); 4] {
    XDP.with([&*status.interface, status.configured.name(), status.mode.name(), &*status.reason])
}
