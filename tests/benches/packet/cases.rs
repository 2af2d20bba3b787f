//! What is measured: programs, packets, and the rows they meet.
//!
//! What a run changes in its packet, the next repetition sees. A translated packet therefore
//! goes to and fro between two rows that undo each other, and every repetition is a hit.

use std::{
    fmt,
    net::IpAddr,
    os::fd::{AsFd as _, OwnedFd},
};

use anyhow::Result;
use proxy_common::{
    Tuple, checksum, hash,
    maps::{
        address_filter::{
            Cell,
            flags::{BACKEND, CLIENT, NODE},
        },
        conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, flags},
    },
};
use proxy_userspace::kernel::KernelAddr;

use crate::{
    bench::{BACKEND_PORT, NODE_PORT, Plan, SERVICE_PORT, SNAT_PORTS},
    bpf::{self, Kind},
    frames::{ACK, Flow, SYN, frame},
};

/// The port of the measured connection.
const PORT: u16 = 40000;
/// A port that the datapath might have chosen for it.
const SNAT_PORT: u16 = 20000;

/// Of VXLAN (RFC 7348 §5).
const TUNNEL_PORT: u16 = 4789;

const XDP_TX: i32 = 3;

/// Where a program stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Ingress,
    Egress,
    Xdp,
}

impl Hook {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ingress => "tc in",
            Self::Egress => "tc out",
            Self::Xdp => "xdp",
        }
    }

    pub(crate) fn kind(self) -> Kind {
        if self == Self::Xdp { Kind::Xdp } else { Kind::Tc }
    }

    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Ingress => "shunt_in",
            Self::Egress => "shunt_out",
            Self::Xdp => "shunt_xdp",
        }
    }
}

/// Source ports that are held where they are scarce.
pub(crate) const HELD: u32 = 28_000;

/// The service of rows that stay from round to round.
pub(crate) const LASTING: u32 = u32::MAX;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The product's program.
    Shunt,
    /// The kernel's part of forwarding, to compare with.
    Route,
}

/// The packets of a case.
#[derive(Clone, Debug)]
pub(crate) enum Packets {
    /// One, time and again.
    Same(Flow),
    /// One per connection, from ever new ports and clients.
    New(Flow),
}

/// One line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) hook: Hook,
    pub(crate) subject: Subject,
    pub(crate) family: &'static str,
    pub(crate) what: &'static str,
    pub(crate) packets: Packets,
    tcp_flags: u8,
    /// The ingress program has its turn first, unmeasured.
    pub(crate) after_ingress: bool,
    /// Connections that last hold [`HELD`] source ports towards the backend.
    pub(crate) is_dense: bool,
    /// Verdicts and packets of the first runs, each on the result of the one before. Source port 0
    /// stands for any source.
    pub(crate) becomes: Vec<(i32, Flow)>,
}

impl Case {
    pub(crate) fn matches(&self, filter: &str) -> bool {
        self.to_string().contains(filter)
    }

    /// As the table shows it.
    pub(crate) fn name(&self) -> String {
        let mark = if matches!(self.packets, Packets::New(_)) { "*" } else { "" };
        format!("{} {}{mark}", self.family, self.what)
    }

    /// The same where the packet leaves by the device it came in by.
    fn sent(self) -> Self {
        let becomes = self.becomes.into_iter().map(|(_, flow)| (XDP_TX, flow)).collect();
        Self { becomes, ..self }
    }

    /// The packet as it arrives at the node; each number of each round is another connection
    /// where packets are new.
    pub(crate) fn arriving(&self, round: u32, number: u16) -> Vec<u8> {
        let flow = match self.packets {
            Packets::Same(flow) => flow,
            Packets::New(flow) => {
                let port = flow.src.1 - number;
                Flow { src: (nth_neighbour(flow.src.0, round), port), ..flow }
            }
        };
        with_all_hops(frame(flow, self.tcp_flags))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.hook.name(), self.name())
    }
}

/// The frame with as many hops to go as there can be.
fn with_all_hops(mut frame: Vec<u8>) -> Vec<u8> {
    const IP: usize = 14;
    if frame[IP] >> 4 == 6 {
        frame[IP + 7] = u8::MAX;
        return frame;
    }
    frame[IP + 8] = u8::MAX;
    frame[IP + 10..IP + 12].fill(0);
    let sum = !checksum::fold(checksum::sum(&frame[IP..IP + 20], 0));
    frame[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// An address whose last byte but one is `n` further on.
fn nth_neighbour(addr: IpAddr, n: u32) -> IpAddr {
    match addr {
        IpAddr::V4(addr) => IpAddr::V4((addr.to_bits() + (n << 8)).into()),
        IpAddr::V6(addr) => IpAddr::V6((addr.to_bits() + (u128::from(n) << 8)).into()),
    }
}

/// One address family: its addresses, and how they are written.
pub(crate) struct Family<A> {
    pub(crate) name: &'static str,
    pub(crate) plan: Plan,
    pub(crate) addr: fn(IpAddr) -> A,
    /// Its connections.
    pub(crate) map: OwnedFd,
    /// Addresses that are not passed over.
    pub(crate) filter: OwnedFd,
}

impl<A: KernelAddr> Family<A> {
    /// The cases of a hook, with the rows they need.
    pub(crate) fn cases(&self, hook: Hook) -> Result<Vec<Case>> {
        let Plan { pod, outside, node, cluster_ip, stranger, backend, .. } = self.plan;
        let (backend, cluster) = ((backend, BACKEND_PORT), (cluster_ip, SERVICE_PORT));
        let frontend = cluster;
        let (pod, outside) = ((pod, PORT), (outside, PORT));
        let (node_port, masked) = ((node, NODE_PORT), (node, SNAT_PORT));
        let other = Flow::tcp(pod, (stranger, SERVICE_PORT));
        let (hidden, shown) = (Flow::tcp(outside, backend), Flow::tcp(masked, backend));
        let strange = self.same(hook, "not a service's", other, other);
        let tunnelled = self.tunnelled(hook)?;
        Ok(match hook {
            Hook::Ingress => {
                let (to, inside) = (Flow::tcp(pod, frontend), Flow::tcp(pod, backend));
                let (back, unmasked) = (shown.reversed(), hidden.reversed());
                vec![
                    strange,
                    tunnelled,
                    self.hit(hook, "DNAT", Role::DNAT, to, inside)?,
                    self.hit(hook, "reply, SNAT undone", Role::REV_SNAT, back, unmasked)?,
                    self.opening(hook, "new connection", to, inside),
                    self.opening(hook, "new connection to masquerade", Flow::tcp(outside, node_port), hidden),
                ]
            }
            Hook::Egress => {
                let (reply, back) = (Flow::tcp(backend, pod), Flow::tcp(frontend, pod));
                let first =
                    self.opening(hook, "first packet to masquerade", Flow::tcp(outside, node_port), shown);
                let (datagram, sent) = (Flow::udp(outside, node_port), Flow::udp(masked, backend));
                let dense = self.opening(hook, "the same, 28,000 ports held", datagram, sent);
                vec![
                    strange,
                    tunnelled,
                    self.hit(hook, "SNAT", Role::SNAT, hidden, shown)?,
                    self.hit(hook, "reply, DNAT undone", Role::REV_DNAT, reply, back)?,
                    Case { after_ingress: true, ..first },
                    Case { after_ingress: true, is_dense: true, ..dense },
                ]
            }
            Hook::Xdp => {
                let to = Flow::tcp(outside, frontend);
                // Each way is two rows, one for what the stack would see and one for what leaves.
                let there = [(INGRESS, Role::DNAT, to, hidden), (EGRESS, Role::SNAT, hidden, shown)];
                let inside = Flow::tcp(masked, frontend);
                let back = [(INGRESS, Role::DNAT, shown, inside), (EGRESS, Role::SNAT, inside, to)];
                let forward = self.forward("DNAT, SNAT, routed", [there, back])?;
                // The other half of a connection whose first half is above would be in the way.
                let (masked, frontend) = ((pod.0, SNAT_PORT + 1), (frontend.0, NODE_PORT));
                let (reply, unmasked) = (Flow::tcp(backend, masked), Flow::tcp(backend, outside));
                let (answer, away) = (Flow::tcp(frontend, outside), Flow::tcp(frontend, masked));
                let there =
                    [(INGRESS, Role::REV_SNAT, reply, unmasked), (EGRESS, Role::REV_DNAT, unmasked, answer)];
                let back = [(INGRESS, Role::REV_SNAT, answer, away), (EGRESS, Role::REV_DNAT, away, reply)];
                let reply = self.forward("reply, both undone, routed", [there, back])?;
                let plain = self.opening(
                    hook,
                    "new connection, routed",
                    Flow::tcp(pod, cluster),
                    Flow::tcp(pod, backend),
                );
                let masked =
                    self.opening(hook, "new connection, SNAT, routed", Flow::tcp(outside, node_port), shown);
                let route = Case { subject: Subject::Route, what: "a route lookup alone", ..strange.clone() };
                vec![route, strange, tunnelled, forward, reply, plain.sent(), masked.sent()]
            }
        })
    }

    /// A packet between this node and another, on both of which there are backends and clients.
    fn tunnelled(&self, hook: Hook) -> Result<Case> {
        let [own, other] = [100, 101].map(|number| nth_neighbour(self.plan.node, number));
        for (addr, bits) in [(own, NODE | BACKEND | CLIENT), (other, BACKEND | CLIENT)] {
            let Cell { word, shift } = Cell::of(&(self.addr)(addr));
            bpf::put(self.filter.as_fd(), &word, &(bits << shift))?;
        }
        let (from, to) = if hook == Hook::Egress { (own, other) } else { (other, own) };
        let flow = Flow::udp((from, PORT), (to, TUNNEL_PORT));
        Ok(self.same(hook, "of a tunnel", flow, flow))
    }

    /// A packet that is the same after every run, or after every second.
    fn same(&self, hook: Hook, what: &'static str, one: Flow, other: Flow) -> Case {
        let pass = hook.kind().pass();
        Case {
            hook,
            subject: Subject::Shunt,
            family: self.name,
            what,
            packets: Packets::Same(one),
            tcp_flags: ACK,
            after_ingress: false,
            is_dense: false,
            becomes: vec![(pass, other), (pass, one)],
        }
    }

    /// A packet of a known connection, with rows from one tuple to the other and back.
    fn hit(&self, hook: Hook, what: &'static str, role: Role, one: Flow, other: Flow) -> Result<Case> {
        let at = if hook == Hook::Egress { EGRESS } else { INGRESS };
        self.put(at, one, self.row(role, other))?;
        self.put(at, other, self.row(role, one))?;
        Ok(self.same(hook, what, one, other))
    }

    /// A packet that is translated twice and sent on, with the rows of both ways.
    fn forward(&self, what: &'static str, ways: [[(u8, Role, Flow, Flow); 2]; 2]) -> Result<Case> {
        for [(hook, role, from, step), (next_hook, next_role, _, to)] in ways {
            let mut first = self.row(role, step);
            first.flags = flags::SNAT;
            first.other_addr = (self.addr)(to.src.0);
            first.other_port = to.src.1;
            first.other_client_port = if role == Role::REV_SNAT { to.dst.1 } else { 0 };
            self.put(hook, from, first)?;
            self.put(next_hook, step, CtEntry { flags: flags::SNAT, ..self.row(next_role, to) })?;
        }
        let [[(_, _, one, _), (_, _, _, other)], _] = ways;
        Ok(self.same(Hook::Xdp, what, one, other).sent())
    }

    fn opening(&self, hook: Hook, what: &'static str, flow: Flow, becomes: Flow) -> Case {
        let pass = hook.kind().pass();
        Case {
            packets: Packets::New(flow),
            tcp_flags: SYN,
            becomes: vec![(pass, Flow { src: (becomes.src.0, 0), ..becomes })],
            ..self.same(hook, what, flow, flow)
        }
    }

    /// What leads to `to`.
    fn row(&self, role: Role, to: Flow) -> CtEntry<A> {
        let mut row = CtEntry { role: role.0, service: LASTING, ..CtEntry::default() };
        row.set_target(&self.tuple(to));
        row
    }

    fn put(&self, hook: u8, from: Flow, row: CtEntry<A>) -> Result<()> {
        let tuple = self.tuple(from);
        // To and fro, each address is now a frontend's, now a backend's.
        for addr in [&tuple.src, &tuple.dst] {
            bpf::put(self.filter.as_fd(), &Cell::of(addr).word, &u64::MAX)?;
        }
        let key = CtKey::new(&tuple, hook);
        Ok(bpf::put(self.map.as_fd(), &key, &row.at(&key))?)
    }

    /// The rows of datagrams that last and hold source ports towards the backend, scattered over the range.
    pub(crate) fn held_ports(&self) -> Vec<(CtKey<A>, CtEntry<A>)> {
        let (backend, count) = ((self.plan.backend, BACKEND_PORT), SNAT_PORTS.len() as u32);
        let mut held: Vec<_> = (0..count).collect();
        held.sort_by_cached_key(|place| {
            hash::keyed(&[1, 2], &Tuple { sport: *place as u16, ..Tuple::<A>::default() })
        });
        held.truncate(HELD as usize);
        let mut rows = Vec::with_capacity(2 * HELD as usize);
        for place in held {
            let client = (nth_neighbour(self.plan.stranger, place >> 8), 1 + (place & 0xff) as u16);
            let inside = Flow::udp(client, backend);
            let wire = Flow::udp((self.plan.node, SNAT_PORTS.start + place as u16), backend);
            rows.push(self.lasting(EGRESS, Role::SNAT, inside, wire));
            rows.push(self.lasting(INGRESS, Role::REV_SNAT, wire.reversed(), inside.reversed()));
        }
        rows
    }

    fn lasting(&self, hook: u8, role: Role, from: Flow, to: Flow) -> (CtKey<A>, CtEntry<A>) {
        let row = CtEntry { flags: flags::SNAT | flags::LASTING, ..self.row(role, to) };
        (CtKey::new(&self.tuple(from), hook), row)
    }

    fn tuple(&self, flow: Flow) -> Tuple<A> {
        let Flow { proto, src, dst } = flow;
        Tuple { src: (self.addr)(src.0), dst: (self.addr)(dst.0), sport: src.1, dport: dst.1, proto }
    }
}
