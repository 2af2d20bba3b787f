//! The first packet of the connection on its way, through the programs and the host's routing.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use proxy_common::{
    DropReason,
    maps::{
        backends,
        conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, flags as ct},
        frontends::{ClientClass, ClientRule, Frontend, Kind, flags},
        settings::flags as setting,
    },
    proto,
    tuple::Tuple,
};

use super::{
    answer::{self, Outcome, Step},
    facts::{self, Asked, Facts, Found, Sender, name_of},
    packet,
};
use crate::{
    cli::rows::{Rows, socket},
    dataplane::MapAddr,
    kernel::{DryRun, KernelAddr, Question, Run, XdpMode},
};

/// The packet is not let on.
const SHOT: i32 = 2;
/// The program sends it somewhere itself.
const REDIRECT: i32 = 7;

/// What the way of a packet has shown.
struct Passed<A> {
    steps: Vec<Step>,
    /// The connection's row after the first program, if it made or found one.
    row: Option<CtEntry<A>>,
    /// The packet's ends when it left the last program.
    ends: (SocketAddr, SocketAddr),
    refused: Option<(DropReason, Outcome)>,
    /// What stands in the packet's way outside of our programs.
    stuck: Option<String>,
    /// It is for a process of this host.
    is_here: bool,
}

impl Facts<'_> {
    /// The whole answer.
    pub(super) async fn explain<A: MapAddr + KernelAddr>(
        &self,
        rows: &Rows<A>,
        asked: &Asked,
    ) -> Result<answer::Explanation> {
        let sender = self.sender(rows, asked).await?;
        let dst = A::from_ip(asked.to).context("a destination of another family")?;
        let mut tuple =
            Tuple { src: sender.address, dst, sport: 0, dport: asked.port, proto: asked.protocol };
        tuple.sport = facts::source_port(rows, &tuple, asked.sport)?;
        let found = facts::lookup(rows, &tuple);
        let passed = self.pass(rows, &sender, &tuple).await?;
        Ok(self.tell(rows, &sender, &tuple, &found, passed))
    }

    async fn pass<A: MapAddr + KernelAddr>(
        &self,
        rows: &Rows<A>,
        sender: &Sender<A>,
        tuple: &Tuple<A>,
    ) -> Result<Passed<A>> {
        let mut dry = self.prepare(rows, tuple)?;
        let (from, to) = (socket(tuple.src, tuple.sport), socket(tuple.dst, tuple.dport));
        let mut passed = Passed {
            steps: Vec::new(),
            row: None,
            ends: (from, to),
            refused: None,
            stuck: None,
            is_here: false,
        };
        let Some(device) = sender.device else {
            passed.stuck = Some(format!("this host has no route to {}", to.ip()));
            return Ok(passed);
        };
        let mac = self.devices.get(&device).map(|device| device.mac).unwrap_or_default();
        let frame = packet::build(from, to, tuple.proto, mac)?;
        if sender.class == ClientClass::Node {
            let run = dry.egress(&frame, 0, device)?;
            passed.row = dry.connection(&CtKey::new(tuple, EGRESS))?;
            self.note(&mut passed, &mut dry, "tc-egress", device, &run)?;
            let target = passed.ends.1;
            passed.is_here = self.host.owned().contains(&target.ip());
            return Ok(passed);
        }
        let run = dry.ingress(&frame, device)?;
        passed.row = dry.connection(&CtKey::new(tuple, INGRESS))?;
        self.note(&mut passed, &mut dry, "tc-ingress", device, &run)?;
        let is_dsr = passed.row.is_some_and(|row| row.role == Role::DSR.0);
        if passed.refused.is_some() || is_dsr {
            return Ok(passed);
        }
        self.leave(&mut passed, &mut dry, device, &run).await?;
        Ok(passed)
    }

    /// The live rows that may matter: those of this client, and of whoever shares a backend.
    fn prepare<A: MapAddr + KernelAddr>(&self, rows: &Rows<A>, tuple: &Tuple<A>) -> Result<DryRun> {
        let backends: Vec<A> = match facts::lookup(rows, tuple) {
            Found::Row(_, row) => {
                let ids = [row.cluster, row.local].into_iter().flat_map(|range| rows.slots_of(range));
                ids.filter_map(|id| rows.backends.get(&id)).map(|backend| backend.addr).collect()
            }
            Found::None(_) => Vec::new(),
        };
        let mut concerned: std::collections::HashSet<A> = backends.into_iter().collect();
        concerned.insert(tuple.src);
        let connections: Vec<_> = rows
            .conntrack
            .iter()
            .filter(|(key, _)| concerned.contains(&key.src) || concerned.contains(&key.dst))
            .map(|(key, row)| (*key, *row))
            .collect();
        let affinities: Vec<_> =
            rows.affinity.iter().filter(|(key, _)| key.client == tuple.src).copied().collect();
        let mut dry = DryRun::open(self.pins, connections.len().max(affinities.len()))?;
        dry.enter_connections(&connections)?;
        dry.enter_affinities(&affinities)?;
        Ok(dry)
    }

    /// Reads what a program has made of the packet.
    fn note<A>(
        &self,
        passed: &mut Passed<A>,
        dry: &mut DryRun,
        hook: &'static str,
        device: u32,
        run: &Run,
    ) -> Result<()> {
        let before = passed.ends;
        let row = passed.row.as_ref().map(|row: &CtEntry<A>| row.role);
        let mut step = Step { hook, device: Some(self.port_name(device)), does: String::new(), packet: None };
        if let Some(reason) = dry.refused()? {
            let rejected = run.action != SHOT;
            let outcome = if rejected { Outcome::Rejected } else { Outcome::Dropped };
            passed.refused = Some((reason, outcome));
            step.does = if rejected {
                format!("sends a refusal back to the client: {}", reason.name())
            } else {
                format!("drops the packet: {}", reason.name())
            };
        } else if row == Some(Role::DSR.0) && run.action == REDIRECT {
            step.does = "sends it on, whole and inside another packet, to the backend's node (DSR)".into();
        } else {
            passed.ends = packet::ends(&run.packet)?;
            let after = passed.ends;
            step.does = match (before.0 == after.0, before.1 == after.1) {
                (true, true) => "leaves the packet as it is".into(),
                (true, false) => "rewrites the destination (DNAT)".into(),
                (false, true) => "rewrites the source (SNAT)".into(),
                (false, false) => {
                    "rewrites destination and source, and sends it by the backend's route".into()
                }
            };
            step.packet = (before != after).then_some([after.0, after.1]);
        }
        passed.steps.push(step);
        Ok(())
    }

    /// The host's routing, and the program where the packet leaves.
    async fn leave<A: MapAddr + KernelAddr>(
        &self,
        passed: &mut Passed<A>,
        dry: &mut DryRun,
        came_by: u32,
        run: &Run,
    ) -> Result<()> {
        let (from, to) = passed.ends;
        let master = self.host.links.get(&came_by).and_then(|link| link.master).unwrap_or(came_by);
        let question = Question { to: to.ip(), from: Some(from.ip()), came_by: Some(master) };
        let way = match self.netlink.way(question).await? {
            Some(way) => Some(way),
            // Reverse path filters look at sources that only the asker knows.
            None => self.netlink.way(Question { to: to.ip(), from: None, came_by: None }).await?,
        };
        let mut step = Step { hook: "routing", device: None, does: String::new(), packet: None };
        let Some(way) = way else {
            step.does = format!("knows no way to {}", to.ip());
            passed.stuck = Some(step.does.clone());
            passed.steps.push(step);
            return Ok(());
        };
        if way.is_here {
            step.does = "delivers it to a process of this host".into();
            passed.is_here = true;
            passed.steps.push(step);
            return Ok(());
        }
        step.device = Some(name_of(self.host, way.ifindex));
        step.does = match way.gateway {
            Some(gateway) => format!("sends it to {gateway}"),
            None => "sends it straight there".into(),
        };
        passed.steps.push(step);
        let out = self.port_of(way.ifindex);
        let run = dry.egress(&run.packet, came_by, out)?;
        self.note(passed, dry, "tc-egress", out, &run)
    }

    /// For a port of a bridge that stands for all of them, the bridge.
    fn port_name(&self, device: u32) -> String {
        let link = self.host.links.get(&device);
        let bridge = link.and_then(|link| link.master).filter(|master| self.port_of(*master) == device);
        match bridge {
            Some(bridge) => format!("a port of {}", name_of(self.host, bridge)),
            None => name_of(self.host, device),
        }
    }

    fn tell<A: MapAddr + KernelAddr>(
        &self,
        rows: &Rows<A>,
        sender: &Sender<A>,
        tuple: &Tuple<A>,
        found: &Found<'_, A>,
        passed: Passed<A>,
    ) -> answer::Explanation {
        let known = [INGRESS, EGRESS].iter().find_map(|hook| rows.conntrack.get(&CtKey::new(tuple, *hook)));
        let mut frontend = None;
        let (mut candidates, mut affinity, mut socket_step) = (Vec::new(), None, None);
        let mut rule = ClientRule::default();
        if let Found::Row(key, row) = found {
            rule = ClientRule::of(row.rules, sender.class);
            candidates = facts::candidates(rows, facts::range(row, rule));
            affinity = facts::affinity(rows, row, sender.address, &candidates, self.now);
            let mut view = facts::frontend(self.names, key, row, rule);
            if row.flags & flags::SOURCE_RANGES != 0 {
                let denied = passed.refused.is_some_and(|(reason, _)| reason == DropReason::SourceNotAllowed);
                view.source_ranges_admit = Some(!denied);
            }
            frontend = Some(view);
            socket_step = self.socket(sender, tuple, row, rows);
        }
        let backend = passed.row.as_ref().map(|row| socket(row.dst, row.dport));
        if let Some(row) = &passed.row {
            candidates.iter_mut().for_each(|c| c.chosen = c.backend_id == row.backend);
        }
        let by_socket = socket_step.as_ref().is_some_and(|(_, serves)| *serves);
        let source = passed.row.as_ref().map(|row| {
            let kind = match found {
                Found::Row(_, row) => Kind(row.kind),
                Found::None(_) => Kind::ADDRESS,
            };
            source(&passed, row, tuple, rule, kind, by_socket)
        });
        let verdict = self.verdict(rows, &passed, found, by_socket);
        let mut steps: Vec<Step> = socket_step.map(|(step, _)| step).into_iter().collect();
        steps.extend(self.driver(sender, &passed));
        steps.extend(passed.steps);
        answer::Explanation {
            client: answer::Client {
                address: socket(tuple.src, tuple.sport),
                class: match sender.class {
                    ClientClass::Pod => "pod",
                    ClientClass::Node => "node",
                    ClientClass::External => "external",
                },
                why: sender.why.clone(),
                device: sender.device.map(|device| self.port_name(device)),
            },
            destination: socket(tuple.dst, tuple.dport),
            protocol: proto::name(tuple.proto).unwrap_or("any"),
            no_frontend: match found {
                Found::None(why) => Some(why.clone()),
                Found::Row(..) => None,
            },
            frontend,
            connection: known.map(|row| answer::Connection {
                backend: socket(row.dst, row.dport),
                untouched: [Role::DSR.0, Role::LEAVE.0, Role::PASS.0].contains(&row.role),
                idle_seconds: self.now.saturating_sub(row.last_seen) / 1_000_000_000,
            }),
            affinity,
            candidates,
            steps,
            backend,
            source,
            verdict,
        }
    }

    /// What the hook at `connect` and `sendmsg` does, and whether packets never carry the
    /// frontend's address because of it.
    fn socket<A: MapAddr>(
        &self,
        sender: &Sender<A>,
        tuple: &Tuple<A>,
        row: &Frontend,
        rows: &Rows<A>,
    ) -> Option<(Step, bool)> {
        let (bit, who) = match sender.class {
            ClientClass::Node => (setting::SOCKET_LB_HOST, "processes of the host"),
            _ if sender.is_here => (setting::SOCKET_LB_PODS, "pods of this node"),
            _ => return None,
        };
        let on = self.settings.flags & bit != 0 && tuple.proto != proto::SCTP;
        let rule = ClientRule::of(row.rules, sender.class);
        let is_empty = facts::range(row, rule).len == 0;
        let ranges = row.flags & flags::SOURCE_RANGES != 0 && sender.class != ClientClass::Node;
        let drops = rule.has(ClientRule::DENY) || (is_empty && rule.has(ClientRule::DROP));
        // Packets of the host to its own addresses pass no edge that could drop them.
        let stays_here = sender.class == ClientClass::Node
            && rows.node_addresses.iter().any(|(addr, _)| *addr == tuple.dst);
        let (does, serves) = match () {
            () if !on => (format!("socket LB does not serve {who}; packets are rewritten instead"), false),
            () if ranges => ("left to the packet path: source ranges look at packets".into(), false),
            () if drops && !stays_here => ("left to the packet path, which is silent".into(), false),
            () if tuple.src.is_loopback() => {
                ("a socket bound to loopback is left to the packet path".into(), false)
            }
            () if drops || is_empty => ("makes the call fail: connection refused".into(), true),
            () => (
                "replaces the address by a backend's, so that no packet is rewritten; below is what a pod \
                 that opted out, or a worker of the kernel, meets"
                    .into(),
                true,
            ),
        };
        Some((Step { hook: "socket", device: None, does, packet: None }, serves))
    }

    /// What drivers run before tc does, where the packet only passes through.
    fn driver<A>(&self, sender: &Sender<A>, passed: &Passed<A>) -> Option<Step> {
        let device = sender.device.filter(|_| sender.class != ClientClass::Node)?;
        let status = self.xdp.iter().find(|status| status.ifindex == device)?;
        if status.mode == XdpMode::None || passed.row.is_none() || passed.is_here {
            return None;
        }
        let does = format!(
            "{}: does the steps below at once where the packet leaves by a device that can, else leaves them to tc",
            status.mode.name()
        );
        Some(Step { hook: "xdp", device: Some(status.interface.clone()), does, packet: None })
    }

    fn verdict<A: MapAddr>(
        &self,
        rows: &Rows<A>,
        passed: &Passed<A>,
        found: &Found<'_, A>,
        by_socket: bool,
    ) -> answer::Verdict {
        if let Some((reason, outcome)) = passed.refused {
            return answer::Verdict { outcome, reason: Some(reason.name()), summary: reason.help().into() };
        }
        let of = |outcome, summary| answer::Verdict { outcome, reason: None, summary };
        let Some(row) = passed.row.as_ref().filter(|row| row.role != Role::NONE.0) else {
            let why = match (found, &passed.stuck) {
                (Found::None(why), _) => why.clone(),
                (_, Some(stuck)) if by_socket => {
                    format!("socket LB translates before routing; a packet would be stuck, for {stuck}")
                }
                (_, Some(stuck)) => stuck.clone(),
                _ => "the programs do not take it".into(),
            };
            return of(if by_socket { Outcome::Delivered } else { Outcome::Untouched }, why);
        };
        if row.role == Role::LEAVE.0 {
            let whose = "netfilter has translated this connection since before the agent took over";
            return of(Outcome::Untouched, whose.into());
        }
        if row.role == Role::PASS.0 {
            return of(Outcome::Untouched, "it is a reply to a connection that nobody translates".into());
        }
        let where_ = match rows.backends.get(&row.backend) {
            Some(backend) if backend.flags & backends::flags::LOCAL != 0 => "on this node",
            Some(_) => "on another node",
            None => "that no service has any more: an old connection goes on",
        };
        let backend = socket(row.dst, row.dport);
        match &passed.stuck {
            Some(stuck) => of(Outcome::Dropped, format!("for {backend}, but this host {stuck}")),
            None => of(Outcome::Delivered, format!("{backend} answers, {where_}")),
        }
    }
}

/// Who the backend sees.
fn source<A: MapAddr>(
    passed: &Passed<A>,
    row: &CtEntry<A>,
    tuple: &Tuple<A>,
    rule: ClientRule,
    kind: Kind,
    by_socket: bool,
) -> answer::Source {
    let masquerade = passed.ends.0.ip();
    let hairpin = row.dst == tuple.src;
    let why = match () {
        () if by_socket => "with socket LB the process itself connects to the backend",
        () if row.role == Role::DSR.0 => "the backend's node answers the client itself (DSR)",
        () if row.role == Role::HOST.0 => "the address of the device by which the host reaches the backend",
        () if row.flags & ct::SNAT == 0 && rule.has(ClientRule::LOCAL) => {
            "the policy is Local: the client's own address is kept"
        }
        () if row.flags & ct::SNAT == 0 => "the client's own: its replies come by this node anyway",
        () if passed.is_here => "masquerade is due where packets leave, and this one stays",
        () if hairpin => {
            "a pod that reaches itself must see a foreign address, or it would answer itself past us"
        }
        () if kind == Kind::CLUSTER_IP => {
            "masqueraded: a client outside of the pods' range uses a ClusterIP, or masqueradeAll is on"
        }
        () => "masqueraded: the policy is Cluster, and replies must come back by this node",
    };
    let address = if by_socket { tuple.src.into() } else { masquerade };
    answer::Source { address, why: why.into() }
}
