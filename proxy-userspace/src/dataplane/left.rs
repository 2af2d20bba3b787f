//! Connections that netfilter translates, because they began under kube-proxy, and that the
//! programs therefore leave as they are ([`Role::LEAVE`]).
//!
//! They are not adopted: netfilter has entered such a connection as client → frontend with replies
//! backend → client. Packets that we had translated would be client → backend to it, a second
//! connection with the same replies, and so it would give that one another source port, which
//! the backend does not know.
//!
//! What netfilter has is what counts: rows are made from its connections, and go with them.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use proxy_common::{
    maps::{
        conntrack::{CtEntry, CtKey, INGRESS, Role},
        frontends::FrontendKey,
        node_addresses::flags::NODE_PORTS,
        service_cidrs::Prefix,
    },
    packet::headers::tcp_flags::{ACK, FIN, SYN},
    proto,
    tuple::Tuple,
};

use super::{FamilyMaps, MapAddr, MapError, MapStore};

/// A connection whose destination netfilter translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatFlow {
    /// IANA protocol number; one that has ports.
    pub proto: u8,
    /// Who opened it.
    pub client: SocketAddr,
    /// Where the client sends to.
    pub frontend: SocketAddr,
    /// Where that leads.
    pub backend: SocketAddr,
    /// Where the backend answers to: the client, or what it is masqueraded as.
    pub reply_to: SocketAddr,
    /// One side has closed it, or both.
    pub closing: bool,
}

/// What is left to netfilter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Connections.
    pub flows: usize,
    /// Rows written.
    pub added: usize,
    /// Rows removed, as their connections are over.
    pub removed: usize,
}

impl Left {
    fn add(&mut self, other: Self) {
        self.flows += other.flows;
        self.added += other.added;
        self.removed += other.removed;
    }
}

/// Makes the rows of connections that are left to netfilter those of `flows`. `now_ns` is
/// `CLOCK_MONOTONIC`.
///
/// # Errors
/// When a map cannot be read or written; what was written stays.
pub fn leave(maps: &mut impl MapStore, flows: &[NatFlow], now_ns: u64) -> Result<Left, MapError> {
    let mut left = leave_family(maps.v4(), flows, now_ns)?;
    left.add(leave_family(maps.v6(), flows, now_ns)?);
    Ok(left)
}

/// How many rows are left to netfilter: one for each connection, and one for its replies if they
/// come to this node.
///
/// # Errors
/// When a map cannot be read.
pub fn left_rows(maps: &mut impl MapStore) -> Result<usize, MapError> {
    Ok(rows(maps.v4())?.0.len() + rows(maps.v6())?.0.len())
}

type Held<A> = HashMap<CtKey<A>, CtEntry<A>>;

/// Rows that are left to netfilter, and all others of the same hook.
fn rows<A: MapAddr>(maps: &impl FamilyMaps<A>) -> Result<(Held<A>, Held<A>), MapError> {
    let (mut left, mut others) = (Held::new(), Held::new());
    maps.each_conntrack(&mut |key, entry| {
        let held = if entry.role == Role::LEAVE.0 { &mut left } else { &mut others };
        if key.hook == INGRESS {
            held.insert(*key, *entry);
        }
    })?;
    Ok((left, others))
}

fn leave_family<A: MapAddr>(
    maps: &mut impl FamilyMaps<A>,
    flows: &[NatFlow],
    now_ns: u64,
) -> Result<Left, MapError> {
    let (held, others) = rows(maps)?;
    if held.is_empty() && flows.is_empty() {
        return Ok(Left::default());
    }
    let ours = Ours::read(maps)?;
    let (mut wanted, mut new, mut count) = (HashSet::new(), Vec::new(), 0);
    for flow in flows {
        let rows = ours.rows_of(flow, now_ns);
        count += usize::from(!rows.is_empty());
        for (key, entry) in rows {
            let other = others.get(&key);
            if other.is_some_and(|other| is_younger(other, flow)) || !wanted.insert(key) {
                continue;
            }
            if !held.contains_key(&key) {
                new.push((key, entry));
            }
        }
    }
    let gone: Vec<_> = held.into_keys().filter(|key| !wanted.contains(key)).collect();
    maps.put_conntrack(&new)?;
    maps.delete_conntrack(&gone)?;
    Ok(Left { flows: count, added: new.len(), removed: gone.len() })
}

/// True if the row of ours is of a connection that began after that of netfilter, by the same
/// client port: netfilter has one that is over for a while. Datagrams become ours after a pause.
fn is_younger<A>(row: &CtEntry<A>, flow: &NatFlow) -> bool {
    flow.closing || flow.proto != proto::TCP || row.tcp_flags & SYN != 0
}

/// What the programs take for theirs.
struct Ours<A> {
    frontends: HashSet<FrontendKey<A>>,
    node_addresses: HashMap<A, u32>,
    service_cidrs: Vec<Prefix<A>>,
}

impl<A: MapAddr> Ours<A> {
    fn read(maps: &impl FamilyMaps<A>) -> Result<Self, MapError> {
        Ok(Self {
            frontends: maps.frontends()?.into_iter().map(|(key, _)| key).collect(),
            node_addresses: maps.node_addresses()?.into_iter().collect(),
            service_cidrs: maps.service_cidrs()?,
        })
    }

    /// The rows that leave a connection to netfilter, if it is to one of our addresses.
    /// The programs look at replies too, if they come to an address of the node: to a NodePort
    /// as far as anybody can tell; and the row keeps our own masquerading from their port.
    fn rows_of(&self, flow: &NatFlow, now_ns: u64) -> Vec<(CtKey<A>, CtEntry<A>)> {
        let forward = tuple(flow.client, flow.frontend, flow.proto).filter(|tuple| self.are_at(tuple));
        let reply = tuple(flow.backend, flow.reply_to, flow.proto);
        let Some((forward, reply)) = forward.zip(reply) else { return Vec::new() };
        let mut row = CtEntry { last_seen: now_ns, role: Role::LEAVE.0, ..CtEntry::default() };
        row.set_target(&reply.reversed());
        // As if its packets had been seen.
        row.tcp_flags = if flow.closing { ACK | FIN } else { ACK };
        let mut rows = vec![(CtKey::new(&forward, INGRESS), row)];
        if self.node_addresses.contains_key(&reply.dst) {
            rows.push((CtKey::new(&reply, INGRESS), row));
        }
        rows
    }

    /// True if the programs do something with packets to this destination.
    fn are_at(&self, tuple: &Tuple<A>) -> bool {
        let mut key = FrontendKey { addr: tuple.dst, port: tuple.dport, proto: tuple.proto, pad: 0 };
        if self.frontends.contains(&key) {
            return true;
        }
        if let Some(flags) = self.node_addresses.get(&tuple.dst) {
            key.addr = A::default();
            return flags & NODE_PORTS != 0 && self.frontends.contains(&key);
        }
        (key.port, key.proto) = (0, 0);
        let contains = |cidr: &Prefix<A>| tuple.dst.in_prefix(&cidr.addr, cidr.bits);
        self.frontends.contains(&key) || self.service_cidrs.iter().any(contains)
    }
}

fn tuple<A: MapAddr>(src: SocketAddr, dst: SocketAddr, proto: u8) -> Option<Tuple<A>> {
    let (sport, dport) = (src.port(), dst.port());
    Some(Tuple { src: A::from_ip(src.ip())?, dst: A::from_ip(dst.ip())?, sport, dport, proto })
}

#[cfg(test)]
mod tests {
    use proxy_common::{
        addr::Ip4,
        maps::{conntrack::EGRESS, frontends::Frontend},
    };

    use super::*;
    use crate::dataplane::MemoryMaps;

    const VIP: &str = "10.96.0.1:80";
    const NODE_PORT: &str = "192.0.2.1:30080";
    const CLIENT: &str = "10.0.0.2:4000";
    const NODE: Ip4 = Ip4 { octets: [192, 0, 2, 1] };

    fn maps() -> MemoryMaps {
        let mut maps = MemoryMaps::new(64);
        let key = |addr, port, proto| FrontendKey { addr, port, proto, pad: 0 };
        let vip = Ip4 { octets: [10, 96, 0, 1] };
        let row = |service| Frontend { service, ..Frontend::default() };
        let rows = [
            (key(vip, 80, proto::TCP), row(7)),
            (key(vip, 0, 0), row(7)),
            (key(Ip4::default(), 30080, proto::TCP), row(8)),
        ];
        maps.v4.put_frontends(&rows).unwrap();
        maps.v4.put_node_addresses(&[(NODE, NODE_PORTS)]).unwrap();
        maps
    }

    fn flow(frontend: &str, reply_to: &str) -> NatFlow {
        NatFlow {
            proto: proto::TCP,
            client: CLIENT.parse().unwrap(),
            frontend: frontend.parse().unwrap(),
            backend: "10.0.1.9:8080".parse().unwrap(),
            reply_to: reply_to.parse().unwrap(),
            closing: false,
        }
    }

    fn key(src: &str, dst: &str) -> CtKey<Ip4> {
        CtKey::new(&tuple(src.parse().unwrap(), dst.parse().unwrap(), proto::TCP).unwrap(), INGRESS)
    }

    fn get(maps: &MemoryMaps, key: &CtKey<Ip4>) -> Option<CtEntry<Ip4>> {
        maps.v4.conntrack.iter().find(|(known, _)| known == key).map(|(_, row)| *row)
    }

    #[test]
    fn rows_come_and_go_with_the_connections() {
        let mut maps = maps();
        let flows = [
            flow(VIP, CLIENT),
            flow(NODE_PORT, "192.0.2.1:5000"),
            // A port of the host that another program leads somewhere.
            flow("192.0.2.1:8443", CLIENT),
            flow("198.51.100.1:80", CLIENT),
            flow("[fd00::1]:80", CLIENT),
        ];
        assert_eq!(leave(&mut maps, &flows, 5).unwrap(), Left { flows: 2, added: 3, removed: 0 });
        let row = get(&maps, &key(CLIENT, VIP)).unwrap();
        assert_eq!((row.role, row.last_seen), (Role::LEAVE.0, 5));
        assert_eq!((row.dst.octets, row.dport), ([10, 0, 1, 9], 8080));
        assert!(get(&maps, &key("10.0.1.9:8080", "192.0.2.1:5000")).is_some());
        assert_eq!(leave(&mut maps, &flows[..1], 6).unwrap(), Left { flows: 1, added: 0, removed: 2 });
        assert_eq!(left_rows(&mut maps).unwrap(), 1);
        assert_eq!(leave(&mut maps, &[], 7).unwrap(), Left { flows: 0, added: 0, removed: 1 });
        assert_eq!(left_rows(&mut maps).unwrap(), 0);
    }

    #[test]
    fn connections_to_gone_ports_and_services_are_left_too() {
        let mut maps = maps();
        maps.v4.put_service_cidrs(&[Prefix { bits: 16, addr: Ip4 { octets: [10, 97, 0, 0] } }]).unwrap();
        let flows = [flow("10.96.0.1:81", CLIENT), flow("10.97.3.4:1", CLIENT)];
        assert_eq!(leave(&mut maps, &flows, 5).unwrap().added, 2);
    }

    #[test]
    fn a_connection_of_our_own_stays_ours() {
        let mut maps = maps();
        let (key, role) = (key(CLIENT, VIP), Role::DNAT.0);
        maps.v4.put_conntrack(&[(key, CtEntry { role, tcp_flags: SYN, ..CtEntry::default() })]).unwrap();
        assert_eq!(leave(&mut maps, &[flow(VIP, CLIENT)], 5).unwrap().added, 0);
        assert_eq!(get(&maps, &key).map(|row| row.role), Some(role));
        // One that we met in the middle is netfilter's.
        maps.v4.put_conntrack(&[(key, CtEntry { role, ..CtEntry::default() })]).unwrap();
        let closing = NatFlow { closing: true, ..flow(VIP, CLIENT) };
        assert_eq!(leave(&mut maps, &[closing], 5).unwrap().added, 0);
        assert_eq!(leave(&mut maps, &[flow(VIP, CLIENT)], 5).unwrap().added, 1);
        assert_eq!(get(&maps, &key).map(|row| row.role), Some(Role::LEAVE.0));
        let egress = CtKey { hook: EGRESS, ..key };
        assert_eq!(get(&maps, &egress), None);
    }
}
