use super::*;

#[derive(Default)]
struct Policy {
    loopback: bool,
    pods_behind: Option<&'static str>,
    masquerade: Vec<IpNet>,
}

impl DevicePolicy for Policy {
    fn override_for(&self, name: &str) -> Option<Override> {
        match name {
            "ignored0" => Some(Override::Ignore),
            "tunnel0" => Some(Override::Edge(EdgeKind::Tunnel)),
            _ => None,
        }
    }

    fn leads_to_pods(&self, _name: &str, master: Option<&str>) -> bool {
        self.pods_behind.is_some() && self.pods_behind == master
    }

    fn loopback_edge(&self) -> bool {
        self.loopback
    }

    fn masquerade_ranges(&self) -> &[IpNet] {
        &self.masquerade
    }
}

const CABLE: LinkKind = LinkKind::Cable { peer_elsewhere: true };

fn link(ifindex: u32, name: &str, kind: LinkKind, master: Option<u32>) -> (u32, Link) {
    (
        ifindex,
        Link {
            ifindex,
            name: name.into(),
            kind,
            ethernet: true,
            mac: [2; 6],
            master,
            mtu: 1500,
            vlan: None,
            xdp: None,
        },
    )
}

fn addr(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A node whose uplink is a cable, with a bridge of pods, a routed pod and a bond.
fn host() -> Host {
    Host {
        links: BTreeMap::from([
            link(1, "lo", LinkKind::Loopback, None),
            link(2, "eth0", CABLE, None),
            link(3, "cni0", LinkKind::Bridge, None),
            link(4, "veth1", CABLE, Some(3)),
            link(5, "lxc2", CABLE, None),
            link(6, "bond0", LinkKind::Bond, None),
            link(7, "eth1", LinkKind::Physical, Some(6)),
            link(8, "vxlan0", LinkKind::Tunnel, None),
            link(9, "ignored0", LinkKind::Physical, None),
            link(10, "tunnel0", LinkKind::Other, None),
            link(11, "pair0", LinkKind::Cable { peer_elsewhere: false }, None),
        ]),
        addresses: vec![
            (1, addr("127.0.0.1")),
            (3, addr("10.1.0.1")),
            (2, addr("192.168.0.2")),
            (2, addr("2001:db8::2")),
        ],
        default_routes: vec![2],
    }
}

#[test]
fn edges_are_found_by_what_they_are() {
    let edges = host().edges(&[], &Policy::default());
    let found: Vec<_> = edges.iter().map(|e| (e.target.name.as_str(), e.kind)).collect();
    let expected = [
        ("eth0", EdgeKind::Node),
        ("veth1", EdgeKind::Pod),
        ("lxc2", EdgeKind::Pod),
        ("bond0", EdgeKind::Node),
        ("vxlan0", EdgeKind::Tunnel),
        ("tunnel0", EdgeKind::Tunnel),
    ];
    assert_eq!(found, expected);
}

#[test]
fn loopback_is_an_edge_on_request() {
    let policy = Policy { loopback: true, ..Policy::default() };
    assert!(host().edges(&[], &policy).iter().any(|e| e.kind == EdgeKind::Loopback));
}

#[test]
fn a_port_of_the_bridge_that_is_the_uplink_is_no_edge() {
    let mut host = host();
    host.default_routes = vec![3];
    let names: Vec<_> = host.edges(&[], &Policy::default()).into_iter().map(|e| e.target.name).collect();
    assert!(names.contains(&"cni0".into()) && !names.contains(&"veth1".into()), "{names:?}");
}

#[test]
fn the_node_address_makes_an_uplink() {
    let mut host = host();
    host.default_routes.clear();
    let edges = host.edges(&[addr("192.168.0.2")], &Policy::default());
    assert_eq!(edges[0].kind, EdgeKind::Node);
}

#[test]
fn masquerade_addresses() {
    let rows: BTreeMap<_, _> =
        host().devices(&[], &Policy::default(), &BTreeSet::new()).into_iter().collect();
    let v4 = |ifindex: u32| IpAddr::from(rows[&ifindex].snat::<Ip4>()[0]);
    assert_eq!(v4(2), addr("192.168.0.2"), "its own");
    assert_eq!(v4(4), addr("10.1.0.1"), "its bridge's");
    assert_eq!(v4(5), addr("192.168.0.2"), "the uplink's");
    assert_eq!(v4(1), addr("192.168.0.2"), "never a loopback address");
    assert_eq!(
        IpAddr::from(rows[&4].snat::<Ip6>()[0]),
        addr("2001:db8::2"),
        "the uplink's, as the bridge has none"
    );
}

/// Uplinks with addresses of their own and without, and addresses of the loopback device.
fn host_with_more() -> Host {
    let mut host = host();
    host.addresses.extend([
        (1, addr("203.0.113.1")),
        (1, addr("203.0.113.2")),
        (2, addr("192.168.0.3")),
        (2, addr("192.168.0.4")),
        (2, addr("2001:db8::3")),
    ]);
    host
}

fn masquerade_rows(host: &Host, ranges: &[&str]) -> BTreeMap<u32, Vec<IpAddr>> {
    let ranges = ranges.iter().map(|range| range.parse().expect("a CIDR"));
    let policy = Policy { masquerade: ranges.collect(), ..Policy::default() };
    let sources = |device: &Device| {
        let v4 = device.snat::<Ip4>().iter().copied().map(IpAddr::from);
        v4.chain(device.snat::<Ip6>().iter().copied().map(IpAddr::from)).collect()
    };
    let rows = host.devices(&[], &policy, &BTreeSet::new());
    rows.into_iter().map(|(ifindex, device)| (ifindex, sources(&device))).collect()
}

#[test]
fn several_masquerade_addresses() {
    let rows = masquerade_rows(&host_with_more(), &["192.168.0.3/32", "192.168.0.4/32", "203.0.113.0/24"]);
    let of = |texts: &[&str]| texts.iter().map(|text| addr(text)).collect::<Vec<_>>();
    assert_eq!(rows[&2], of(&["192.168.0.3", "192.168.0.4", "2001:db8::2"]), "its own; IPv6 as ever");
    let all = ["203.0.113.1", "203.0.113.2", "192.168.0.3", "192.168.0.4", "2001:db8::2"];
    assert_eq!(rows[&6], of(&all), "an uplink without has all of the node");
    assert_eq!(rows[&5], of(&all), "and a pod's link");
    assert_eq!(rows[&4], of(&["10.1.0.1", "2001:db8::2"]), "pods see their bridge");
    let rows = masquerade_rows(&host_with_more(), &["0.0.0.0/0", "::/0"]);
    assert_eq!(rows[&1][..2], of(&["203.0.113.1", "203.0.113.2"]), "never a loopback address");
    let rows = masquerade_rows(&host_with_more(), &["198.51.100.0/24"]);
    assert_eq!(rows[&2], of(&["192.168.0.2", "2001:db8::2"]), "as ever where the node has none of them");
}

#[test]
fn faults_of_masquerade_addresses() {
    let mut host = host_with_more();
    let faults = |host: &Host, ranges: &[&str]| {
        let ranges: Vec<_> = ranges.iter().map(|range| range.parse().expect("a CIDR")).collect();
        host.masquerade_faults(&ranges)
    };
    assert_eq!(faults(&host, &[]), []);
    assert_eq!(faults(&host, &["192.168.0.0/24", "198.51.100.0/24"]), [], "other nodes have the others");
    assert_eq!(
        faults(&host, &["198.51.100.0/24", "2001:db8:1::/64", "127.0.0.0/8"]),
        ["IPv4", "IPv6"].map(|family| MasqueradeFault::NoAddress { family })
    );
    host.addresses.extend((10..17).map(|last| (1, addr(&format!("203.0.113.{last}")))));
    let too_many = MasqueradeFault::TooMany { family: "IPv4", device: "lo".into(), count: 9 };
    assert_eq!(faults(&host, &["203.0.113.0/24"]), [too_many]);
    assert_eq!(masquerade_rows(&host, &["203.0.113.0/24"])[&2].len(), 8 + 1, "with one of IPv6");
}

#[test]
fn pods_by_bridge() {
    let policy = Policy { pods_behind: Some("cni0"), ..Policy::default() };
    let rows: BTreeMap<_, _> = host().devices(&[], &policy, &BTreeSet::from([5])).into_iter().collect();
    assert_eq!(
        [4, 5, 6].map(|i| rows[&i].flags & !flags::EDGE),
        [flags::CABLE | flags::POD, flags::CABLE | flags::XDP_XMIT, 0]
    );
    let kinds = [1, 4, 5, 6].map(|i| EdgeKind::noted(&rows[&i]));
    assert_eq!(kinds, [None, Some(EdgeKind::Pod), Some(EdgeKind::Pod), Some(EdgeKind::Node)]);
}

/// VLAN device `id` on `parent`.
fn vlan(ifindex: u32, name: &str, id: u16, parent: Option<u32>) -> (u32, Link) {
    let (_, link) = link(ifindex, name, LinkKind::Vlan, None);
    (ifindex, Link { vlan: Some(Vlan { id, parent, dot1q: true }), ..link })
}

#[test]
fn xdp_goes_where_the_frames_come_in() {
    let mut host = host();
    host.links.extend([
        link(20, "enp1", LinkKind::Physical, None),
        vlan(21, "enp1.7", 7, Some(20)),
        vlan(22, "enp1.7.8", 8, Some(21)),
        vlan(23, "bond0.7", 7, Some(6)),
        vlan(24, "far.7", 7, None),
        vlan(25, "ignored0.7", 7, Some(9)),
    ]);
    let plan = host.xdp_plan(&host.edges(&[], &Policy::default()), &Policy::default());
    let names: Vec<_> = plan.targets.iter().map(|t| (t.name.as_str(), t.cable)).collect();
    assert_eq!(names, [("eth0", true), ("bond0", false), ("enp1", false)]);
    let tagged: Vec<_> = plan.targets.iter().map(|t| t.tagged.join(" ")).collect();
    assert_eq!(tagged, ["", "eth1", "enp1"], "a bond's ports see its tags");
    let served: BTreeMap<_, _> = plan.others.iter().map(|o| (o.name.as_str(), &o.served)).collect();
    assert_eq!((served["enp1.7"], served["bond0.7"]), (&Served::By(20), &Served::By(6)));
    for name in ["enp1.7.8", "far.7", "ignored0.7"] {
        assert!(matches!(served[name], Served::Not(_)), "{name}: {:?}", served[name]);
    }
    let rows: BTreeMap<_, _> = host.devices(&[], &Policy::default(), &BTreeSet::new()).into_iter().collect();
    assert_eq!([21, 24, 20].map(|i| (rows[&i].vlan, rows[&i].parent)), [(7, 20), (0, 0), (0, 0)]);
}
