//! While services are taken over from kube-proxy: what is left to its rules.

use proxy_common::{
    Addr,
    maps::settings::flags::{ATTACHING, TAKEOVER},
    packet::Parsed,
    proto,
};

use crate::maps;

/// True for a packet that no row is for and that may be netfilter's: of a connection that
/// began before the programs saw it, and that user space has not entered yet.
#[inline(always)]
pub fn is_netfilters<A: Addr>(parsed: &Parsed<A>) -> bool {
    let flags = maps::settings().map_or(0, |settings| settings.flags);
    let opens = parsed.tuple.proto == proto::TCP && parsed.opens();
    flags & ATTACHING != 0 || (flags & TAKEOVER != 0 && !opens)
}
