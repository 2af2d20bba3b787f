//! Which sockets the health ports of services need, and who answers there.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{
    model::{Family, HealthCheck, Node, NodePortAddresses},
    serve::Listen,
};

/// The sockets that are wanted, and the service each port belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// The sockets.
    pub listens: BTreeSet<Listen>,
    /// By port.
    pub owners: HashMap<u16, HealthCheck>,
}

/// Health ports are open where NodePorts are. `owned` are the addresses of the host.
pub fn ports<'a>(
    checks: impl IntoIterator<Item = &'a HealthCheck>,
    wanted: &NodePortAddresses,
    node: Option<&Node>,
    owned: &[IpAddr],
) -> Ports {
    let mut ports = Ports::default();
    for check in checks {
        let older = |other: &HealthCheck| (other.created, &other.service) < (check.created, &check.service);
        if !ports.owners.get(&check.port).is_some_and(older) {
            ports.owners.insert(check.port, check.clone());
        }
    }
    let named = owned.iter().copied().filter(|addr| wanted.includes(node, *addr) && !needs_a_scope(*addr));
    let named: Vec<_> = named.collect();
    for check in ports.owners.values() {
        let mut families = Family::ALL.into_iter().filter(|family| check.has(*family));
        if families.clone().all(|family| wanted.is_unrestricted(family)) {
            ports.listens.insert(Listen::everywhere(check.port));
        } else {
            ports
                .listens
                .extend(families.by_ref().flat_map(|family| listens(family, check.port, wanted, &named)));
        }
    }
    ports
}

fn listens(family: Family, port: u16, wanted: &NodePortAddresses, named: &[IpAddr]) -> Vec<Listen> {
    if wanted.is_unrestricted(family) {
        return vec![match family {
            Family::V4 => Listen::at((Ipv4Addr::UNSPECIFIED, port)),
            Family::V6 => Listen::at((Ipv6Addr::UNSPECIFIED, port)),
        }];
    }
    let own = named.iter().filter(|addr| Family::of(**addr) == family);
    own.map(|addr| Listen::at((*addr, port))).collect()
}

/// A link-local address alone does not say on which link.
fn needs_a_scope(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ObjectName;

    fn check_for(name: &str, created: i64, endpoints: [Option<usize>; 2]) -> HealthCheck {
        HealthCheck { service: ObjectName::new("ns", name), created, port: 32_000, endpoints }
    }

    const V4: [Option<usize>; 2] = [Some(1), None];
    const BOTH: [Option<usize>; 2] = [Some(1), Some(1)];

    /// Ranges of nodePortAddresses, or `primary`; then the addresses that are listened on,
    /// with `+` where one socket is for both families.
    fn check(ranges: &[&str], endpoints: [Option<usize>; 2], expected: &[&str]) {
        let parse = |text: &&str| text.parse::<IpAddr>().expect("an address");
        let node =
            Node { addresses: ["192.168.0.2", "2001:db8::1"].iter().map(parse).collect(), ..Node::default() };
        let owned = ["127.0.0.1", "192.168.0.2", "192.168.1.2", "2001:db8::1", "fe80::1"];
        let wanted = match ranges {
            ["primary"] => NodePortAddresses::Primary,
            nets => NodePortAddresses::Ranges(nets.iter().map(|net| net.parse().expect("a range")).collect()),
        };
        let owned: Vec<_> = owned.iter().map(parse).collect();
        let ports = ports(&[check_for("a", 0, endpoints)], &wanted, Some(&node), &owned);
        let name = |listen: &Listen| {
            format!("{}{}", listen.address.ip(), if listen.both_families { "+" } else { "" })
        };
        assert_eq!(ports.listens.iter().map(name).collect::<Vec<_>>(), expected, "{ranges:?}");
    }

    #[test]
    fn health_ports_are_open_where_node_ports_are() {
        check(&["primary"], V4, &["192.168.0.2"]);
        check(&["primary"], BOTH, &["192.168.0.2", "2001:db8::1"]);
        check(&["192.168.1.0/24"], V4, &["192.168.1.2"]);
        check(&["192.168.0.0/16", "fe80::/10"], BOTH, &["192.168.0.2", "192.168.1.2"]);
        check(&["0.0.0.0/0"], V4, &["::+"]);
        check(&["0.0.0.0/0"], BOTH, &["::+"]);
        check(&["192.168.1.0/24"], BOTH, &["192.168.1.2", "::"]);
        check(&["0.0.0.0/0", "2001:db8::/64"], BOTH, &["0.0.0.0", "2001:db8::1"]);
        check(&["10.0.0.0/8"], V4, &[]);
    }

    #[test]
    fn the_older_service_keeps_the_port() {
        let checks = [check_for("b", 1, V4), check_for("a", 2, V4), check_for("c", 1, V4)];
        let mut orders = [checks.clone(), checks];
        orders[1].reverse();
        for order in orders {
            let ports = ports(&order, &NodePortAddresses::Primary, None, &[]);
            assert_eq!(&*ports.owners[&32_000].service.name, "b");
        }
    }
}
