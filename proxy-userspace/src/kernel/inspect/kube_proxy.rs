//! Traces of kube-proxy: its process, and its rules in nftables, iptables on nftables, and
//! IPVS. The kubelet makes chains of its own, which are none.

use std::{fs, io, path::Path};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkPayload, NlasIterator};
use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::kernel::netlink_socket::{NetlinkSocket, RawMessage};

/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETTABLE` and `…GETCHAIN` (linux/netfilter/nf_tables.h).
const GET_TABLE: u16 = 10 << 8 | 1;
const GET_CHAIN: u16 = 10 << 8 | 4;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
/// Length of `struct nfgenmsg`: family, version, resource.
const HEADER_LEN: usize = 4;

/// The table of kube-proxy's nftables mode.
const TABLE: &str = "kube-proxy";
/// The chain that every other chain of its iptables mode hangs from.
const CHAIN: &str = "KUBE-SERVICES";
/// The device that carries the addresses of services in IPVS mode.
const IPVS_DEVICE: &str = "/sys/class/net/kube-ipvs0";

/// What is there of kube-proxy, in words.
pub fn kube_proxy() -> Vec<String> {
    let mut traces = Vec::new();
    traces.extend(process().map(|id| format!("it runs as process {id}")));
    // A kernel without nftables has no rules in it.
    if names(GET_TABLE, NFTA_TABLE_NAME).is_ok_and(|names| names.iter().any(|name| name == TABLE)) {
        traces.push(format!("nftables has its table {TABLE}"));
    }
    if names(GET_CHAIN, NFTA_CHAIN_NAME).is_ok_and(|names| names.iter().any(|name| name == CHAIN)) {
        traces.push(format!("iptables has its chain {CHAIN}"));
    }
    if Path::new(IPVS_DEVICE).exists() {
        traces.push("IPVS has its device kube-ipvs0".into());
    }
    traces
}

/// Its process in this network namespace.
fn process() -> Option<u32> {
    let own = fs::read_link("/proc/self/ns/net").ok()?;
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let mut ours = processes.filter(|path| fs::read_link(path.join("ns/net")).is_ok_and(|ns| ns == own));
    let found =
        ours.find(|path| fs::read_to_string(path.join("comm")).is_ok_and(|n| n.trim() == "kube-proxy"));
    found?.file_name()?.to_str()?.parse().ok()
}

/// The names of all tables or chains.
fn names(question: u16, attribute: u16) -> io::Result<Vec<String>> {
    let mut socket = NetlinkSocket::open(NETLINK_NETFILTER)?;
    let every_family = RawMessage { kind: question, bytes: vec![0; HEADER_LEN] };
    socket.send(NLM_F_REQUEST | NLM_F_DUMP, NetlinkPayload::InnerMessage(every_family))?;
    let mut found = Vec::new();
    loop {
        for payload in socket.receive::<RawMessage>()? {
            match payload {
                NetlinkPayload::InnerMessage(message) => found.extend(name(&message, attribute)),
                NetlinkPayload::Done(_) => return Ok(found),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
        }
    }
}

fn name(message: &RawMessage, kind: u16) -> Option<String> {
    let attributes = NlasIterator::new(message.bytes.get(HEADER_LEN..)?);
    let found = attributes.flatten().find(|attribute| attribute.kind() == kind)?;
    Some(String::from_utf8_lossy(found.value()).trim_end_matches('\0').to_owned())
}
