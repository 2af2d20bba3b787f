//! `shunt trace`: connections as they are opened and refused, told by the programs themselves.

use std::{
    collections::HashMap,
    io::{ErrorKind, Write},
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use jiff::{Timestamp, tz::TimeZone};
use proxy_common::{
    DropReason,
    addr::{Ip4, Ip6},
    maps::{
        events::{Event, Hook, What, flags},
        frontends::Kind,
    },
    proto,
};
use serde::Serialize;

use super::{BpffsArg, rows::Names};
use crate::{
    clock::monotonic_nanos,
    kernel::{EventListener, PinnedMaps, Pins},
};

pub(super) const EXAMPLES: &str = "Examples:
  What is opened and refused, as it happens:
    shunt trace
  Of one service, all its ports:
    shunt trace --service default/web
  Whom a pod asks for DNS:
    shunt trace --address 10.244.1.7 --port 53
  Only what is refused, and why:
    shunt trace --refused
  One event in a hundred, fifty of them:
    shunt trace --sample 100 --count 50
  For programs:
    shunt trace -o json | jq 'select(.hook == \"xdp\")'

Packets that follow in a connection are not told: the programs look at none for the sake of
a trace. One trace runs at a time; it costs nothing once it has ended.";

/// `shunt trace`
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Only of this service: NAMESPACE/NAME, or NAMESPACE/NAME:PORTNAME.
    #[arg(long, value_name = "SERVICE")]
    pub service: Option<String>,
    /// Only with this address: the client's, the frontend's, the backend's or the node's.
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<IpAddr>,
    /// Only with this port, on either side, before or after rewriting.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Only of this protocol.
    #[arg(long, value_name = "PROTOCOL", ignore_case = true, value_parser = ["tcp", "udp", "sctp"])]
    pub protocol: Option<String>,
    /// Only what is refused.
    #[arg(long)]
    pub refused: bool,
    /// One event in so many, by chance.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub sample: u32,
    /// End after so many events.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// End after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub duration: Option<u64>,
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: TraceOutput,
    /// Where the maps are.
    #[command(flatten)]
    pub bpffs: BpffsArg,
}

/// How events are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TraceOutput {
    /// A line each.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

/// Listens until it is interrupted, the reader goes away, or it has seen enough.
pub fn run(args: &TraceArgs) -> Result<ExitCode> {
    let pins = Pins::new(&args.bpffs.bpffs);
    let maps = PinnedMaps::open(pins.clone())?;
    let mut reader = Reader::new(maps)?;
    let services = match &args.service {
        Some(name) => Some(reader.services_called(name)?),
        None => None,
    };
    // The programs themselves tell services apart if it is but one.
    let only = services.as_deref().map_or(0, |ids| if let [id] = ids { *id } else { 0 });
    let mut listener = EventListener::start(&pins, args.sample, only)?;
    let end = args.duration.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut out = std::io::stdout().lock();
    while left > 0 && end.is_none_or(|end| Instant::now() < end) {
        let Some(event) = listener.next(Duration::from_millis(200))? else { continue };
        if services.as_ref().is_some_and(|ids| !ids.contains(&event.service)) {
            continue;
        }
        let view = reader.view(&event);
        if !view.passes(args) {
            continue;
        }
        left -= 1;
        let line = match args.output {
            TraceOutput::Text => view.line(),
            TraceOutput::Json => serde_json::to_string(&view).context("cannot write JSON")?,
        };
        match writeln!(out, "{line}").and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            result => result.context("cannot write to standard output")?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One event, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    /// When, in RFC 3339.
    pub time: String,
    /// `opened`, `masqueraded` or `refused`.
    pub event: &'static str,
    /// `ingress`, `egress`, `xdp`, `connect` or `sendmsg`.
    pub hook: &'static str,
    /// The interface whose hook it was.
    pub interface: Option<String>,
    /// The process that called, and its name, at the socket hooks.
    pub process: Option<String>,
    /// TCP, UDP or SCTP.
    pub protocol: &'static str,
    /// The packet's source; a socket may have none yet.
    pub source: Option<SocketAddr>,
    /// The packet's destination.
    pub destination: SocketAddr,
    /// Namespace, name and port name.
    pub service: Option<String>,
    /// Which face of the service the destination is.
    pub frontend: Option<&'static str>,
    /// The source after rewriting.
    pub new_source: Option<SocketAddr>,
    /// The destination after rewriting.
    pub new_destination: Option<SocketAddr>,
    /// `dnat`, `snat`, `dnat+snat`, `dsr`, `socket`, or `drop`.
    pub verdict: &'static str,
    /// Why it was refused.
    pub reason: Option<&'static str>,
    /// The same in a sentence.
    pub meaning: Option<&'static str>,
}

impl EventView {
    fn passes(&self, args: &TraceArgs) -> bool {
        let sockets = [self.source, Some(self.destination), self.new_source, self.new_destination];
        let any = |test: &dyn Fn(SocketAddr) -> bool| sockets.iter().flatten().any(|socket| test(*socket));
        args.address.is_none_or(|address| any(&|socket| socket.ip() == address))
            && args.port.is_none_or(|port| any(&|socket| socket.port() == port))
            && args.protocol.as_ref().is_none_or(|name| self.protocol.eq_ignore_ascii_case(name))
            && (!args.refused || self.event == "refused")
    }

    fn line(&self) -> String {
        let show = |socket: Option<SocketAddr>| socket.map_or_else(|| "*".to_owned(), |s| s.to_string());
        let place = self.interface.as_deref().or(self.process.as_deref()).unwrap_or("-");
        let mut line = format!(
            "{} {:<7} {:<12} {:<4} {} -> {}",
            self.time,
            self.hook,
            place,
            self.protocol,
            show(self.source),
            self.destination
        );
        if let (Some(service), frontend) = (&self.service, self.frontend.unwrap_or("")) {
            line = format!("{line} {service} {frontend}").trim_end().to_owned();
        }
        match (self.reason, self.new_destination) {
            (Some(reason), _) => format!("{line}: refused, {reason}"),
            (None, Some(to)) if self.new_source == self.source => format!("{line}: {} {to}", self.verdict),
            (None, Some(to)) => format!("{line}: {} {} -> {to}", self.verdict, show(self.new_source)),
            (None, None) => format!("{line}: {}", self.verdict),
        }
    }
}

/// Turns events into words.
struct Reader {
    maps: PinnedMaps,
    names: Names,
    interfaces: HashMap<u32, String>,
    /// What the clock of events has to be added to, in nanoseconds since 1970.
    epoch: i128,
}

impl Reader {
    fn new(maps: PinnedMaps) -> Result<Self> {
        let names = Names::read(&maps, false)?;
        let monotonic = monotonic_nanos().context("cannot read the clock")?;
        let epoch = Timestamp::now().as_nanosecond() - i128::from(monotonic);
        Ok(Self { maps, names, interfaces: HashMap::new(), epoch })
    }

    /// The ids of a service's ports.
    fn services_called(&self, wanted: &str) -> Result<Vec<u32>> {
        let rows = self.maps.services()?;
        let of_wanted = |name: &str| {
            name == wanted || name.strip_prefix(wanted).is_some_and(|rest| rest.starts_with(':'))
        };
        let ids: Vec<u32> = rows.iter().filter(|(_, row)| of_wanted(row.name())).map(|(id, _)| *id).collect();
        if ids.is_empty() {
            bail!("no service is called {wanted}; `shunt service list` shows those there are");
        }
        Ok(ids)
    }

    fn view(&mut self, event: &Event) -> EventView {
        if event.service != 0 && !self.names.knows(event.service) {
            // It came after we did.
            self.names = Names::read(&self.maps, false).unwrap_or_default();
        }
        let socket = |words: &[u32; 4], port: u16| SocketAddr::new(address(event.family, words), port);
        let given = |socket: SocketAddr| (!socket.ip().is_unspecified()).then_some(socket);
        let refused = event.what == What::REFUSED.0;
        let at_socket = [Hook::CONNECT, Hook::SEND].contains(&Hook(event.hook));
        let source = if at_socket { None } else { given(socket(&event.src, event.ports[0])) };
        let (new_source, new_destination) = match (refused, at_socket) {
            (true, _) => (None, None),
            (false, true) => (None, Some(socket(&event.to_dst, event.to_ports[1]))),
            (false, false) => (
                given(socket(&event.to_src, event.to_ports[0])),
                Some(socket(&event.to_dst, event.to_ports[1])),
            ),
        };
        let reason = DropReason::ALL.get(event.reason as usize).filter(|_| refused);
        EventView {
            time: self.time(event.time),
            event: match What(event.what) {
                What::OPENED => "opened",
                What::MASQUERADED => "masqueraded",
                What::REFUSED => "refused",
                _ => "unknown",
            },
            hook: Hook(event.hook).name(),
            interface: (event.ifindex != 0).then(|| self.interface(event.ifindex)),
            process: at_socket.then(|| process(event.pid)),
            protocol: proto::name(event.proto).unwrap_or("unknown"),
            source,
            destination: socket(&event.dst, event.ports[1]),
            service: (event.service != 0).then(|| self.names.of(event.service)),
            frontend: (event.kind != 0).then(|| Kind(event.kind).name()),
            new_source,
            new_destination,
            verdict: verdict(event, at_socket),
            reason: reason.map(|reason| reason.name()),
            meaning: reason.map(|reason| reason.help()),
        }
    }

    fn time(&self, monotonic: u64) -> String {
        let stamp = Timestamp::from_nanosecond(self.epoch + i128::from(monotonic)).unwrap_or_default();
        stamp.to_zoned(TimeZone::UTC).strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
    }

    fn interface(&mut self, index: u32) -> String {
        let name = || crate::kernel::interface_name(index).unwrap_or_else(|| format!("#{index}"));
        self.interfaces.entry(index).or_insert_with(name).clone()
    }
}

fn address(family: u8, words: &[u32; 4]) -> IpAddr {
    if family == 4 {
        return Ip4 { octets: words[0].to_ne_bytes() }.into();
    }
    let mut octets = [0; 16];
    for (bytes, word) in octets.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    Ip6 { octets }.into()
}

/// Name and number of a process; the name of one that has ended is not known any more.
fn process(pid: u32) -> String {
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("{}[{pid}]", name.trim_end()),
        Err(_) => format!("[{pid}]"),
    }
}

fn verdict(event: &Event, at_socket: bool) -> &'static str {
    match What(event.what) {
        What::REFUSED => "drop",
        What::MASQUERADED => "snat",
        _ if event.flags & flags::DSR != 0 => "dsr",
        _ if at_socket => "socket",
        _ if event.flags & flags::SNAT != 0 => "dnat+snat",
        _ => "dnat",
    }
}
