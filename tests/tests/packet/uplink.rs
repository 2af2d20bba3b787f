//! A node with a way out: a device, routes, and a neighbour whose address is known, for
//! programs that ask where a packet would go.

use std::os::fd::{AsFd as _, OwnedFd};

use anyhow::Result;
use nix::net::if_::if_nametoindex;
use proxy_common::maps::devices::Device;
use tests::netns::Namespace;

use crate::{
    bench::{Bench, Plan, plans, v4_of, v6_of},
    bpf::{self, Kind},
};

/// Link-layer address of the device, which the test frames are sent to.
pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The next hop to everywhere.
pub(crate) const NEIGHBOUR: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// The device. It is gone with the namespace it is in.
pub(crate) struct Uplink {
    pub(crate) ifindex: u32,
    /// A test run of XDP takes only devices that are prepared for XDP, as an attached program
    /// has them do.
    _attached: OwnedFd,
}

impl Uplink {
    /// Makes it in `namespace`, where the calling thread is. Of the addresses of the plan,
    /// those of `192.168.0.0/24` and `2001:db8::/64` have nobody who answers for them but the
    /// neighbour, `.9` and `::9`.
    pub(crate) fn new(namespace: &Namespace) -> Result<Self> {
        namespace.sysctl(&[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")])?;
        namespace.ip("link set lo up
            link add uplink address 02:00:00:00:00:02 type veth peer name far
            link set uplink up
            link set far up
            address add 192.168.0.2/24 dev uplink
            address add 2001:db8::1/64 dev uplink nodad
            neighbour add 192.168.0.9 lladdr 02:00:00:00:00:09 dev uplink nud permanent
            neighbour add 2001:db8::9 lladdr 02:00:00:00:00:09 dev uplink nud permanent
            route add default via 192.168.0.9
            route add ::/0 via 2001:db8::9 dev uplink")?;
        let ifindex = if_nametoindex("uplink")?;
        let attached = bpf::attach_xdp(bpf::noop(Kind::Xdp)?.as_fd(), ifindex)?;
        Ok(Self { ifindex, _attached: attached })
    }

    /// What the programs are told of it.
    pub(crate) fn device() -> Device {
        let [v4, v6] = plans();
        Device { mac: MAC, ..Device::default() }.with_snat(v4_of(v4.node)).with_snat(v6_of(v6.node))
    }
}

/// The programs on such a node.
pub(crate) struct Node<'n> {
    pub(crate) bench: Bench,
    pub(crate) uplink: Uplink,
    pub(crate) namespace: &'n Namespace,
}

/// Runs `test` on a node of its own.
pub(crate) fn on_a_node<T: Send>(test: impl FnOnce(&mut Node) -> Result<T> + Send) -> Result<T> {
    let namespace = Namespace::create("packet")?;
    namespace.run(|| {
        let uplink = Uplink::new(&namespace)?;
        let mut bench = Bench::new();
        bench.maps.replace_devices(&[(uplink.ifindex, Uplink::device())])?;
        test(&mut Node { bench, uplink, namespace: &namespace })
    })
}

impl Node<'_> {
    /// The next hop to everywhere, in the family of the plan.
    pub(crate) fn neighbour(&self, plan: &Plan) -> &'static str {
        if plan.node.is_ipv4() { "192.168.0.9" } else { "2001:db8::9" }
    }

    /// Through one program, as having come in by the uplink.
    pub(crate) fn run(&self, program: &'static str, kind: Kind, frame: &[u8]) -> Result<bpf::Run> {
        let program = self.bench.datapath.program(program)?;
        Ok(bpf::run(program, kind, frame, self.uplink.ifindex, 1)?)
    }

    /// Through ingress, and through egress if the stack gets it.
    pub(crate) fn tc(&self, frame: &[u8]) -> Result<bpf::Run> {
        let run = self.run("shunt_in", Kind::Tc, frame)?;
        if run.verdict != Kind::Tc.pass() {
            return Ok(run);
        }
        self.run("shunt_out", Kind::Tc, &run.packet)
    }

    pub(crate) fn xdp(&self, frame: &[u8]) -> Result<bpf::Run> {
        self.run("shunt_xdp", Kind::Xdp, frame)
    }
}
