//! What netfilter has to do with services: the connections that it translates, the rules by
//! which kube-proxy has it do so, and what keeps it going when those rules are gone.
//!
//! Speaks to the kernel by netlink: no `nft`, `iptables` or `conntrack` is needed, whose versions
//! might not fit those that wrote the rules.

mod flows;
mod keeper;
mod legacy;
mod rules;
mod transaction;

use std::io;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkPayload};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::netlink_socket::NetlinkSocket;

pub use self::{
    flows::nat_flows,
    keeper::{KEEPER, keep_translating, stop_translating},
    legacy::{LegacyRules, legacy_rules},
    rules::{IpFamily, RuleSet, Ruler, kube_proxy_rules, remove_rules},
};

/// All messages that answer a question about a family, or about all.
fn dump(
    family: NetfilterProtoFamily,
    question: impl Into<NetfilterMessageInner>,
    mut visit: impl FnMut(NetfilterMessage),
) -> io::Result<()> {
    let mut socket = NetlinkSocket::open(NETLINK_NETFILTER)?;
    let question = NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), question);
    socket.send(NLM_F_REQUEST | NLM_F_DUMP, NetlinkPayload::InnerMessage(question))?;
    loop {
        for payload in socket.receive::<NetfilterMessage>()? {
            match payload {
                NetlinkPayload::InnerMessage(message) => visit(message),
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
        }
    }
}
