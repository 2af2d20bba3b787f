//! Connections whose destination netfilter translates, from nf_conntrack by ctnetlink.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_netfilter::{
    NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    conntrack::{
        ConntrackAttribute, ConntrackMessage, IPTuple, ProtoInfo, ProtoInfoTCP, ProtoTuple, Status, Tuple,
    },
};
use proxy_common::proto;

use super::dump;
use crate::{dataplane::NatFlow, kernel::KernelError};

/// `CTA_ZONE` and `CTA_STATUS_MASK` (linux/netfilter/nfnetlink_conntrack.h).
const ZONE: u16 = 18;
const STATUS_MASK: u16 = 26;

/// `TCP_CONNTRACK_FIN_WAIT` to `TCP_CONNTRACK_CLOSE` (linux/netfilter/nf_conntrack_tcp.h): one
/// side has closed, or both.
const TCP_CLOSING: std::ops::RangeInclusive<u8> = 4..=8;

/// The connections of this network namespace, apart from those in a zone of their own, which
/// are some CNI's.
///
/// # Errors
/// When the kernel has no connection tracking, or does not show it.
pub fn nat_flows() -> Result<Vec<NatFlow>, KernelError> {
    read().map_err(|source| KernelError::System {
        what: "read the connections that netfilter translates".into(),
        source,
    })
}

fn read() -> io::Result<Vec<NatFlow>> {
    let translated = Status::DstNat;
    // The kernel picks them out (5.15); one that does not shows all.
    let question = ConntrackMessage::Get(vec![
        ConntrackAttribute::CtaStatus(translated),
        ConntrackAttribute::Other(DefaultNla::new(STATUS_MASK, translated.bits().to_be_bytes().to_vec())),
    ]);
    let mut found = Vec::new();
    dump(NetfilterProtoFamily::Unspec, question, |message| found.extend(flow(&message)))?;
    Ok(found)
}

/// A direction of a connection.
struct Direction {
    proto: u8,
    src: SocketAddr,
    dst: SocketAddr,
}

fn flow(message: &NetfilterMessage) -> Option<NatFlow> {
    let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) = &message.inner else {
        return None;
    };
    let (mut original, mut reply, mut status, mut closing) = (None, None, Status::empty(), false);
    for attribute in attributes {
        match attribute {
            ConntrackAttribute::CtaTupleOrig(tuple) => original = direction(tuple),
            ConntrackAttribute::CtaTupleReply(tuple) => reply = direction(tuple),
            ConntrackAttribute::CtaStatus(bits) => status = *bits,
            ConntrackAttribute::CtaProtoInfo(infos) => closing = infos.iter().any(is_closing),
            ConntrackAttribute::Other(other) if other.kind() == ZONE => return None,
            _ => {}
        }
    }
    if !status.contains(Status::DstNat) || status.contains(Status::Dying) {
        return None;
    }
    let (original, reply) = (original?, reply?);
    Some(NatFlow {
        proto: original.proto,
        client: original.src,
        frontend: original.dst,
        backend: reply.src,
        reply_to: reply.dst,
        closing,
    })
}

fn is_closing(info: &ProtoInfo) -> bool {
    let ProtoInfo::TCP(facts) = info else { return false };
    facts.iter().any(|fact| matches!(fact, ProtoInfoTCP::State(state) if TCP_CLOSING.contains(state)))
}

/// Nothing for protocols that have no ports.
fn direction(tuple: &[Tuple]) -> Option<Direction> {
    let (mut src, mut dst): (Option<IpAddr>, Option<IpAddr>) = (None, None);
    let (mut proto, mut ports) = (0, (None, None));
    for part in tuple {
        match part {
            Tuple::Ip(addresses) => {
                for address in addresses {
                    match address {
                        IPTuple::SourceAddress(address) => src = Some(*address),
                        IPTuple::DestinationAddress(address) => dst = Some(*address),
                        _ => {}
                    }
                }
            }
            Tuple::Proto(facts) => {
                for fact in facts {
                    match fact {
                        ProtoTuple::Protocol(number) => proto = u8::from(*number),
                        ProtoTuple::SourcePort(port) => ports.0 = Some(*port),
                        ProtoTuple::DestinationPort(port) => ports.1 = Some(*port),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if ![proto::TCP, proto::UDP, proto::SCTP].contains(&proto) {
        return None;
    }
    Some(Direction { proto, src: SocketAddr::new(src?, ports.0?), dst: SocketAddr::new(dst?, ports.1?) })
}

#[cfg(test)]
mod tests {
    use netlink_packet_netfilter::{NetfilterHeader, conntrack::Protocol};

    use super::*;

    fn tuple(src: &str, dst: &str, proto: Protocol) -> Vec<Tuple> {
        let (src, dst): (SocketAddr, SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
        let addresses = vec![IPTuple::SourceAddress(src.ip()), IPTuple::DestinationAddress(dst.ip())];
        let ports = [ProtoTuple::SourcePort(src.port()), ProtoTuple::DestinationPort(dst.port())];
        vec![Tuple::Ip(addresses), Tuple::Proto([vec![ProtoTuple::Protocol(proto)], ports.into()].concat())]
    }

    fn entry(proto: Protocol, status: Status, state: u8) -> NetfilterMessage {
        let attributes = vec![
            ConntrackAttribute::CtaTupleOrig(tuple("10.0.0.2:4000", "10.96.0.1:80", proto)),
            ConntrackAttribute::CtaTupleReply(tuple("10.0.1.9:8080", "192.0.2.1:5000", proto)),
            ConntrackAttribute::CtaStatus(status),
            ConntrackAttribute::CtaProtoInfo(vec![ProtoInfo::TCP(vec![ProtoInfoTCP::State(state)])]),
        ];
        let header = NetfilterHeader::new(NetfilterProtoFamily::IPv4, 0, 0);
        NetfilterMessage::new(header, ConntrackMessage::New(attributes))
    }

    #[test]
    fn only_translated_connections_count() {
        let nat = Status::DstNat | Status::Confirmed;
        let found = flow(&entry(Protocol::Tcp, nat, 3)).unwrap();
        assert_eq!(found.client, "10.0.0.2:4000".parse().unwrap());
        assert_eq!(found.frontend, "10.96.0.1:80".parse().unwrap());
        assert_eq!(found.backend, "10.0.1.9:8080".parse().unwrap());
        assert_eq!(found.reply_to, "192.0.2.1:5000".parse().unwrap());
        assert!(!found.closing && flow(&entry(Protocol::Tcp, nat, 7)).unwrap().closing);
        assert_eq!(flow(&entry(Protocol::Tcp, Status::SrcNat, 3)), None);
        assert_eq!(flow(&entry(Protocol::Tcp, nat | Status::Dying, 3)), None);
        assert_eq!(flow(&entry(Protocol::Icmp, nat, 0)), None);
    }
}
