//! Which devices XDP is for: the node edges, and under VLAN devices the device whose driver
//! gets their frames.

use std::collections::BTreeMap;

use super::{DevicePolicy, Edge, EdgeKind, Host, Link, LinkKind, Override};

/// What XDP is to do for the node edges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XdpPlan {
    /// Devices that are to carry the program.
    pub targets: Vec<XdpTarget>,
    /// Node edges that are not.
    pub others: Vec<Elsewhere>,
}

/// A device that is to carry the XDP program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpTarget {
    /// Interface index.
    pub ifindex: u32,
    /// Interface name.
    pub name: String,
    /// A virtual cable: what comes in was never on a wire.
    pub cable: bool,
    /// Most drivers have a limit for it.
    pub mtu: u32,
    /// Names of the devices whose drivers have to leave VLAN tags where they are: itself, or
    /// the ports of a bond, if there are VLAN devices on it.
    pub tagged: Vec<String>,
}

/// A node edge that does not carry the program itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Interface index.
    pub ifindex: u32,
    /// Interface name.
    pub name: String,
    /// What serves it instead.
    pub served: Served,
}

/// What serves a node edge that does not carry the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// The program on this device, under it.
    By(u32),
    /// Nothing, for this reason.
    Not(String),
}

impl XdpPlan {
    /// Whether this device is to carry the program.
    pub fn carries(&self, ifindex: u32) -> bool {
        self.targets.iter().any(|target| target.ifindex == ifindex)
    }
}

impl Host {
    /// What XDP is to do for the node edges among `edges`.
    pub fn xdp_plan(&self, edges: &[Edge], policy: &impl DevicePolicy) -> XdpPlan {
        let mut targets = BTreeMap::new();
        let mut others = Vec::new();
        let nodes = edges.iter().filter(|edge| edge.kind == EdgeKind::Node);
        for link in nodes.filter_map(|edge| self.links.get(&edge.target.ifindex)) {
            let served = match self.xdp_carrier(link, policy) {
                Ok(carrier) => {
                    targets.entry(carrier.ifindex).or_insert_with(|| self.target(carrier));
                    Served::By(carrier.ifindex)
                }
                Err(reason) => Served::Not(reason),
            };
            if served != Served::By(link.ifindex) {
                others.push(Elsewhere { ifindex: link.ifindex, name: link.name.clone(), served });
            }
        }
        XdpPlan { targets: targets.into_values().collect(), others }
    }

    /// The device whose driver sees the frames of a node edge first, or why there is none.
    fn xdp_carrier<'a>(&'a self, link: &'a Link, policy: &impl DevicePolicy) -> Result<&'a Link, String> {
        if !link.ethernet {
            return Err("its packets have no Ethernet header".into());
        }
        let Some(vlan) = link.vlan else { return self.unless_enslaved(link) };
        if !vlan.dot1q {
            return Err("its tags are not those of 802.1Q".into());
        }
        let below = vlan.parent.and_then(|parent| self.links.get(&parent));
        let below = below.ok_or("the device under it is in another network namespace")?;
        if below.vlan.is_some() {
            return Err(format!("it is a VLAN inside a VLAN, {}; only one tag is read", below.name));
        }
        if policy.override_for(&below.name) == Some(Override::Ignore) {
            return Err(format!("{} under it is to be ignored", below.name));
        }
        self.unless_enslaved(below)
    }

    /// The kernel runs the program of a bond for each of its ports.
    fn unless_enslaved<'a>(&'a self, link: &'a Link) -> Result<&'a Link, String> {
        let master = link.master.and_then(|master| self.links.get(&master));
        match master.filter(|master| master.kind == LinkKind::Bond) {
            Some(bond) => Err(format!("{} is a port of {}, which carries the program", link.name, bond.name)),
            None => Ok(link),
        }
    }

    fn target(&self, link: &Link) -> XdpTarget {
        let has_vlans = self.links.values().any(|l| l.vlan.is_some_and(|v| v.parent == Some(link.ifindex)));
        let receives = |l: &&Link| match link.kind {
            LinkKind::Bond => l.master == Some(link.ifindex),
            _ => l.ifindex == link.ifindex,
        };
        let names = self.links.values().filter(receives).map(|l| l.name.clone());
        XdpTarget {
            ifindex: link.ifindex,
            name: link.name.clone(),
            cable: matches!(link.kind, LinkKind::Cable { .. }),
            mtu: link.mtu,
            tagged: if has_vlans { names.collect() } else { Vec::new() },
        }
    }
}
