//! The loaded programs with a few services, written row by row.

use std::{net::IpAddr, sync::Arc};

use proxy_common::{
    DropReason,
    addr::{Ip4, Ip6},
    maps::{
        backends::{self, Backend},
        devices::Device,
        frontends::{ClientRule, Frontend, FrontendKey, Kind, flags::SOURCE_RANGES},
        node_addresses::flags::NODE_PORTS,
        service_cidrs::Prefix,
        settings::{Settings, flags},
        slots::SlotRange,
        source_ranges::{SERVICE_BITS, SourceRange},
    },
};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore},
    kernel::{
        Capacities, Datapath, KernelAddr, KernelMaps, Options, PinnedMaps, Pins, Run, TcMode, XdpPolicy,
    },
};
use tests::mounts::BpfFs;

use crate::frames::{Flow, checked, frame};

/// tc: go on to the next program.
pub(crate) const CONTINUE: i32 = -1;
/// tc: drop.
pub(crate) const SHOT: i32 = 2;
/// tc: send elsewhere.
pub(crate) const REDIRECT: i32 = 7;

pub(crate) const SNAT_PORTS: std::ops::Range<u16> = 1024..30000;

/// The address plan, once per family.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) pod: IpAddr,
    pub(crate) outside: IpAddr,
    pub(crate) node: IpAddr,
    pub(crate) cluster_ip: IpAddr,
    pub(crate) other_ip: IpAddr,
    pub(crate) sticky_ip: IpAddr,
    pub(crate) balancer: IpAddr,
    pub(crate) empty_ip: IpAddr,
    pub(crate) local_only_ip: IpAddr,
    pub(crate) unallocated: IpAddr,
    pub(crate) backend: IpAddr,
    pub(crate) stranger: IpAddr,
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub(crate) fn plans() -> [Plan; 2] {
    let plan = |pods: &str, services: &str, outside: &str, node: &str, balancer: &str| Plan {
        pod: ip(&format!("{pods}2")),
        backend: ip(&format!("{pods}9")),
        stranger: ip(&format!("{pods}77")),
        outside: ip(outside),
        node: ip(node),
        cluster_ip: ip(&format!("{services}10")),
        other_ip: ip(&format!("{services}11")),
        sticky_ip: ip(&format!("{services}14")),
        balancer: ip(balancer),
        empty_ip: ip(&format!("{services}12")),
        local_only_ip: ip(&format!("{services}13")),
        unallocated: ip(&format!("{services}99")),
    };
    [
        plan("10.0.0.", "172.30.0.", "203.0.113.5", "192.168.0.2", "198.51.100.10"),
        plan("fd00:10::", "fd00:96::", "2001:db8:ffff::5", "2001:db8::1", "2001:db8:1b::10"),
    ]
}

pub(crate) const SERVICE_PORT: u16 = 80;
pub(crate) const BACKEND_PORT: u16 = 8080;
pub(crate) const NODE_PORT: u16 = 30080;
pub(crate) const BACKEND_ID: u32 = 1;
/// Eight TCP backends behind the service with session affinity, on consecutive ports.
pub(crate) const STICKY_BACKEND: u32 = 10;
pub(crate) const STICKY_SLOT: u32 = 10;

/// Loaded programs and their maps, on a BPF file system of their own.
pub(crate) struct Bench {
    pub(crate) datapath: Datapath,
    pub(crate) maps: KernelMaps,
    pub(crate) pins: Pins,
    /// Unmounted with the last generation.
    bpffs: Arc<BpfFs>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with_conntrack(4096)
    }

    /// One with room for that many rows of connections per family.
    pub(crate) fn with_conntrack(rows: u32) -> Self {
        let bpffs = BpfFs::mount("packet").expect("root, to mount a BPF file system");
        let mut bench = Self::open(bpffs.into(), rows);
        bench.settle();
        bench
    }

    /// The generation after this one, with tables of another size, before it takes over.
    pub(crate) fn successor(&self) -> Self {
        Self::open(self.bpffs.clone(), 8192)
    }

    fn open(bpffs: Arc<BpfFs>, rows: u32) -> Self {
        let root = bpffs.path().join("shunt");
        let capacities = Capacities {
            frontends: 256,
            backends: 64,
            slots: 256,
            conntrack: rows,
            services: 64,
            affinity: 256,
            source_ranges: 256,
        };
        let options = Options {
            bpffs: root.clone(),
            cgroup: None,
            capacities,
            tc_mode: TcMode::Auto,
            xdp: XdpPolicy::Auto,
            log_level: 0,
        };
        let mut datapath = Datapath::open(options).expect("the programs load");
        datapath.load_layer3().expect("the programs load");
        let maps = datapath.maps().expect("the maps open");
        Self { datapath, maps, pins: Pins::new(root), bpffs }
    }

    fn settle(&mut self) {
        let settings = Settings {
            flags: flags::PODS_BY_CIDR_V4
                | flags::PODS_BY_CIDR_V6
                | flags::ANSWER_ECHO
                | flags::SERVICE_CIDRS,
            snat_port_first: SNAT_PORTS.start,
            snat_port_count: SNAT_PORTS.len() as u16,
            pod_cidr_v4: [10, 0, 0, 0].into(),
            pod_cidr_bits_v4: 8,
            pod_cidr_v6: "fd00:10::".parse::<std::net::Ipv6Addr>().expect("an address").into(),
            pod_cidr_bits_v6: 32,
            ..Settings::default()
        };
        self.maps.put_settings(&settings).expect("settings");
        let [v4, v6] = plans();
        let device = Device::default().with_snat(v4_of(v4.node)).with_snat(v6_of(v6.node));
        self.maps.replace_devices(&[(1, device)]).expect("devices");
        populate(self.maps.v4(), &v4, v4_of, 16);
        populate(self.maps.v6(), &v6, v6_of, 112);
    }

    /// Sets or clears a bit of [`Settings::flags`].
    pub(crate) fn set_flag(&mut self, flag: u32, is_set: bool) {
        let held = self.maps.settings().expect("settings");
        let flags = if is_set { held.flags | flag } else { held.flags & !flag };
        self.maps.put_settings(&Settings { flags, ..held }).expect("settings");
    }

    /// Moves a backend to the node's own address, the way to which needs no route.
    pub(crate) fn move_backend(&mut self, plan: &Plan, id: u32) {
        fn in_family<A: KernelAddr>(maps: &mut impl FamilyMaps<A>, addr: A, id: u32) {
            let row = maps.backend(id).expect("the backend");
            maps.put_backends(&[(id, Backend { addr, ..row })]).expect("written");
        }
        if plan.node.is_ipv4() {
            in_family(self.maps.v4(), v4_of(plan.node), id);
        } else {
            in_family(self.maps.v6(), v6_of(plan.node), id);
        }
    }

    /// Lets the clients of the service with session affinity go anywhere.
    pub(crate) fn forget_affinity(&mut self, plan: &Plan) {
        fn in_family<A: KernelAddr>(maps: &mut impl FamilyMaps<A>, addr: A) {
            let mut rows = maps.frontends().expect("frontends");
            rows.retain(|(key, _)| key.addr == addr);
            rows.iter_mut().for_each(|(_, row)| row.affinity_secs = 0);
            maps.put_frontends(&rows).expect("written");
        }
        if plan.node.is_ipv4() {
            in_family(self.maps.v4(), v4_of(plan.sticky_ip));
        } else {
            in_family(self.maps.v6(), v6_of(plan.sticky_ip));
        }
    }

    /// Puts backends into slots of the plan's family.
    pub(crate) fn put_slots(&mut self, plan: &Plan, offset: u32, ids: &[u32]) {
        let written = if plan.node.is_ipv4() {
            self.maps.v4().put_slots(offset, ids)
        } else {
            self.maps.v6().put_slots(offset, ids)
        };
        written.expect("written");
    }

    pub(crate) fn ingress(&mut self, frame: &[u8]) -> Run {
        self.datapath.run_ingress(frame, 1).expect("the kernel takes the frame")
    }

    pub(crate) fn egress(&mut self, frame: &[u8]) -> Run {
        self.datapath.run_egress(frame, 1).expect("the kernel takes the frame")
    }

    /// Egress of what the host has made.
    pub(crate) fn egress_of_host(&mut self, frame: &[u8]) -> Run {
        self.datapath.run_egress(frame, 0).expect("the kernel takes the frame")
    }

    /// Ingress of a device without an Ethernet header. See [`Self::layer3`].
    pub(crate) fn ingress_l3(&mut self, frame: &[u8]) -> Run {
        self.layer3("shunt_in_l3", frame)
    }

    /// Egress of a device without an Ethernet header. See [`Self::layer3`].
    pub(crate) fn egress_l3(&mut self, frame: &[u8]) -> Run {
        self.layer3("shunt_out_l3", frame)
    }

    /// Takes the Ethernet header off before and puts it back afterwards. The kernel looks for one in
    /// what is given to it and finds the EtherType at offset 12: packets must come from [`l3_source`].
    fn layer3(&mut self, program: &'static str, frame: &[u8]) -> Run {
        let (header, packet) = frame.split_at(14);
        let run = self.datapath.run(program, packet, 1).expect("the kernel takes the packet");
        Run { packet: [header, &run.packet].concat(), ..run }
    }

    /// Through ingress; the flow that the stack sees.
    pub(crate) fn enters(&mut self, flow: Flow, tcp_flags: u8) -> Flow {
        let run = self.ingress(&frame(flow, tcp_flags));
        assert_eq!(run.action, CONTINUE);
        checked(&run.packet)
    }

    /// Through egress; the flow on the wire.
    pub(crate) fn leaves(&mut self, flow: Flow, tcp_flags: u8) -> Flow {
        let run = self.egress(&frame(flow, tcp_flags));
        assert_eq!(run.action, CONTINUE);
        checked(&run.packet)
    }

    /// Every counter of refused packets.
    pub(crate) fn all_drops(&self) -> Vec<(DropReason, u64)> {
        PinnedMaps::open(self.pins.clone()).and_then(|maps| maps.drops()).expect("counters")
    }

    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        self.all_drops().iter().find(|(r, _)| *r == reason).map_or(0, |(_, count)| *count)
    }
}

pub(crate) fn v4_of(addr: IpAddr) -> Ip4 {
    match addr {
        IpAddr::V4(addr) => addr.into(),
        IpAddr::V6(addr) => panic!("{addr} is not IPv4"),
    }
}

pub(crate) fn v6_of(addr: IpAddr) -> Ip6 {
    match addr {
        IpAddr::V6(addr) => addr.into(),
        IpAddr::V4(addr) => panic!("{addr} is not IPv6"),
    }
}

/// An address of the family whose bytes at offset 12 of the IP header are the EtherType.
pub(crate) fn l3_source(family_of: IpAddr) -> IpAddr {
    ip(if family_of.is_ipv4() { "8.0.113.5" } else { "2001:db8:86dd::5" })
}

/// A backend has a number for each: the first one's is [`BACKEND_ID`].
pub(crate) const PROTOCOLS: [u8; 3] = [6, 17, 132];

/// One service with one backend on all its faces, one without backends, one whose policy
/// is Local with backends elsewhere only.
fn populate<A: KernelAddr>(
    maps: &mut impl FamilyMaps<A>,
    plan: &Plan,
    addr: fn(IpAddr) -> A,
    cidr_bits: u32,
) {
    for (id, proto) in (BACKEND_ID..).zip(PROTOCOLS) {
        let backend =
            Backend { addr: addr(plan.backend), port: BACKEND_PORT, proto, flags: backends::flags::PRESENT };
        maps.put_backends(&[(id, backend)]).expect("a backend");
        maps.put_slots(id, &[id]).expect("a slot");
        let one = SlotRange { offset: id, len: 1 };
        let none = SlotRange::default();
        let mut put = |addr: A, port, kind: Kind, row: Frontend| {
            let key = FrontendKey { addr, port, proto, pad: 0 };
            maps.put_frontends(&[(key, Frontend { service: 1, kind: kind.0, ..row })]).expect("a frontend");
        };
        let rule = ClientRule;
        let snat = rule(ClientRule::SNAT);
        let plain =
            Frontend { cluster: one, rules: ClientRule::pack(rule(0), snat, snat), ..Frontend::default() };
        let masked = Frontend { rules: ClientRule::pack(snat, snat, snat), ..plain };
        let local = rule(ClientRule::LOCAL | ClientRule::DROP);
        let local = Frontend { rules: ClientRule::pack(local, local, local), ..plain };
        let sticky =
            Frontend { cluster: SlotRange { offset: STICKY_SLOT, len: 8 }, affinity_secs: 600, ..plain };
        put(addr(plan.cluster_ip), SERVICE_PORT, Kind::CLUSTER_IP, plain);
        put(addr(plan.other_ip), SERVICE_PORT, Kind::CLUSTER_IP, plain);
        put(addr(plan.sticky_ip), SERVICE_PORT, Kind::CLUSTER_IP, sticky);
        put(addr(plan.empty_ip), SERVICE_PORT, Kind::CLUSTER_IP, Frontend { cluster: none, ..plain });
        put(addr(plan.local_only_ip), SERVICE_PORT, Kind::CLUSTER_IP, local);
        put(
            addr(plan.balancer),
            SERVICE_PORT,
            Kind::LOAD_BALANCER,
            Frontend { flags: SOURCE_RANGES, ..masked },
        );
        put(A::default(), NODE_PORT, Kind::NODE_PORT, masked);
    }
    for i in 0..8 {
        let sticky = Backend {
            addr: addr(plan.backend),
            port: BACKEND_PORT + 1 + i,
            proto: 6,
            flags: backends::flags::PRESENT,
        };
        let id = STICKY_BACKEND + u32::from(i);
        maps.put_backends(&[(id, sticky)]).expect("a backend");
        maps.put_slots(STICKY_SLOT + u32::from(i), &[id]).expect("a slot");
    }
    let range = SourceRange { bits: SERVICE_BITS + A::BITS, service: 1, addr: addr(plan.outside) };
    maps.put_source_ranges(&[range]).expect("a source range");
    let whole = FrontendKey { addr: addr(plan.cluster_ip), port: 0, proto: 0, pad: 0 };
    let row = Frontend { kind: Kind::ADDRESS.0, ..Frontend::default() };
    maps.put_frontends(&[(whole, row)]).expect("the address");
    maps.put_node_addresses(&[(addr(plan.node), NODE_PORTS)]).expect("the node's address");
    let net = ipnet::IpNet::new(plan.cluster_ip, cidr_bits as u8).expect("a prefix").network();
    maps.put_service_cidrs(&[Prefix { bits: cidr_bits, addr: addr(net) }]).expect("a ServiceCIDR");
}
