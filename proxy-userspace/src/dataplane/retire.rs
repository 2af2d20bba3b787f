//! The end of a datapath: it takes no new connections, and goes on with those that it has.

use proxy_common::{
    maps::{
        conntrack::Role,
        frontends::{FrontendKey, Kind},
    },
    proto,
};

use super::{FamilyMaps, MapAddr, MapError, MapStore};

/// Removes everything by which new connections are taken or refused, so that their packets go
/// on as they came. The rest stays: what is known is translated until it ends.
///
/// # Errors
/// When a map cannot be read or written; doing it again does the rest.
pub fn retire(maps: &mut impl MapStore) -> Result<(), MapError> {
    retire_family(maps.v4())?;
    retire_family(maps.v6())
}

/// At no instant may an address be refused because what answers there is gone already: the rows
/// that refuse go first.
fn retire_family<A: MapAddr>(maps: &mut impl FamilyMaps<A>) -> Result<(), MapError> {
    let cidrs = maps.service_cidrs()?;
    maps.delete_service_cidrs(&cidrs)?;
    let rows = maps.frontends()?;
    let (addresses, ports): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|(_, frontend)| frontend.kind == Kind::ADDRESS.0);
    for rows in [addresses, ports] {
        let keys: Vec<FrontendKey<A>> = rows.into_iter().map(|(key, _)| key).collect();
        maps.delete_frontends(&keys)?;
    }
    Ok(())
}

/// Connections that are translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translated {
    /// TCP.
    pub tcp: usize,
    /// UDP.
    pub udp: usize,
    /// SCTP.
    pub sctp: usize,
}

impl Translated {
    /// Of all protocols.
    pub fn total(self) -> usize {
        self.tcp + self.udp + self.sctp
    }
}

/// Counts the connections that end when the datapath does.
///
/// # Errors
/// When a map cannot be read.
pub fn translated(maps: &mut impl MapStore) -> Result<Translated, MapError> {
    let mut count = Translated::default();
    count_family(maps.v4(), &mut count)?;
    count_family(maps.v6(), &mut count)?;
    Ok(count)
}

fn count_family<A: MapAddr>(maps: &impl FamilyMaps<A>, count: &mut Translated) -> Result<(), MapError> {
    maps.each_conntrack(&mut |key, entry| {
        if Role(entry.role).is_primary() {
            match key.proto {
                proto::TCP => count.tcp += 1,
                proto::UDP => count.udp += 1,
                _ => count.sctp += 1,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use proxy_common::{
        addr::Ip4,
        maps::{
            conntrack::{CtEntry, CtKey, INGRESS},
            frontends::Frontend,
            service_cidrs::Prefix,
        },
    };

    use super::*;
    use crate::dataplane::{Fault, MemoryMaps};

    fn maps() -> MemoryMaps {
        let mut maps = MemoryMaps::new(64);
        let addr = Ip4 { octets: [10, 96, 0, 1] };
        let row = |port, proto, kind: Kind| {
            (FrontendKey { addr, port, proto, pad: 0 }, Frontend { kind: kind.0, ..Frontend::default() })
        };
        maps.v4.put_frontends(&[row(80, proto::TCP, Kind::CLUSTER_IP), row(0, 0, Kind::ADDRESS)]).unwrap();
        maps.v4.put_service_cidrs(&[Prefix { bits: 16, addr }]).unwrap();
        let key = CtKey { proto: proto::UDP, hook: INGRESS, ..CtKey::default() };
        let of = |sport, role: Role| (CtKey { sport, ..key }, CtEntry { role: role.0, ..CtEntry::default() });
        maps.v4.put_conntrack(&[of(1, Role::DNAT), of(2, Role::REV_SNAT), of(3, Role::LEAVE)]).unwrap();
        maps
    }

    #[test]
    fn connections_stay_and_frontends_go() {
        let mut maps = maps();
        retire(&mut maps).unwrap();
        assert!(maps.v4.frontends().unwrap().is_empty() && maps.v4.service_cidrs().unwrap().is_empty());
        assert_eq!(translated(&mut maps).unwrap(), Translated { udp: 1, ..Translated::default() });
    }

    #[test]
    fn what_refuses_goes_first() {
        let mut maps = maps();
        maps.v4.faults.next = vec![Fault { after: 2, rows: 0 }];
        assert!(retire(&mut maps).is_err());
        let left = maps.v4.frontends().unwrap();
        assert!(matches!(left[..], [(FrontendKey { port: 80, .. }, _)]), "{left:?}");
        retire(&mut maps).unwrap();
        assert!(maps.v4.frontends().unwrap().is_empty());
    }
}
