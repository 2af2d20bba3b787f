//! ICMP errors about translated packets, compared byte by byte with what they should have
//! been had nobody translated anything.

use std::net::IpAddr;

use proxy_common::{checksum, proto};
use proxy_userspace::dataplane::{FamilyMaps as _, MapStore as _};

use crate::{
    bench::{
        BACKEND_ID, BACKEND_PORT, Bench, CONTINUE, NODE_PORT, Plan, REDIRECT, SERVICE_PORT, l3_source, plans,
    },
    frames::{ACK, Flow, SYN, checked, ethernet, frame, transport, with_ip},
};

/// Type and code of an error, and the four bytes after the checksum.
type Kind = (u8, u8, [u8; 4]);

/// Unreachable, too big with an MTU, time exceeded, parameter problem with a pointer.
const V4_KINDS: [Kind; 9] = [
    (3, 0, [0; 4]),
    (3, 1, [0; 4]),
    (3, 3, [0; 4]),
    (3, 4, [0, 0, 5, 20]),
    (3, 13, [0; 4]),
    (4, 0, [0; 4]),
    (11, 0, [0; 4]),
    (11, 1, [0; 4]),
    (12, 0, [20, 0, 0, 0]),
];
const V6_KINDS: [Kind; 6] = [
    (1, 0, [0; 4]),
    (1, 3, [0; 4]),
    (1, 4, [0; 4]),
    (2, 0, [0, 0, 5, 0]),
    (3, 0, [0; 4]),
    (4, 1, [0, 0, 0, 6]),
];

fn kinds(family_of: IpAddr) -> &'static [Kind] {
    if family_of.is_ipv4() { &V4_KINDS } else { &V6_KINDS }
}

/// An ICMP error as a router or host writes it: all checksums right.
#[derive(Clone, Debug)]
struct Error {
    from: IpAddr,
    to: IpAddr,
    kind: Kind,
    /// From the IP header on, as far as it is quoted.
    quoted: Vec<u8>,
    /// What follows the quote (RFC 4884).
    extensions: Vec<u8>,
}

impl Error {
    fn about(quoted: &[u8], from: IpAddr, to: IpAddr) -> Self {
        let kind = kinds(from)[0];
        Self { from, to, kind, quoted: quoted.to_vec(), extensions: Vec::new() }
    }

    /// The same with something after the quote, which is then filled up to 128 bytes (RFC 4884 §3).
    fn extended(mut self) -> Self {
        self.quoted.resize(128, 0);
        if self.from.is_ipv4() {
            self.kind.2[1] = 128 / 4;
        } else {
            self.kind.2[0] = 128 / 8;
        }
        self.extensions = vec![0x20, 0, 0x8f, 0xf7, 0, 8, 1, 1, 0, 0x3e, 0x81, 1];
        self
    }

    fn icmp(&self) -> Vec<u8> {
        let (kind, code, rest) = self.kind;
        let mut icmp = vec![kind, code, 0, 0];
        icmp.extend(rest);
        icmp.extend(&self.quoted);
        icmp.extend(&self.extensions);
        let pseudo = match (self.from, self.to) {
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let sum = checksum::sum(&to.octets(), checksum::sum(&from.octets(), 0));
                sum + icmp.len() as u32 + u32::from(proto::ICMPV6)
            }
            _ => 0,
        };
        let sum = !checksum::fold(checksum::sum(&icmp, pseudo));
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        icmp
    }

    fn frame(&self) -> Vec<u8> {
        let proto = if self.from.is_ipv4() { proto::ICMP } else { proto::ICMPV6 };
        with_ip(Flow { proto, src: (self.from, 0), dst: (self.to, 0) }, &self.icmp())
    }
}

/// A packet of a flow from the IP header on.
fn packet(flow: Flow) -> Vec<u8> {
    frame(flow, ACK)[14..].to_vec()
}

/// What the quote of `old` is to become: the same packet of the flow `new`. SCTP's checksum covers
/// what is not quoted as a rule, and nobody looks at it.
fn requoted(old: &[u8], new: Flow) -> Vec<u8> {
    let mut quoted = packet(new);
    if new.proto == proto::SCTP {
        let at = quoted.len() - transport(new, ACK, b"hello").len() + 8;
        quoted[at..at + 4].copy_from_slice(&old[at..at + 4]);
    }
    quoted
}

/// A step of a connection: its packets are this flow before it, that flow behind it.
#[derive(Clone, Copy)]
struct Step {
    before: Flow,
    behind: Flow,
}

type Hook = fn(&mut Bench, &[u8]) -> proxy_userspace::kernel::Run;
const INGRESS: Hook = Bench::ingress;
const EGRESS: Hook = Bench::egress;
/// Out of the host, made by the host.
const EGRESS_OF_HOST: Hook = Bench::egress_of_host;

/// An error about the reply's counterpart: quotes `step.behind` reversed on its way to what becomes of
/// the reply. All kinds, quotes of every length, with extensions and without.
fn assert_translated(bench: &mut Bench, hook: Hook, step: Step, router: IpAddr, action: i32) {
    let (seen, wanted) = (step.before.reversed(), step.behind.reversed());
    let changes_source = step.before.src.0 != step.behind.src.0;
    let from = if changes_source { step.behind.src.0 } else { router };
    let whole = packet(seen);
    let header = whole.len() - transport(seen, ACK, b"hello").len();
    let mut check = |error: Error, expected: Error| {
        let run = hook(bench, &error.frame());
        assert_eq!(run.action, action, "{error:?}");
        assert_eq!(run.packet[14..], expected.frame()[14..], "{error:?} of {seen:?} as {wanted:?}");
    };
    for kind in kinds(router) {
        for len in [header + 4, header + 8, header + 12, header + 18, whole.len()] {
            let quoted = &whole[..len.min(whole.len())];
            let becomes = &requoted(&whole, wanted)[..quoted.len()];
            let error = Error { kind: *kind, ..Error::about(quoted, router, seen.src.0) };
            let expected = Error { kind: *kind, ..Error::about(becomes, from, wanted.src.0) };
            check(error.clone(), expected.clone());
            if quoted.len() == whole.len() {
                check(error.extended(), expected.extended());
            }
        }
    }
}

fn assert_untouched(bench: &mut Bench, bytes: &[u8], what: &str) {
    for hook in [INGRESS, EGRESS] {
        let run = hook(bench, bytes);
        assert_eq!((run.action, run.packet.as_slice()), (CONTINUE, bytes), "{what}");
    }
}

type NewFlow = fn((IpAddr, u16), (IpAddr, u16)) -> Flow;
const TRANSPORTS: [NewFlow; 3] = [Flow::tcp, Flow::udp, Flow::sctp];

fn each(mut case: impl FnMut(&mut Bench, &Plan, NewFlow)) {
    let mut bench = Bench::new();
    for plan in plans() {
        for new in TRANSPORTS {
            case(&mut bench, &plan, new);
        }
    }
}

#[test]
fn to_a_pod_that_uses_a_cluster_ip() {
    each(|bench, plan, new| {
        let original = new((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT));
        let inside = bench.enters(original, SYN);
        let reply = Step { before: inside.reversed(), behind: original.reversed() };
        assert_translated(bench, EGRESS, reply, plan.stranger, CONTINUE);
        assert_translated(bench, EGRESS_OF_HOST, reply, plan.node, CONTINUE);
        assert_translated(bench, EGRESS, reply, plan.backend, CONTINUE);
    });
}

#[test]
fn to_an_outside_client_of_a_node_port() {
    each(|bench, plan, new| {
        let original = new((plan.outside, 40000), (plan.node, NODE_PORT));
        let inside = bench.enters(original, SYN);
        let wire = bench.leaves(inside, SYN);
        let unmask = Step { before: wire.reversed(), behind: inside.reversed() };
        assert_translated(bench, INGRESS, unmask, plan.stranger, CONTINUE);
        assert_translated(bench, INGRESS, unmask, plan.backend, CONTINUE);
        let reply = Step { before: inside.reversed(), behind: original.reversed() };
        assert_translated(bench, EGRESS, reply, plan.stranger, CONTINUE);
        assert_translated(bench, EGRESS_OF_HOST, reply, plan.node, CONTINUE);
    });
}

#[test]
fn by_devices_without_ethernet() {
    each(|bench, plan, new| {
        let original = new((plan.outside, 40000), (plan.node, NODE_PORT));
        let inside = bench.enters(original, SYN);
        let wire = bench.leaves(inside, SYN);
        let router = l3_source(plan.pod);
        let unmask = Step { before: wire.reversed(), behind: inside.reversed() };
        assert_translated(bench, Bench::ingress_l3, unmask, router, CONTINUE);
        let reply = Step { before: inside.reversed(), behind: original.reversed() };
        assert_translated(bench, Bench::egress_l3, reply, router, CONTINUE);
    });
}

#[test]
fn to_the_backend_about_its_replies() {
    each(|bench, plan, new| {
        let original = new((plan.outside, 40000), (plan.node, NODE_PORT));
        let inside = bench.enters(original, SYN);
        let wire = bench.leaves(inside, SYN);
        let forward = Step { before: original, behind: inside };
        assert_translated(bench, INGRESS, forward, plan.stranger, CONTINUE);
        assert_translated(bench, INGRESS, forward, plan.outside, CONTINUE);
        let mask = Step { before: inside, behind: wire };
        assert_translated(bench, EGRESS, mask, plan.stranger, CONTINUE);
        assert_translated(bench, EGRESS_OF_HOST, mask, plan.node, CONTINUE);
    });
}

#[test]
fn to_a_host_process_and_from_it() {
    each(|bench, plan, new| {
        // The backend is in the host's network, so that the way to it needs no route.
        let id = BACKEND_ID + TRANSPORTS.iter().position(|t| std::ptr::fn_addr_eq(*t, new)).unwrap() as u32;
        bench.move_backend(plan, id);
        let original = new((plan.node, 40000), (plan.cluster_ip, SERVICE_PORT));
        let run = EGRESS_OF_HOST(bench, &frame(original, SYN));
        assert_eq!(run.action, REDIRECT);
        let wire = checked(&run.packet);
        assert_eq!(wire.dst, (plan.node, BACKEND_PORT));
        let reply = Step { before: wire.reversed(), behind: original.reversed() };
        assert_translated(bench, INGRESS, reply, plan.stranger, REDIRECT);
        let forward = Step { before: original, behind: wire };
        let router = if plan.node == wire.src.0 { plan.node } else { plan.stranger };
        assert_translated(bench, EGRESS_OF_HOST, forward, router, REDIRECT);
    });
}

#[test]
fn quotes_with_options_and_extension_headers() {
    let mut bench = Bench::new();
    for plan in plans() {
        let original = Flow::udp((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT));
        let inside = bench.enters(original, SYN);
        let quoted = |flow: Flow| if plan.pod.is_ipv4() { with_options(flow) } else { with_extension(flow) };
        let error = Error::about(&quoted(inside), plan.stranger, plan.pod);
        let run = bench.egress(&error.frame());
        let expected = Error::about(&quoted(original), plan.cluster_ip, plan.pod);
        assert_eq!(run.packet, expected.frame());
    }
}

/// The packet with eight bytes of IPv4 options.
fn with_options(flow: Flow) -> Vec<u8> {
    let mut bytes = packet(flow);
    bytes.splice(20..20, [1, 1, 1, 1, 1, 1, 1, 0]);
    bytes[0] = 0x47;
    let total = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&total.to_be_bytes());
    bytes[10..12].fill(0);
    let sum = !checksum::fold(checksum::sum(&bytes[..28], 0));
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// The packet as a first fragment with destination options before it.
fn with_extension(flow: Flow) -> Vec<u8> {
    let mut bytes = packet(flow);
    bytes.splice(40..40, [44, 0, 1, 4, 0, 0, 0, 0, flow.proto, 0, 0, 1, 0, 0, 0, 7]);
    bytes[6] = 60;
    let len = (bytes.len() - 40) as u16;
    bytes[4..6].copy_from_slice(&len.to_be_bytes());
    bytes
}

#[test]
fn a_quoted_udp_checksum_of_none_stays_none() {
    let mut bench = Bench::new();
    let [plan, _] = plans();
    let original = Flow::udp((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT));
    let inside = bench.enters(original, SYN);
    let quoted = |flow| {
        let mut bytes = packet(flow);
        bytes[26..28].fill(0);
        bytes
    };
    let run = bench.egress(&Error::about(&quoted(inside), plan.stranger, plan.pod).frame());
    assert_eq!(run.packet, Error::about(&quoted(original), plan.cluster_ip, plan.pod).frame());
}

#[test]
fn what_is_not_about_a_packet_of_ours_is_left_alone() {
    each(|bench, plan, new| {
        let original = new((plan.outside, 40000), (plan.node, NODE_PORT));
        let inside = bench.enters(original, SYN);
        let wire = bench.leaves(inside, SYN);
        let error = Error::about(&packet(wire), plan.stranger, wire.src.0);
        let mut untouched = |error: &Error, what: &str| assert_untouched(bench, &error.frame(), what);

        let forged = Flow { dst: (plan.backend, BACKEND_PORT + 1), ..wire };
        untouched(&Error { quoted: packet(forged), ..error.clone() }, "no such connection");
        untouched(&Error { quoted: packet(wire.reversed()), ..error.clone() }, "a packet that others sent");
        untouched(&Error { to: plan.stranger, ..error.clone() }, "sent to somebody else");
        let cut = packet(wire).len() - transport(wire, ACK, b"hello").len();
        untouched(&Error { quoted: packet(wire)[..cut + 3].to_vec(), ..error.clone() }, "no ports");
        untouched(&Error { quoted: packet(wire)[..cut - 1].to_vec(), ..error.clone() }, "no whole IP header");
        let echo = if plan.node.is_ipv4() { (8, 0, [0; 4]) } else { (128, 0, [0; 4]) };
        untouched(&Error { kind: echo, ..error.clone() }, "an echo request");
        let redirect = if plan.node.is_ipv4() { (5, 0, [0; 4]) } else { (137, 0, [0; 4]) };
        untouched(&Error { kind: redirect, ..error.clone() }, "a redirect");
        untouched(
            &Error { quoted: error.frame()[14..].to_vec(), ..error.clone() },
            "an error about an error",
        );
        let mut version = packet(wire);
        version[0] ^= 0x20;
        untouched(&Error { quoted: version, ..error.clone() }, "a quote of another family");
    });
}

#[test]
fn fragments_of_errors_are_left_alone() {
    let mut bench = Bench::new();
    for plan in plans() {
        let original = Flow::udp((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT));
        let inside = bench.enters(original, SYN);
        let icmp = Error::about(&packet(inside), plan.stranger, plan.pod).icmp();
        let proto = if plan.pod.is_ipv4() { proto::ICMP } else { proto::ICMPV6 };
        let flow = Flow { proto, src: (plan.stranger, 0), dst: (plan.pod, 0) };
        let mut bytes = with_ip(flow, &icmp);
        if plan.pod.is_ipv4() {
            bytes[20..22].copy_from_slice(&0x2000u16.to_be_bytes());
        } else {
            bytes = ethernet(plan.pod);
            let fragment = [proto, 0, 0, 1, 0, 0, 0, 7];
            bytes.extend(&with_ip(Flow { proto: 44, ..flow }, &[&fragment[..], &icmp].concat())[14..]);
        }
        assert_untouched(&mut bench, &bytes, "a fragment");
    }
}

#[test]
fn an_error_keeps_no_connection_alive() {
    let mut bench = Bench::new();
    for plan in plans() {
        let original = Flow::tcp((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT));
        let inside = bench.enters(original, SYN);
        let before = rows(&mut bench, &plan);
        std::thread::sleep(std::time::Duration::from_millis(1100));
        let error = Error::about(&packet(inside), plan.stranger, plan.pod);
        assert_ne!(bench.egress(&error.frame()).packet, error.frame());
        assert_eq!(rows(&mut bench, &plan), before);
    }
}

/// The rows of the family's connection table, as text.
fn rows(bench: &mut Bench, plan: &Plan) -> Vec<String> {
    let mut rows = Vec::new();
    if plan.pod.is_ipv4() {
        bench.maps.v4().each_conntrack(&mut |k, v| rows.push(format!("{k:?} {v:?}"))).expect("readable");
    } else {
        bench.maps.v6().each_conntrack(&mut |k, v| rows.push(format!("{k:?} {v:?}"))).expect("readable");
    }
    rows.sort();
    rows
}
