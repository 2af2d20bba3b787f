//! Judges the connections of `conntrack` where they lie. The agent has these programs run for every row: those of
//! connections that are over are removed, and one [`SweptConnection`] of each connection is shown to the agent.
//!
//! Iterators (`iter.rs`). Programs for packets may run meanwhile, also on this CPU: so these have a room of their own.

use aya_ebpf::bindings::seq_file;
use proxy_common::{
    Ip4, Ip6,
    flow::may_be_cut,
    maps::{
        conntrack::{CtEntry, CtKey},
        sweep::{Sweep, flags},
    },
};

use crate::{
    iter::{AGAIN, Element, write},
    maps::{self, Others, SweepRoom, Tables},
};

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_map_elem")]
pub extern "C" fn sweep_v4(element: *const Element<CtKey<Ip4>, CtEntry<Ip4>>) -> i32 {
    sweep(element)
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_map_elem")]
pub extern "C" fn sweep_v6(element: *const Element<CtKey<Ip6>, CtEntry<Ip6>>) -> i32 {
    sweep(element)
}

#[inline(always)]
fn sweep<A: Tables>(element: *const Element<CtKey<A>, CtEntry<A>>) -> i32 {
    // SAFETY: the kernel runs the program with such a context.
    let (key, row, seq) = unsafe { ((*element).key, (*element).value, (*element).seq()) };
    if key.is_null() || row.is_null() {
        return 0;
    }
    let Some(order) = maps::sweep() else { return 0 };
    let is_done = maps::in_sweep_room(|room| {
        // SAFETY: the agent lets the program iterate over a map with keys and values of these types alone; the kernel
        // refuses maps with smaller ones.
        let is_there = unsafe { maps::copy_swept(key, row, room) };
        !is_there || is_shown(order, seq, room)
    });
    match is_done {
        Some(true) => order.rows += 1,
        // Written again when there is room.
        Some(false) => {}
        None => return AGAIN,
    }
    0
}

/// Looks at the row in the room; false if it is to be looked at again, as there is no room to show its connection.
#[inline(always)]
fn is_shown<A: Tables>(order: &Sweep, seq: *mut seq_file, room: &mut SweepRoom<A>) -> bool {
    let SweepRoom { key, row, connection, swept, other, others, .. } = room;
    let is_passed_over = if order.cut == 0 {
        row.is_passed_over(key.proto, order.now, &order.timeouts)
    } else {
        !may_be_cut(key.proto, row.service)
    };
    if is_passed_over {
        return true;
    }
    let rows = |key: &CtKey<A>| others.copy(key);
    if !connection.read(key, row, rows, other) {
        return true;
    }
    swept.set(key, row, connection);
    let goes = if order.cut == 0 {
        connection.is_over(order.now, &order.timeouts)
    } else {
        maps::is_stale(&swept.way)
    };
    if goes {
        swept.flags |= flags::OVER;
    } else if order.cut != 0 {
        return true;
    }
    // SAFETY: of this element; the type has no padding.
    if !unsafe { write(seq, swept) } {
        return false;
    }
    if goes {
        connection.each_other(key, row, rows, other, |key| remove(key, others));
        // Last, as the others are found by it.
        remove(key, others);
    }
    true
}

/// Removes a row, if it is still there. What it has counted is kept. As `stage::retire` does in the room of a packet.
#[inline(always)]
fn remove<A: Tables>(key: &CtKey<A>, others: &Others<A>) {
    let Some(row) = others.copy(key) else { return };
    let (counter, traffic) = (row.counter_key(), row.traffic());
    if maps::conntrack_remove(key)
        && let Some(counter) = counter
        && traffic.in_packets | traffic.out_packets != 0
    {
        maps::add_traffic::<A>(&counter.by_programs(), &traffic);
    }
}
