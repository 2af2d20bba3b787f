//! `shunt device list`: which devices carry programs, how, and why.

use std::{collections::HashMap, net::IpAddr, path::Path};

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use proxy_common::{
    addr::{Ip4, Ip6},
    maps::devices::Device,
};
use serde::Serialize;

use super::{
    ListArgs, Listed, Stored,
    column::{Column, Shown, Value},
};
use crate::kernel::{self, DevicePrograms, EdgeKind, Host, Netlink, PinnedMaps, Pins, XdpPolicy};

/// `shunt device`
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Show the devices of this node that carry our programs, and how these are attached.
    ///
    /// KIND is what the agent took the device for: the node's link to the outside, a pod's, an overlay's,
    /// or loopback. TC is tcx or clsact, for ingress/egress where they differ. REASON says why XDP is not
    /// what was asked for. OTHERS are programs that are not ours.
    #[command(after_help = EXAMPLES)]
    List(ListArgs<DeviceView>),
}

const EXAMPLES: &str = "Examples:
  shunt device list
  shunt device list --kind node -o wide
  shunt device list -o json | jq '.[] | select(.xdp.mode == \"none\") | {interface, xdp}'";

/// Which devices.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Filters")]
pub struct DeviceFilter {
    /// Only the device of this name.
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Only devices of this kind.
    #[arg(long)]
    pub kind: Option<DeviceKind>,
}

/// What a device is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the names say it")]
pub enum DeviceKind {
    Node,
    Pod,
    Tunnel,
    Loopback,
}

impl DeviceKind {
    fn edge(self) -> EdgeKind {
        match self {
            DeviceKind::Node => EdgeKind::Node,
            DeviceKind::Pod => EdgeKind::Pod,
            DeviceKind::Tunnel => EdgeKind::Tunnel,
            DeviceKind::Loopback => EdgeKind::Loopback,
        }
    }
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceView {
    /// Its name.
    pub interface: String,
    /// Its index.
    pub index: u32,
    /// What the agent took it for; none if it only has a note about XDP, or no agent noted it.
    pub kind: Option<&'static str>,
    /// How the tc programs are attached.
    pub tc: TcView,
    /// The program for drivers.
    pub xdp: XdpView,
    /// Addresses of the device.
    pub addresses: Vec<IpAddr>,
    /// The sources of masqueraded packets that leave here, as far as there are any.
    pub masquerade: Vec<IpAddr>,
    /// Programs of others, with their hook.
    pub others: Vec<String>,
}

/// How the tc programs are attached: `tcx`, `clsact` or `none`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct TcView {
    pub ingress: &'static str,
    pub egress: &'static str,
}

/// The program for drivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct XdpView {
    /// What the agent was asked for.
    pub configured: &'static str,
    /// What the kernel has.
    pub mode: &'static str,
    /// Why, as the agent noted it.
    pub reason: String,
}

impl Listed for DeviceView {
    type Filter = DeviceFilter;

    const COLUMNS: &'static [Column<Self>] = &[
        Column { name: "DEVICE", shown: Shown::Always, value: |v| v.interface.as_str().into() },
        Column { name: "KIND", shown: Shown::Always, value: |v| v.kind.unwrap_or_default().into() },
        Column { name: "TC", shown: Shown::Always, value: tc },
        Column { name: "XDP", shown: Shown::Always, value: |v| v.xdp.mode.into() },
        Column { name: "REASON", shown: Shown::Always, value: |v| v.xdp.reason.as_str().into() },
        Column { name: "ADDRESSES", shown: Shown::Always, value: |v| addresses(&v.addresses) },
        Column { name: "INDEX", shown: Shown::Wide, value: |v| u64::from(v.index).into() },
        Column { name: "XDP-ASKED", shown: Shown::Wide, value: |v| v.xdp.configured.into() },
        Column { name: "MASQUERADE", shown: Shown::Wide, value: |v| addresses(&v.masquerade) },
        Column { name: "OTHERS", shown: Shown::Wide, value: |v| lines(v.others.clone()) },
    ];

    fn is_wanted(&self, filter: &DeviceFilter) -> bool {
        filter.interface.as_ref().is_none_or(|name| *name == self.interface)
            && filter.kind.is_none_or(|kind| self.kind == Some(kind.edge().name()))
    }
}

impl Stored for DeviceView {
    fn read(bpffs: &Path, _filter: &DeviceFilter) -> Result<Vec<Self>> {
        let pins = Pins::new(bpffs);
        let noted: HashMap<u32, Device> = PinnedMaps::open(pins.clone())?.devices()?.into_iter().collect();
        let (host, programs) = crate::cli::runtime()?.block_on(async {
            let netlink = Netlink::connect()?;
            let host = netlink.host().await?;
            Ok::<_, anyhow::Error>((host, kernel::device_programs(pins, &netlink).await?))
        })?;
        Ok(programs
            .into_iter()
            .filter(DevicePrograms::is_ours)
            .filter_map(|device| view(device, &host, &noted))
            .collect())
    }
}

fn tc(view: &DeviceView) -> Value {
    let TcView { ingress, egress } = view.tc;
    if ingress == egress { ingress.into() } else { Value::text(format!("{ingress}/{egress}")) }
}

fn addresses(addresses: &[IpAddr]) -> Value {
    lines(addresses.iter().map(ToString::to_string).collect())
}

fn lines(lines: Vec<String>) -> Value {
    if lines.is_empty() { Value::None } else { Value::Lines(lines) }
}

/// Nothing if the device has gone meanwhile.
fn view(device: DevicePrograms, host: &Host, noted: &HashMap<u32, Device>) -> Option<DeviceView> {
    let index = host.links.values().find(|link| link.name == device.interface)?.ifindex;
    let row = noted.get(&index);
    let masquerade = row.into_iter().flat_map(|row| {
        let v4 = row.snat::<Ip4>().iter().copied().map(IpAddr::from);
        v4.chain(row.snat::<Ip6>().iter().copied().map(IpAddr::from))
    });
    let xdp = device.noted.as_ref();
    Some(DeviceView {
        index,
        kind: row.and_then(EdgeKind::noted).map(EdgeKind::name),
        tc: TcView { ingress: device.ingress.unwrap_or("none"), egress: device.egress.unwrap_or("none") },
        xdp: XdpView {
            configured: xdp.map_or(XdpPolicy::Off, |noted| noted.configured).name(),
            mode: device.xdp.name(),
            reason: xdp.map(|noted| noted.reason.clone()).unwrap_or_default(),
        },
        addresses: host.addresses.iter().filter(|(i, _)| *i == index).map(|(_, addr)| *addr).collect(),
        masquerade: masquerade.collect(),
        others: device.others,
        interface: device.interface,
    })
}
