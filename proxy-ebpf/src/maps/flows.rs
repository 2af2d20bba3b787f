//! Rows of `conntrack`, and the queues of connections that give way.

use aya_ebpf::{Global, bindings::BPF_NOEXIST};
use proxy_common::{
    DropReason,
    maps::{
        conntrack::{self, CtEntry, CtKey},
        transient::{Place, Queue},
    },
};

use super::{Tables, atomic::fetch_add};

/// `-EEXIST`.
const EXISTS: i32 = -17;

/// Rows that `conntrack` has room for, in each family. Set when the programs are loaded.
#[unsafe(no_mangle)]
static CONNTRACK_ROWS: Global<u32> = Global::new(conntrack::CAPACITY);

#[inline(always)]
pub fn conntrack<A: Tables>(key: &CtKey<A>) -> Option<&'static mut CtEntry<A>> {
    // SAFETY: the row stays in place until the program ends; if it is removed meanwhile, another connection's
    // may come there. Fields may change under us, and each is used after one read.
    unsafe { A::conntrack().get_ptr_mut(key).map(|p| &mut *p) }
}

/// What became of a row that was to be entered where there is none.
#[derive(Clone, Copy, PartialEq)]
pub enum Claim {
    Entered,
    /// There is one.
    Taken,
    /// There is no room.
    Full,
}

/// Inserts a row only if there is none.
#[inline(always)]
pub fn conntrack_claim<A: Tables>(key: &CtKey<A>, entry: &CtEntry<A>) -> Claim {
    match A::conntrack().insert(key, entry, u64::from(BPF_NOEXIST)) {
        Ok(()) => Claim::Entered,
        Err(EXISTS) => Claim::Taken,
        Err(_) => Claim::Full,
    }
}

#[inline(always)]
pub fn conntrack_put<A: Tables>(key: &CtKey<A>, entry: &CtEntry<A>) -> Result<(), DropReason> {
    A::conntrack().insert(key, entry, 0).map_err(|_| DropReason::ConntrackFull)
}

/// True for the one who removes it.
#[inline(always)]
pub fn conntrack_remove<A: Tables>(key: &CtKey<A>) -> bool {
    A::conntrack().remove(key).is_ok()
}

/// Takes the next place of a queue.
#[inline(always)]
pub fn take_place<A: Tables>(queue: Queue) -> Option<&'static mut Place<A>> {
    let turns = A::turns().get_ptr_mut(0)?;
    // SAFETY: aligned words of the map.
    let turn = unsafe {
        match queue {
            Queue::Opening => fetch_add(&raw mut (*turns).opening, 1),
            Queue::Datagram => fetch_add(&raw mut (*turns).datagram, 1),
            Queue::Ended => fetch_add(&raw mut (*turns).ended, 1),
        }
    };
    let rows = CONNTRACK_ROWS.load();
    let places = u64::from(queue.places(rows));
    // There is at least one, which the compiler does not see.
    let index = queue.first(rows) + if places == 0 { 0 } else { (turn % places) as u32 };
    // SAFETY: the map keeps it; another CPU writes the same one only when all others have been taken meanwhile,
    // and whatever key is read then, the connection that has it is looked at.
    A::transient().get_ptr_mut(index).map(|place| unsafe { &mut *place })
}
