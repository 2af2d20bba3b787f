//! The rows that belong to the node.

use std::{
    iter::successors,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proxy_common::{
    addr::{Ip4, Ip6},
    maps::{
        node_addresses::flags::NODE_PORTS,
        settings::{Settings, flags},
    },
};

use super::NodePlan;
use crate::model::{Config, Family, Node, SocketLb, State};

/// What only the machine itself can tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Cookie of the host's network namespace.
    pub netns_cookie: u64,
    /// Every address of the host's interfaces.
    pub addresses: Vec<IpAddr>,
    /// A random number, for a node that has none yet.
    pub secret: [u64; 2],
    /// How far services are taken over from kube-proxy.
    pub takeover: Takeover,
}

/// A step of taking services over from kube-proxy, whose rules are in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takeover {
    /// The programs are being attached: where one is missing, a connection that they took would
    /// not find its way back.
    Attaching,
    /// They are attached, and the connections that kube-proxy's rules began are not all known.
    Attached,
    /// It is done, or there was nothing to take over.
    #[default]
    Done,
}

/// The rows of the node.
pub fn node(state: &State, config: &Config, host: &Host) -> NodePlan {
    let node = state.node();
    let mut addresses: Vec<_> = host.addresses.clone();
    addresses.sort_unstable();
    addresses.dedup();
    let flags = |addr| if config.node_port_addresses.includes(node, addr) { NODE_PORTS } else { 0 };
    let service_cidrs = state.service_cidrs();
    NodePlan {
        settings: settings(config, node, host, service_cidrs.as_deref().unwrap_or_default()),
        addresses: addresses.into_iter().map(|addr| (addr, flags(addr))).collect(),
        service_cidrs: service_cidrs.map(Into::into),
    }
}

fn settings(config: &Config, node: Option<&Node>, host: &Host, service_cidrs: &[IpNet]) -> Settings {
    let mut settings = Settings {
        host_netns_cookie: host.netns_cookie,
        secret: host.secret,
        flags: match config.socket_lb {
            SocketLb::All => flags::SOCKET_LB_HOST | flags::SOCKET_LB_PODS,
            SocketLb::Host => flags::SOCKET_LB_HOST,
            SocketLb::Off => 0,
        } | if config.answer_echo { flags::ANSWER_ECHO } else { 0 }
            | if config.loose_tcp { flags::LOOSE } else { 0 }
            | if config.reserve_node_ports { 0 } else { flags::NODE_PORTS_FREE },
        snat_port_first: config.snat_port_first,
        snat_port_count: config.snat_port_last.saturating_sub(config.snat_port_first).saturating_add(1),
        timeouts: config.timeouts.into(),
        ..Settings::default()
    };
    if config.detect_local.by_device() {
        settings.flags |= flags::PODS_BY_DEVICE;
    }
    settings.flags |= match host.takeover {
        Takeover::Attaching => flags::ATTACHING,
        Takeover::Attached => flags::TAKEOVER,
        Takeover::Done => 0,
    };
    if !service_cidrs.is_empty() {
        settings.flags |= flags::SERVICE_CIDRS;
        set_service_ranges(&mut settings, service_cidrs);
    }
    for net in Family::ALL.into_iter().filter_map(|family| config.detect_local.pod_cidr(family, node)) {
        match net.trunc() {
            IpNet::V4(net) => {
                settings.flags |= flags::PODS_BY_CIDR_V4;
                settings.pod_cidr_v4 = Ip4::from(net.addr());
                settings.pod_cidr_bits_v4 = net.prefix_len().into();
            }
            IpNet::V6(net) => {
                settings.flags |= flags::PODS_BY_CIDR_V6;
                settings.pod_cidr_v6 = Ip6::from(net.addr());
                settings.pod_cidr_bits_v6 = net.prefix_len().into();
            }
        }
    }
    settings
}

/// A family without service ranges gets one that holds the unspecified address alone.
fn set_service_ranges(settings: &mut Settings, service_cidrs: &[IpNet]) {
    let v4 = service_cidrs.iter().filter_map(|net| if let IpNet::V4(net) = net { Some(*net) } else { None });
    let v6 = service_cidrs.iter().filter_map(|net| if let IpNet::V6(net) = net { Some(*net) } else { None });
    let around = |a: Ipv4Net, b| successors(Some(a), Ipv4Net::supernet).find(|net| net.contains(&b));
    let v4 = v4.reduce(|a, b| around(a, b).unwrap_or_default());
    let v4 = v4.unwrap_or_else(|| Ipv4Addr::UNSPECIFIED.into());
    let around = |a: Ipv6Net, b| successors(Some(a), Ipv6Net::supernet).find(|net| net.contains(&b));
    let v6 = v6.reduce(|a, b| around(a, b).unwrap_or_default());
    let v6 = v6.unwrap_or_else(|| Ipv6Addr::UNSPECIFIED.into());
    settings.service_range_v4 = Ip4::from(v4.network());
    settings.service_range_bits_v4 = v4.prefix_len().into();
    settings.service_range_v6 = Ip6::from(v6.network());
    settings.service_range_bits_v6 = v6.prefix_len().into();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Change, DetectLocal, NodePortAddresses};

    fn state() -> State {
        let mut state = State::new("here");
        let addrs = ["192.168.0.2", "192.168.1.2", "2001:db8::1"];
        state.apply(Change::Node(Node {
            name: "here".into(),
            addresses: addrs.iter().map(|addr| addr.parse().expect("an address")).collect(),
            zone: None,
            pod_cidrs: ["10.1.0.9/24".parse().expect("a range")].into(),
            ..Node::default()
        }));
        state
    }

    fn check(addresses: NodePortAddresses, expected: &[&str]) {
        let host =
            ["192.168.0.2", "192.168.1.2", "127.0.0.1", "::1", "2001:db8::1", "2001:db8::2", "192.168.0.2"];
        let host = Host {
            netns_cookie: 1,
            addresses: host.iter().map(|addr| addr.parse().expect("an address")).collect(),
            ..Host::default()
        };
        let config = Config { node_port_addresses: addresses, ..Config::default() };
        let plan = node(&state(), &config, &host);
        assert_eq!(plan.addresses.len(), 6);
        let taking: Vec<_> = plan
            .addresses
            .iter()
            .filter(|(_, flags)| *flags == NODE_PORTS)
            .map(|(a, _)| a.to_string())
            .collect();
        assert_eq!(taking, expected);
    }

    fn ranges(nets: &[&str]) -> NodePortAddresses {
        NodePortAddresses::Ranges(nets.iter().map(|net| net.parse().expect("a range")).collect())
    }

    #[test]
    fn node_ports_are_taken_on_chosen_addresses() {
        check(NodePortAddresses::Primary, &["192.168.0.2", "2001:db8::1"]);
        check(ranges(&["192.168.1.0/24", "2001:db8::2/128"]), &["192.168.1.2", "2001:db8::2"]);
        check(ranges(&["192.168.1.0/24"]), &["192.168.1.2", "2001:db8::1", "2001:db8::2"]);
        check(ranges(&["0.0.0.0/0", "2001:db8:9::/64"]), &["192.168.0.2", "192.168.1.2"]);
        check(ranges(&["192.168.1.0/24", "127.0.0.0/8", "::1/128"]), &["127.0.0.1", "192.168.1.2", "::1"]);
    }

    #[test]
    fn service_ranges_are_around_every_service_cidr() {
        let check = |nets: &[&str], v4: &str, v6: &str| {
            let nets: Vec<IpNet> = nets.iter().map(|net| net.parse().expect("a range")).collect();
            let mut settings = Settings::default();
            set_service_ranges(&mut settings, &nets);
            let text = |addr: IpAddr, bits| format!("{addr}/{bits}");
            let ranges = [
                text(settings.service_range_v4.into(), settings.service_range_bits_v4),
                text(settings.service_range_v6.into(), settings.service_range_bits_v6),
            ];
            assert_eq!(ranges, [v4, v6], "{nets:?}");
        };
        check(&["10.96.0.0/16"], "10.96.0.0/16", "::/128");
        check(&["10.96.0.0/16", "10.99.4.0/24", "fd00:96::/112"], "10.96.0.0/14", "fd00:96::/112");
        check(&["10.99.4.0/24", "10.96.0.0/12", "10.99.4.0/25"], "10.96.0.0/12", "::/128");
        check(&["10.0.0.0/8", "192.168.0.0/16", "fd00::/112", "2001:db8::/64"], "0.0.0.0/0", "::/0");
    }

    #[test]
    fn settings_say_what_the_configuration_means() {
        let check = |detect_local, socket_lb, expected: u32| {
            let config = Config { detect_local, socket_lb, answer_echo: false, ..Config::default() };
            let settings = node(&state(), &config, &Host::default()).settings;
            assert_eq!(settings.flags, expected, "{config:?}");
            settings
        };
        let both: DetectLocal = DetectLocal::ClusterCidr(
            ["10.0.0.0/8", "fd00:10::/32"].map(|net| net.parse().expect("a range")).into(),
        );
        check(DetectLocal::Off, SocketLb::Off, 0);
        check(DetectLocal::Off, SocketLb::Host, flags::SOCKET_LB_HOST);
        check(DetectLocal::Off, SocketLb::All, flags::SOCKET_LB_HOST | flags::SOCKET_LB_PODS);
        let by_range = check(both, SocketLb::Off, flags::PODS_BY_CIDR_V4 | flags::PODS_BY_CIDR_V6);
        assert_eq!((by_range.pod_cidr_bits_v4, by_range.pod_cidr_bits_v6), (8, 32));
        let by_node = check(DetectLocal::NodeCidr, SocketLb::Off, flags::PODS_BY_CIDR_V4);
        assert_eq!(by_node.pod_cidr_v4, [10, 1, 0, 0].into());
        check(DetectLocal::BridgeInterface("br0".into()), SocketLb::Off, flags::PODS_BY_DEVICE);
        let loose = Config { loose_tcp: true, ..Config::default() };
        assert_ne!(node(&state(), &loose, &Host::default()).settings.flags & flags::LOOSE, 0);
        let free = Config { reserve_node_ports: false, ..Config::default() };
        assert_ne!(node(&state(), &free, &Host::default()).settings.flags & flags::NODE_PORTS_FREE, 0);
        assert_eq!((by_node.snat_port_first, by_node.snat_port_count), (1024, 28_976));
    }
}
