//! What must hold of any packet and what a program made of it, whatever the packet is.

use anyhow::{Result, ensure};
use proxy_common::{
    Ip4, Ip6, checksum,
    crc32c::crc32c,
    packet::{Slice, Wire, parse},
    proto,
};

use crate::bpf::{Kind, Run};

/// The packet went on as it came.
pub(crate) const UNTOUCHED: &str = "untouched";

/// Where a packet meets a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hook {
    Ingress,
    Egress,
    Xdp,
}

impl Hook {
    pub(crate) const ALL: [Self; 3] = [Self::Ingress, Self::Egress, Self::Xdp];

    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Ingress => "shunt_in",
            Self::Egress => "shunt_out",
            Self::Xdp => "shunt_xdp",
        }
    }

    pub(crate) fn kind(self) -> Kind {
        if self == Self::Xdp { Kind::Xdp } else { Kind::Tc }
    }
}

const TC_DROP: i32 = 2;
const TC_REDIRECT: i32 = 7;
const XDP_TX: i32 = 3;

/// What the parser says of a frame.
#[derive(Clone, Copy)]
struct Reading {
    is_v4: bool,
    ip: usize,
    proto: u8,
    transport: usize,
    /// Where the transport ends, and padding may begin.
    end: usize,
    is_fragment: bool,
    /// Its ports can be read.
    has_ports: bool,
}

impl Reading {
    fn header(&self) -> usize {
        if self.is_v4 { 20 } else { 40 }
    }
}

fn read(frame: &[u8]) -> Option<Reading> {
    let tagged = frame[12..14] == [0x81, 0x00];
    let ether_type = if tagged { frame.get(16..18)? } else { &frame[12..14] };
    match (ether_type, tagged) {
        ([0x08, 0x00], false) => read_as::<Ip4, 14>(frame),
        ([0x08, 0x00], true) => read_as::<Ip4, 18>(frame),
        ([0x86, 0xdd], false) => read_as::<Ip6, 14>(frame),
        ([0x86, 0xdd], true) => read_as::<Ip6, 18>(frame),
        _ => None,
    }
}

fn read_as<A: Wire, const L2_LEN: usize>(frame: &[u8]) -> Option<Reading> {
    let bytes = Slice::<L2_LEN>(frame);
    let found = A::transport(&bytes)?;
    Some(Reading {
        is_v4: A::VERSION == 4,
        ip: L2_LEN,
        proto: found.proto,
        transport: found.offset,
        end: found.offset + found.len as usize,
        is_fragment: found.is_fragment(),
        has_ports: parse(&bytes, found).is_some(),
    })
}

/// Judges a run, of which `counted` drops were counted. Returns what became of the packet.
pub(crate) fn judge(hook: Hook, frame: &[u8], run: &Run, counted: u64) -> Result<&'static str> {
    let reading = read(frame);
    let has_fragment = reading.is_some_and(|reading| {
        let inner = read(&without_outer(frame, &reading));
        reading.is_fragment || inner.is_some_and(|inner| inner.is_fragment)
    });
    let outcome = match (hook.kind(), run.verdict) {
        (kind, verdict) if verdict == kind.pass() => {
            // A fragment that could not be held is counted and goes on.
            ensure!(counted == 0 || has_fragment, "goes on, but {counted} counted");
            if run.packet == frame { UNTOUCHED } else { "translated" }
        }
        (Kind::Tc, TC_DROP) => {
            // A fragment that is held for its first is not lost.
            ensure!(counted == 1 || has_fragment, "dropped, and {counted} counted");
            "dropped"
        }
        (Kind::Tc, TC_REDIRECT) => {
            ensure!(counted <= 1, "one packet, {counted} counted");
            if counted == 1 { "answered with a refusal" } else { "sent elsewhere" }
        }
        (Kind::Xdp, XDP_TX) => "forwarded",
        (_, verdict) => anyhow::bail!("verdict {verdict}"),
    };
    ensure!(hook != Hook::Xdp || counted == 0, "XDP counted a drop");
    ensure!(hook != Hook::Xdp || outcome != "translated", "changed, and left to the stack");
    if outcome == UNTOUCHED {
        return Ok(outcome);
    }
    let Some(reading) = reading else { anyhow::bail!("{outcome}, but not understood") };
    match outcome {
        "translated" | "forwarded" => resized(hook, frame, &run.packet, &reading)?,
        "answered with a refusal" => {
            // The answer is made of the packet's own header: what was wrong in there stays wrong.
            let good = is_well_formed(&run.packet) || !is_well_formed(frame);
            ensure!(good, "a spoilt answer: {:02x?}", run.packet);
        }
        _ => {}
    }
    Ok(outcome)
}

/// The frame without its IP header, in case that is an outer one.
fn without_outer(frame: &[u8], reading: &Reading) -> Vec<u8> {
    [&frame[..reading.ip], &frame[reading.ip + reading.header()..]].concat()
}

/// Compares what is left when an outer header that was put on or taken off is set aside.
fn resized(hook: Hook, before: &[u8], after: &[u8], reading: &Reading) -> Result<()> {
    let header = reading.header();
    if after.len() + header == before.len() {
        let before = without_outer(before, reading);
        let Some(reading) = read(&before) else { anyhow::bail!("taken out, but not understood") };
        return compare(hook, &before, after, &reading);
    }
    if before.len() + header == after.len() {
        ensure!(is_well_formed(after), "a spoilt outer header: {after:02x?}");
        return compare(hook, before, &without_outer(after, reading), reading);
    }
    ensure!(before.len() == after.len(), "{} bytes have become {}", before.len(), after.len());
    compare(hook, before, after, reading)
}

/// The packet kept its length: only what translation changes may differ, and sums that were
/// right stay right, wrong ones as wrong.
fn compare(hook: Hook, before: &[u8], after: &[u8], reading: &Reading) -> Result<()> {
    let Reading { is_v4, ip, proto, transport, end, .. } = *reading;
    let is_icmp = proto == proto::ICMP || proto == proto::ICMPV6;
    ensure!(reading.has_ports || reading.is_fragment || is_icmp, "changed, but has no ports");
    let mut allowed = vec![if is_v4 { ip + 10..ip + 20 } else { ip + 8..ip + 40 }];
    if hook == Hook::Xdp {
        allowed.extend([0..12, if is_v4 { ip + 8..ip + 9 } else { ip + 7..ip + 8 }]);
    }
    if is_icmp {
        allowed.push(transport..end);
    } else if reading.has_ports {
        allowed.push(transport..transport + 4);
        allowed.push(match proto {
            proto::TCP => transport + 16..transport + 18,
            proto::UDP => transport + 6..transport + 8,
            _ => transport + 8..transport + 12,
        });
    }
    for (at, (old, new)) in before.iter().zip(after).enumerate() {
        ensure!(
            old == new || allowed.iter().any(|range| range.contains(&at)),
            "byte {at}: {old:02x} → {new:02x}"
        );
    }
    if is_v4 {
        let sum = |bytes: &[u8]| one_zero(checksum::sum(&bytes[ip..transport], 0));
        ensure!(sum(before) == sum(after), "IPv4 header checksum {:02x?} → {:02x?}", before, after);
    }
    let addresses = if is_v4 { ip + 12..ip + 20 } else { ip + 8..ip + 40 };
    let covered = |bytes: &[u8], with_addresses: bool| {
        let pseudo = if with_addresses { checksum::sum(&bytes[addresses.clone()], 0) } else { 0 };
        one_zero(checksum::sum(&bytes[transport..end], pseudo))
    };
    match proto {
        proto::UDP if reading.has_ports && before[transport + 6..transport + 8] == [0, 0] => {
            ensure!(after[transport + 6..transport + 8] == [0, 0], "a UDP checksum where there was none");
        }
        proto::TCP | proto::UDP if reading.has_ports => {
            ensure!(covered(before, true) == covered(after, true), "transport checksum");
        }
        proto::SCTP if reading.has_ports && !reading.is_fragment => {
            let good = |bytes: &[u8]| sctp_is_good(&bytes[transport..end]);
            ensure!(good(before) == good(after), "SCTP checksum");
        }
        proto::ICMP | proto::ICMPV6 if !reading.is_fragment => {
            let with_addresses = proto == proto::ICMPV6;
            ensure!(covered(before, with_addresses) == covered(after, with_addresses), "ICMP checksum");
        }
        _ => {}
    }
    Ok(())
}

/// One's complement has two zeros.
fn one_zero(sum: u32) -> u16 {
    match checksum::fold(sum) {
        0xffff => 0,
        sum => sum,
    }
}

fn sctp_is_good(packet: &[u8]) -> bool {
    let mut zeroed = packet.to_vec();
    zeroed[8..12].fill(0);
    packet[8..12] == [0; 4] || packet[8..12] == crc32c(&zeroed).to_le_bytes()
}

/// The IP header fits the frame, and an IPv4 header's checksum is right.
fn is_well_formed(frame: &[u8]) -> bool {
    read(frame).is_some_and(|reading| {
        let header = &frame[reading.ip..reading.transport];
        !reading.is_v4 || checksum::fold(checksum::sum(header, 0)) == 0xffff
    })
}
