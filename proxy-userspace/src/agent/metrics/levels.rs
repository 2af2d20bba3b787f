//! Levels as metrics: how full maps and port ranges were when last looked at, and what became
//! of XDP on the devices.

use std::{fmt::Error, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder},
    metrics::{MetricType, gauge::ConstGauge},
};

use super::AgentMetrics;
use crate::{
    dataplane::{MapFill, SnatPorts},
    kernel::XdpStatus,
};

/// Shows the levels of the agent.
#[derive(Debug)]
pub(super) struct Levels(pub(super) Arc<AgentMetrics>);

impl Collector for Levels {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let pressure = self.0.pressure();
        let maps =
            |value: fn(&MapFill) -> usize| pressure.maps.iter().map(move |f| (map_labels(f), value(f)));
        gauge(&mut encoder, "map_rows", "Rows in use, by map", maps(|fill| fill.rows))?;
        gauge(&mut encoder, "map_capacity", "Rows there is room for, by map", maps(|fill| fill.capacity))?;
        let ports = |value: fn(&SnatPorts) -> usize| {
            pressure.snat.iter().map(move |ports| (snat_labels(ports), value(ports)))
        };
        let help = "Source ports of masqueraded connections in use behind a node address";
        gauge(&mut encoder, "snat_ports_in_use", help, ports(|p| p.in_use))?;
        let help = "Of these, ports towards the backend with most; it can have snat_ports_capacity";
        gauge(&mut encoder, "snat_ports_fullest_backend", help, ports(|p| p.fullest))?;
        let help = "Source ports there are behind a node address towards one backend";
        gauge(&mut encoder, "snat_ports_capacity", help, ports(|p| p.capacity))?;
        let help = "Lookup tables (Maglev) that are smaller than they should be, for want of slots";
        let reduced: [(&str, &str); 0] = [];
        gauge(&mut encoder, "reduced_tables", help, [(reduced, pressure.reduced_tables)].into_iter())?;
        let xdp = self.0.xdp();
        let help = "1 for the mode in force on a node edge, and the reason where it is not native";
        gauge(&mut encoder, "xdp_mode", help, xdp.iter().map(|status| (xdp_labels(status), 1)))
    }
}

fn map_labels(fill: &MapFill) -> [(&'static str, &'static str); 2] {
    [("map", fill.map.name()), ("ip_family", fill.family.map_or("", |family| family.name()))]
}

fn snat_labels(ports: &SnatPorts) -> [(&'static str, String); 2] {
    [("address", ports.address.to_string()), ("protocol", ports.protocol().to_owned())]
}

fn xdp_labels(status: &XdpStatus) -> [(&'static str, &str); 4] {
    [
        ("interface", &status.interface),
        ("configured", status.configured.name()),
        ("mode", status.mode.name()),
        ("reason", &status.reason),
    ]
}

/// A gauge with a value for each set of labels.
fn gauge<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (L, usize)>,
) -> Result<(), Error> {
    let mut family: MetricEncoder<'_> = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        ConstGauge::new(value as i64).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
