//! Rows of a connection undo each other: what the row of one direction does to a packet, that of the other does to the
//! answer backwards, whatever the addresses, ports and flags.

use proxy_common::{
    Addr, Ip4, Ip6, Tuple,
    maps::conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, flags, opposite},
};

use crate::symbolic::{Plain, any, assume, proofs};

/// A packet with this tuple at this hook meets this row: nobody's but the row's own, or one that is not there.
#[inline(always)]
fn meets<A: Addr>(tuple: &Tuple<A>, hook: u8, key: &CtKey<A>) -> bool {
    let of_tuple = CtKey::new(tuple, hook);
    // Byte by byte, as the map compares.
    of_tuple == *key && key.pad == 0
}

#[inline(always)]
fn any_key<A: Addr + Plain>() -> CtKey<A> {
    let mut key: CtKey<A> = any("key");
    assume(key.hook == INGRESS || key.hook == EGRESS);
    key.pad = 0;
    key
}

/// A row and the pair that is made of it.
#[inline(always)]
fn undo_each_other<A: Addr + Plain>() {
    let (key, row): (CtKey<A>, CtEntry<A>) = (any_key(), any("row"));
    assume(Role(row.role).pair() != Role::NONE);
    let own = key.tuple();
    let mut pair: CtEntry<A> = any("room for the pair");
    row.write_pair(&own, &mut pair);
    let pair_key = row.pair(key.proto, key.hook);

    // The answer to what the row has made of a packet meets the pair, at the other hook.
    let answer = row.target(key.proto).reversed();
    assert!(meets(&answer, opposite(key.hook), &pair_key));
    // It becomes the answer to the packet before that.
    assert!(pair.target(key.proto) == own.reversed());
    assert!(pair.undoes(&own) && key.is_undone_by(&pair));
    assert!(
        pair.role == Role(row.role).pair().0 && pair.service == row.service && pair.backend == row.backend
    );

    // Of the pair the row is made again.
    let mut again: CtEntry<A> = any("room for the row");
    pair.write_pair(&pair_key.tuple(), &mut again);
    assert!(pair.pair(key.proto, pair_key.hook) == key);
    assert!(again.target(key.proto) == row.target(key.proto) && again.becomes_as(&row));
    assert!(again.role == row.role && again.flags == row.flags & flags::SNAT);
    assert!(again.other_addr == row.other_addr && again.other_port == row.other_port);
    assert!(again.other_client_port == row.other_client_port);
}

/// The first row of a masqueraded connection of which all ends are known, as `stage/create.rs` and `stage/snat.rs`
/// write it.
#[inline(always)]
fn first_row<A: Addr + Plain>() -> (CtKey<A>, CtEntry<A>) {
    let (mut key, mut row): (CtKey<A>, CtEntry<A>) = (any_key(), any("row"));
    assume(key.dport != 0);
    key.hook = INGRESS;
    row.role = Role::DNAT.0;
    row.flags |= flags::SNAT;
    let (node, port): (A, u16) = (any("node"), any("masquerade port"));
    assume(port != 0);
    row.name_masquerade(node, port);
    assume(row.src == key.src);
    (key, row)
}

/// The four rows of a masqueraded connection, each made of the one before it on a packet's way there and back.
#[inline(always)]
fn lead_there_and_back<A: Addr + Plain>() {
    let (key, dnat) = first_row::<A>();
    let (own, proto) = (key.tuple(), key.proto);
    assert!(dnat.has_next());

    let mut snat: CtEntry<A> = any("room for the second row");
    assert!(dnat.write_next(&own, &mut snat));
    let snat_key = dnat.next(proto);
    assert!(meets(&dnat.target(proto), EGRESS, &snat_key));
    assert!(snat.role == Role::SNAT.0 && snat.flags & flags::SNAT_PENDING == 0);
    // The backend sees the node, and is the one that was chosen.
    let wire = snat.target(proto);
    assert!(wire.src == dnat.other_addr && wire.sport == dnat.other_port);
    assert!(wire.dst == dnat.dst && wire.dport == dnat.dport);

    let mut rev_snat: CtEntry<A> = any("room for the third row");
    snat.write_pair(&snat_key.tuple(), &mut rev_snat);
    let rev_snat_key = snat.pair(proto, EGRESS);
    assert!(meets(&wire.reversed(), INGRESS, &rev_snat_key) && rev_snat.has_next());

    let mut rev_dnat: CtEntry<A> = any("room for the fourth row");
    assert!(rev_snat.write_next(&rev_snat_key.tuple(), &mut rev_dnat));
    let rev_dnat_key = rev_snat.next(proto);
    assert!(meets(&rev_snat.target(proto), EGRESS, &rev_dnat_key));
    // There and back is the identity: the client gets the answer of whom it asked.
    assert!(rev_dnat.target(proto) == own.reversed());

    // The fourth is the first one's pair, key and all.
    let mut pair: CtEntry<A> = any("room for the pair");
    dnat.write_pair(&own, &mut pair);
    assert!(rev_dnat_key == dnat.pair(proto, INGRESS) && rev_dnat.becomes_as(&pair));
    assert!(rev_dnat.role == pair.role && rev_dnat.flags == pair.flags);
    assert!(rev_dnat.other_addr == pair.other_addr && rev_dnat.other_port == pair.other_port);
}

/// How the rows of a masqueraded connection are found by the first one, and that by each of them.
#[inline(always)]
fn find_each_other<A: Addr + Plain>() {
    let (key, dnat) = first_row::<A>();
    let (own, proto) = (key.tuple(), key.proto);
    let (mut snat, mut rev_snat): (CtEntry<A>, CtEntry<A>) = (any("room"), any("more room"));
    dnat.write_next(&own, &mut snat);
    snat.write_pair(&dnat.target(proto), &mut rev_snat);
    let rev_snat_key = snat.pair(proto, EGRESS);

    let mut found: CtKey<A> = any("room for a key");
    found.set_next_pair(&dnat, Some(&snat), proto);
    assert!(found == rev_snat_key);
    found.set_next_pair(&dnat, None, proto);
    assert!(found == rev_snat_key);
    found.set_first(&rev_snat, proto);
    assert!(found == key);
    found.set_original(&snat, own.src, proto);
    assert!(found == key);
    assert!(rev_snat.original(own.src, proto) == own && snat.original(own.src, proto) == own);
}

proofs! {
    /// DNAT, SNAT, HOST, DIRECT and what undoes them, IPv4: the answer to a rewritten packet meets the pair of the row, and
    /// becomes the answer to the packet as it was. Of the pair the row is made again.
    /// Assumes: the hook is ingress or egress, and padding is zero, as in every key that is written.
    fn pair_undoes_v4() {
        undo_each_other::<Ip4>();
    }

    /// The same for IPv6.
    fn pair_undoes_v6() {
        undo_each_other::<Ip6>();
    }

    /// A masqueraded connection, IPv4: through its four rows, there and back, a packet's answer is the identity's, and the
    /// fourth row is the pair of the first.
    /// Assumes: the first row names all ends: neither the frontend's port nor the masquerade's is 0, which says "not
    /// known". DNAT leaves the client's address.
    fn four_rows_undo_v4() {
        lead_there_and_back::<Ip4>();
    }

    /// The same for IPv6.
    fn four_rows_undo_v6() {
        lead_there_and_back::<Ip6>();
    }

    /// A masqueraded connection, IPv4: the keys that the first row gives of the others, and they of it, are those they have.
    /// Assumes: the same.
    fn four_rows_find_each_other_v4() {
        find_each_other::<Ip4>();
    }

    /// The same for IPv6.
    fn four_rows_find_each_other_v6() {
        find_each_other::<Ip6>();
    }
}
