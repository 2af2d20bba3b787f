//! The part of the configuration that decides what is planned.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Family, LoadBalancer, Node, Timeouts};

/// What the operator configured, as far as rows depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How clients that are pods are told from others.
    pub detect_local: DetectLocal,
    /// `masqueradeAll`: masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// `nodePortAddresses`.
    pub node_port_addresses: NodePortAddresses,
    /// `bindAddress`: the node's primary address of its family, whatever the Node object says.
    pub primary: Option<IpAddr>,
    /// False if external IPs of services are not served.
    pub external_ips: bool,
    /// `socketLB`.
    pub socket_lb: SocketLb,
    /// `answerEcho`: cluster IPs answer ICMP echo.
    pub answer_echo: bool,
    /// `reserveNodePorts`: processes of the host cannot bind NodePorts.
    pub reserve_node_ports: bool,
    /// `looseTCP`: any packet to a frontend opens a connection, not only the first of one.
    pub loose_tcp: bool,
    /// `loadBalancer`.
    pub load_balancer: LoadBalancer,
    /// `masqueradeAddresses`: addresses of the host in these ranges take the place of the one that
    /// MASQUERADE would choose.
    pub masquerade_addresses: Box<[IpNet]>,
    /// First source port for masquerading. Below the range from which sockets and
    /// netfilter choose, so that neither meets the other.
    pub snat_port_first: u16,
    /// Last source port for masquerading.
    pub snat_port_last: u16,
    /// When connections are forgotten.
    pub timeouts: Timeouts,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            detect_local: DetectLocal::default(),
            masquerade_all: false,
            node_port_addresses: NodePortAddresses::default(),
            primary: None,
            external_ips: true,
            socket_lb: SocketLb::default(),
            answer_echo: true,
            reserve_node_ports: true,
            loose_tcp: false,
            load_balancer: LoadBalancer::default(),
            masquerade_addresses: Box::default(),
            snat_port_first: 1024,
            snat_port_last: 29_999,
            timeouts: Timeouts::default(),
        }
    }
}

/// `detectLocalMode` with what belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DetectLocal {
    /// Not at all: every client that is not the node itself counts as external.
    #[default]
    Off,
    /// `ClusterCIDR`: by the configured ranges, at most one per family.
    ClusterCidr(Box<[IpNet]>),
    /// `NodeCIDR`: by the pod ranges of this node.
    NodeCidr,
    /// `BridgeInterface`: by what comes in from this device.
    BridgeInterface(String),
    /// `InterfaceNamePrefix`: by what comes in from devices with this prefix.
    InterfaceNamePrefix(String),
}

impl DetectLocal {
    /// The range whose addresses are pods, for the modes that go by addresses.
    pub fn pod_cidr(&self, family: Family, node: Option<&Node>) -> Option<IpNet> {
        match self {
            DetectLocal::ClusterCidr(nets) => nets.iter().copied().find(|net| Family::of_net(net) == family),
            DetectLocal::NodeCidr => node?.pod_cidr(family),
            _ => None,
        }
    }

    /// True when pods are told by the device they come from.
    pub fn by_device(&self) -> bool {
        matches!(self, DetectLocal::BridgeInterface(_) | DetectLocal::InterfaceNamePrefix(_))
    }

    /// True when clients that are pods are known as such in this family.
    pub fn is_on(&self, family: Family, node: Option<&Node>) -> bool {
        self.by_device() || self.pod_cidr(family, node).is_some()
    }
}

/// `nodePortAddresses`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The Node object's first address of each family.
    #[default]
    Primary,
    /// Addresses of the host in these ranges.
    Ranges(Box<[IpNet]>),
}

impl NodePortAddresses {
    /// True when a family has no ranges of its own, or one that holds everything: ranges of
    /// one family leave the other unrestricted, as in kube-proxy.
    pub fn is_unrestricted(&self, family: Family) -> bool {
        let NodePortAddresses::Ranges(nets) = self else { return false };
        let mut own = nets.iter().filter(|net| Family::of_net(net) == family).peekable();
        own.peek().is_none() || own.any(|net| net.prefix_len() == 0)
    }

    /// The ranges that are about loopback. kube-proxy's nftables mode never serves NodePorts
    /// there, so a range as wide as 0.0.0.0/0 does not ask for it; one of these does.
    pub fn loopback(&self) -> impl Iterator<Item = &IpNet> {
        let nets = match self {
            NodePortAddresses::Primary => &[][..],
            NodePortAddresses::Ranges(nets) => nets,
        };
        nets.iter().filter(|net| net.network().is_loopback() && net.broadcast().is_loopback())
    }

    /// True when the configuration names this address of the host.
    pub fn includes(&self, node: Option<&Node>, addr: IpAddr) -> bool {
        if addr.is_loopback() {
            return self.loopback().any(|net| net.contains(&addr));
        }
        let family = Family::of(addr);
        match self {
            NodePortAddresses::Primary => node.and_then(|node| node.primary(family)) == Some(addr),
            NodePortAddresses::Ranges(nets) => {
                self.is_unrestricted(family) || nets.iter().any(|net| net.contains(&addr))
            }
        }
    }
}

/// `socketLB`: whose connections are translated by socket programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketLb {
    /// Those of the whole node.
    #[default]
    All,
    /// Those of processes in the host's network.
    Host,
    /// Nobody's.
    Off,
}
