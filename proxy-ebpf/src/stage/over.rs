//! Rows of connections that are over, and what meets them.

use proxy_common::{
    flow::ends,
    maps::conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role},
    packet::{Parsed, headers::tcp_flags},
    proto,
};

use super::conntrack::now;
use crate::maps::{self, Tables};

/// A UDP flow that netfilter translates is its own for less time than netfilter remembers a flow
/// without replies (nf_conntrack_udp_timeout).
const LEAVE_IDLE_NS: u64 = 28_000_000_000;

/// True when a packet may not follow the row it matches: it opens a connection, and the row
/// belongs to one that ended or whose backend is gone. Any datagram opens one, to a backend that is gone.
/// Netfilter's connections end sooner: no rule of its own gives it another. `key` is room for a key.
#[inline(always)]
pub fn is_over<A: Tables>(entry: &CtEntry<A>, parsed: &Parsed<A>, key: &mut CtKey<A>) -> bool {
    let opens = parsed.opens();
    if entry.role == Role::LEAVE.0 {
        let stale = now().wrapping_sub(entry.last_seen) >= LEAVE_IDLE_NS;
        return if parsed.tuple.proto == proto::TCP { opens } else { stale };
    }
    if entry.role == Role::DIRECT.0 {
        return parsed.tuple.proto == proto::TCP && opens && ends(entry.tcp_flags);
    }
    if !Role(entry.role).is_primary() {
        return false;
    }
    match parsed.tuple.proto {
        proto::TCP => {
            opens && (ends(entry.tcp_flags) || backend_is_gone(entry) || reply_is_closing(entry, parsed, key))
        }
        _ => opens && backend_is_gone(entry),
    }
}

/// True if the row leads to a backend that is not there any more.
#[inline(always)]
pub fn backend_is_gone<A: Tables>(entry: &CtEntry<A>) -> bool {
    maps::backend::<A>(entry.backend).is_none_or(|b| b.addr != entry.dst || b.port != entry.dport)
}

#[inline(always)]
fn reply_is_closing<A: Tables>(entry: &CtEntry<A>, parsed: &Parsed<A>, key: &mut CtKey<A>) -> bool {
    let hook = if entry.role == Role::HOST.0 { EGRESS } else { INGRESS };
    key.set_pair(entry, parsed.tuple.proto, hook);
    maps::other_row(key).is_some_and(|reply| ends(reply.tcp_flags))
}

/// True for a backend's answer to a connection that is not ours, by the port that one of ours had
/// which has ended: ours would have a row of its own. All that follows belongs to the other one, so
/// ours must be forgotten. The client has asked the backend itself; or another than us began it from an
/// address of this host, netfilter for example, and late packets of the ended connection would
/// get in between.
///
/// A client that has closed is no sign of an end: a backend that is slow to accept answers again.
/// `key` is room for a key, of which the stack has little.
#[inline(always)]
pub fn answers_another<A: Tables>(entry: &CtEntry<A>, parsed: &Parsed<A>, key: &mut CtKey<A>) -> bool {
    const SYN_ACK: u8 = tcp_flags::SYN | tcp_flags::ACK;
    if parsed.tuple.proto != proto::TCP || parsed.tcp_flags & SYN_ACK != SYN_ACK {
        return false;
    }
    if entry.role == Role::REV_DNAT.0 {
        return ends(entry.tcp_flags);
    }
    if entry.role != Role::REV_SNAT.0 && entry.role != Role::REV_HOST.0 {
        return false;
    }
    key.set_pair(entry, proto::TCP, INGRESS);
    // While maps are replaced, the row may be in the other ones.
    let Some(pair) = maps::other_row(key) else { return ends(entry.tcp_flags) };
    let has_other_port = pair.sport != parsed.tuple.dport;
    has_other_port || ends(entry.tcp_flags) || pair.tcp_flags & tcp_flags::RST != 0
}
