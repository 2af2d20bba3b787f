//! Connections that nobody translates: a client asks a backend itself, or netfilter or a process of the
//! host sends to one from an address of the host. Their tuples may be those that a connection of ours has
//! between the hooks or on the wire; then the replies to both would be the same. The later of the two
//! gets another source port, as nf_conntrack does it. A connection of ours that is over gives way.

use proxy_common::{
    DropReason, Tuple,
    flow::ends,
    maps::{
        address_filter::flags::DIRECT,
        conntrack::{
            CtEntry, CtKey, EGRESS, INGRESS, Role,
            flags::{ANY_REPLY, SNAT_PENDING},
            opposite,
        },
        settings::flags::{ATTACHING, HANDOVER, TAKEOVER},
    },
    packet::{
        Parsed,
        headers::tcp_flags::{ACK, RST, SYN},
    },
    proto,
};

use super::{
    conntrack::{self, Arrival},
    create::{self, Owner},
    ports,
    retire::{replace, retire},
    trace, transient,
};
use crate::{
    maps::{self, Claim, Tables},
    packet::Packet,
};

/// Whose connection it is that no service has.
const NOBODY: Owner = Owner { service: 0, backend: 0, kind: 0 };

/// What becomes of a packet that may open such a connection, and that no row is for.
///
/// # Errors
/// When no source port is free.
#[inline(always)]
pub fn open<P: Packet, A: Tables>(
    packet: &P,
    arrival: &Arrival,
    parsed: &Parsed<A>,
    hook: u8,
) -> Result<Option<Tuple<A>>, DropReason> {
    const UNSETTLED: u32 = HANDOVER | ATTACHING | TAKEOVER;
    if !parsed.opens() || maps::settings().is_none_or(|settings| settings.flags & UNSETTLED != 0) {
        return Ok(None);
    }
    let reply = parsed.tuple.reversed();
    let (Some(key), Some(entry)) = (maps::new_key(), maps::found()) else { return Ok(None) };
    key.set(&reply, opposite(hook));
    let Some(met) = maps::conntrack_apart(key, entry) else {
        // The first reply to a TCP connection of ours says whether the backend has another by the same
        // port (`meets_another`), if that cannot be known here.
        if parsed.tuple.proto != proto::TCP || hook == EGRESS {
            note(&reply, opposite(hook));
        }
        return Ok(None);
    };
    match Role(entry.role) {
        Role::PASS => {
            conntrack::touch(arrival.packets, arrival.bytes, met, entry, parsed.tcp_flags);
            Ok(None)
        }
        // Packets of host processes come by once more when they have been sent on.
        Role::LEAVE | Role::REV_HOST => Ok(None),
        _ if was_seen_before(packet, hook) => Ok(None),
        _ if has_ended(entry, parsed.tuple.proto, opposite(hook), key) => {
            release(entry, &reply, opposite(hook), 0, key);
            Ok(None)
        }
        _ => by_another_port(arrival, parsed, hook).map(Some),
    }
}

/// Keeps the tuple from connections of ours to come, and its packets at `hook` as they are.
#[inline(always)]
pub fn note<A: Tables>(reply: &Tuple<A>, hook: u8) {
    let (Ok(row), Some(key)) = (create::begin(NOBODY, reply, Role::PASS, 0), maps::new_key()) else { return };
    key.set(reply, hook);
    // Another CPU may have been faster, and a full table costs no connection of anybody.
    if maps::conntrack_claim(key, row) == Claim::Entered {
        transient::wait::<A>(reply.proto);
    }
}

/// True at the second of two devices that a packet passes in one direction, a VLAN's and the one below:
/// what is met then may be the packet's own connection, opened at the first.
#[inline(always)]
fn was_seen_before<P: Packet>(packet: &P, hook: u8) -> bool {
    if hook == EGRESS {
        return packet.is_tagged();
    }
    maps::device(packet.ifindex()).is_some_and(|device| device.vlan != 0)
}

#[inline(always)]
fn by_another_port<A: Tables>(
    arrival: &Arrival,
    parsed: &Parsed<A>,
    hook: u8,
) -> Result<Tuple<A>, DropReason> {
    let mut target = parsed.tuple;
    let hash = ports::hash(&target);
    let row = create::begin(NOBODY, &parsed.tuple.reversed(), Role::REV_DIRECT, 0)?;
    ports::claim(&mut target, opposite(hook), hash)?;
    row.set_target(&target);
    row.role = Role::DIRECT.0;
    conntrack::first(arrival, parsed, row);
    maps::admit_address(&parsed.tuple.src, DIRECT);
    create::enter_first(&parsed.tuple, hook, row)
        .inspect_err(|_| create::leave(&target.reversed(), opposite(hook)))?;
    transient::wait::<A>(target.proto);
    trace::masqueraded(arrival.ifindex, &parsed.tuple, &target, NOBODY);
    Ok(target)
}

/// True for a reply that cannot be to the connection of the row it meets: of that the client has sent its
/// SYN, and nothing has answered; TCP answers with SYN or RST. The client has asked the backend itself
/// before, by the same port. `key` is room for a key.
#[inline(always)]
pub fn meets_another<A: Tables>(
    entry: &CtEntry<A>,
    parsed: &Parsed<A>,
    hook: u8,
    key: &mut CtKey<A>,
) -> bool {
    let is_first = parsed.tuple.proto == proto::TCP
        && parsed.tcp_flags & (SYN | RST) == 0
        && entry.tcp_flags == 0
        && entry.flags & ANY_REPLY == 0
        && Role(entry.role).is_reply();
    if !is_first {
        return false;
    }
    key.set_pair(entry, proto::TCP, hook);
    maps::other_row(key).is_some_and(|forward| forward.tcp_flags & (SYN | ACK) == SYN)
}

/// True if the connection has ended whose replies meet `entry` at `hook`. `key` is room for a key.
#[inline(always)]
fn has_ended<A: Tables>(entry: &CtEntry<A>, proto: u8, hook: u8, key: &mut CtKey<A>) -> bool {
    if proto != proto::TCP {
        return false;
    }
    key.set_pair(entry, proto, hook);
    ends(entry.tcp_flags) || maps::other_row(key).is_some_and(|forward| forward.tcp_flags & RST != 0)
}

/// Leaves the replies by `reply` that meet `entry` at `hook` to the connection that is not ours. What the
/// client of ours sends opens it anew, by another port. `key` is room for keys, `tcp_flags` what has been
/// seen of the other connection.
#[inline(always)]
pub fn release<A: Tables>(entry: &CtEntry<A>, reply: &Tuple<A>, hook: u8, tcp_flags: u8, key: &mut CtKey<A>) {
    key.set_pair(entry, reply.proto, hook);
    if entry.role == Role::REV_SNAT.0 {
        if let Some(pair) = maps::other()
            && let Some(row) = maps::conntrack_apart(key, pair)
        {
            row.change(pair, |pair| pair.flags |= SNAT_PENDING);
        }
    } else {
        retire(key);
    }
    if entry.role == Role::REV_DNAT.0 {
        unmask(reply, key);
    }
    let Ok(row) = create::begin(NOBODY, reply, Role::PASS, 0) else { return };
    row.tcp_flags = tcp_flags;
    key.set(reply, hook);
    // Without room, the replies have no row at all.
    let _ = replace(key, row);
}

/// Removes the rows by which a connection was masqueraded whose replies become `reply`: packets of the
/// other connection would meet them, too.
#[inline(always)]
fn unmask<A: Tables>(reply: &Tuple<A>, key: &mut CtKey<A>) {
    key.set(&reply.reversed(), EGRESS);
    let Some(row) = maps::other_row(key).filter(|row| row.role == Role::SNAT.0) else { return };
    key.set(&row.target(reply.proto).reversed(), INGRESS);
    retire(key);
    key.set(&reply.reversed(), EGRESS);
    retire(key);
}
