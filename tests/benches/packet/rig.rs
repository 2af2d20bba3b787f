//! The programs, and a network whose routes they can ask for.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use anyhow::Result;
use proxy_common::maps::{
    frontends::{Frontend, FrontendKey},
    settings::flags::HANDOVER,
};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore},
    kernel::KernelAddr,
};
use tests::netns::Namespace;

use crate::{
    bench::{Bench, Plan, plans, v4_of, v6_of},
    bpf::{self, Info, Kind},
    cases::{Case, Family, Hook, LASTING, Subject},
    uplink::Uplink,
};

/// Enough for every connection of a case, and those that hold source ports.
const CONNTRACK: u32 = 131_072;
/// Test runs of tc programs pass this device.
const LOOPBACK: u32 = 1;

/// The programs, ready for all cases.
pub(crate) struct Rig {
    bench: Bench,
    tc_noop: OwnedFd,
    xdp_noop: OwnedFd,
    route_v4: OwnedFd,
    route_v6: OwnedFd,
    uplink: Uplink,
}

impl Rig {
    /// Everything in `namespace`, where the calling thread is.
    pub(crate) fn new(namespace: &Namespace) -> Result<Self> {
        let uplink = Uplink::new(namespace)?;
        // A frame that was forwarded comes in again as one for this node.
        namespace.ip("neighbour replace 192.168.0.9 lladdr 02:00:00:00:00:02 dev uplink nud permanent
            neighbour replace 2001:db8::9 lladdr 02:00:00:00:00:02 dev uplink nud permanent")?;
        let (tc_noop, xdp_noop) = (bpf::noop(Kind::Tc)?, bpf::noop(Kind::Xdp)?);
        let mut bench = Bench::with_conntrack(CONNTRACK);
        let [v4, v6] = plans();
        let (route_v4, route_v6) =
            (bpf::route(v4.backend, uplink.ifindex)?, bpf::route(v6.backend, uplink.ifindex)?);
        let device = Uplink::device();
        bench.maps.replace_devices(&[(LOOPBACK, device), (uplink.ifindex, device)])?;
        admit(bench.maps.v4(), &v4, v4_of)?;
        admit(bench.maps.v6(), &v6, v6_of)?;
        Ok(Self { bench, tc_noop, xdp_noop, route_v4, route_v6, uplink })
    }

    /// All cases, with the rows they need.
    pub(crate) fn cases(&mut self) -> Result<Vec<Case>> {
        let [v4, v6] = plans();
        let (map, filter) = (self.map("conntrack_v4")?, self.map("address_filter_v4")?);
        let four = Family { name: "IPv4", plan: v4, addr: v4_of, map, filter };
        let (map, filter) = (self.map("conntrack_v6")?, self.map("address_filter_v6")?);
        let six = Family { name: "IPv6", plan: v6, addr: v6_of, map, filter };
        self.bench.maps.v4().put_conntrack(&four.held_ports())?;
        self.bench.maps.v6().put_conntrack(&six.held_ports())?;
        let mut cases = Vec::new();
        for hook in [Hook::Ingress, Hook::Egress, Hook::Xdp] {
            cases.extend(four.cases(hook)?);
            cases.extend(six.cases(hook)?);
        }
        Ok(cases)
    }

    fn map(&self, name: &str) -> Result<OwnedFd> {
        Ok(bpf::open(&self.bench.pins.map(name))?)
    }

    fn shunt(&self, hook: Hook) -> Result<BorrowedFd<'_>> {
        Ok(self.bench.datapath.program(hook.program())?)
    }

    /// The program that a case measures.
    pub(crate) fn program(&self, case: &Case) -> Result<BorrowedFd<'_>> {
        Ok(match case.subject {
            Subject::Shunt => self.shunt(case.hook)?,
            Subject::Route if case.family == "IPv4" => self.route_v4.as_fd(),
            Subject::Route => self.route_v6.as_fd(),
        })
    }

    pub(crate) fn noop(&self, hook: Hook) -> BorrowedFd<'_> {
        match hook.kind() {
            Kind::Tc => self.tc_noop.as_fd(),
            Kind::Xdp => self.xdp_noop.as_fd(),
        }
    }

    /// Rows that lead to and fro have no pairs: as while maps are replaced, nobody is to miss those. Only then
    /// does no connection give its port away.
    pub(crate) fn prepare(&mut self, case: &Case) {
        self.bench.set_flag(HANDOVER, !case.is_dense);
    }

    /// Deletes the rows of connections that measuring has opened. Cases open the same ones, and
    /// masquerading takes longer the more ports are taken.
    pub(crate) fn forget_new_connections(&mut self) -> Result<()> {
        forget(self.bench.maps.v4())?;
        forget(self.bench.maps.v6())
    }

    /// The device that test runs at a hook pass.
    pub(crate) fn ifindex(&self, hook: Hook) -> u32 {
        if hook == Hook::Xdp { self.uplink.ifindex } else { LOOPBACK }
    }

    /// The packet as the program of the case meets it.
    pub(crate) fn packet(&self, case: &Case, round: u32, number: u16) -> Result<Vec<u8>> {
        let packet = case.arriving(round, number);
        if !case.after_ingress {
            return Ok(packet);
        }
        let program = self.shunt(Hook::Ingress)?;
        Ok(bpf::run(program, Kind::Tc, &packet, LOOPBACK, 1)?.packet)
    }

    /// The sizes of the programs that see every packet.
    pub(crate) fn programs(&self) -> Result<BTreeMap<&'static str, Info>> {
        let hooks = [Hook::Ingress, Hook::Egress, Hook::Xdp];
        hooks.into_iter().map(|hook| Ok((hook.program(), bpf::info(self.shunt(hook)?)?))).collect()
    }
}

/// Packets that go back to what they were are addressed to backends and clients, at which the
/// programs would not look twice if these had no frontend.
fn admit<A: KernelAddr>(maps: &mut impl FamilyMaps<A>, plan: &Plan, addr: fn(IpAddr) -> A) -> Result<()> {
    let key = |ip| FrontendKey { addr: addr(ip), port: 1, proto: 6, pad: 0 };
    let rows = [plan.backend, plan.pod, plan.outside].map(|ip| (key(ip), Frontend::default()));
    Ok(maps.put_frontends(&rows)?)
}

fn forget<A: KernelAddr>(maps: &mut impl FamilyMaps<A>) -> Result<()> {
    let mut new = Vec::new();
    maps.each_conntrack(&mut |key, row| new.extend((row.service != LASTING).then_some(*key)))?;
    Ok(maps.delete_conntrack(&new)?)
}
