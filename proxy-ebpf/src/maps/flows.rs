//! Rows of `conntrack`, and the queues of connections that give way.
//!
//! The kernel gives the place of a row that is removed to another at once: what lies there may be another
//! connection's by the next read. So programs go by a copy, and change only what they have copied.

use core::{
    arch::asm,
    mem::offset_of,
    ptr::{self, NonNull},
};

use aya_ebpf::{
    Global,
    bindings::{BPF_ANY, BPF_NOEXIST},
};
use proxy_common::{
    DropReason,
    maps::{
        conntrack::{self, CtEntry, CtKey},
        transient::{Place, Queue},
    },
};

use super::{
    Tables,
    atomic::{compare_exchange, fetch_add},
    room::{self, Room},
};
use crate::global::global_by_family;

/// `-EEXIST`.
const EXISTS: i32 = -17;
/// How often a change is tried where another CPU changes the row at the same time.
const ATTEMPTS: u32 = 2;

/// Rows that `conntrack` has room for, in each family. Set when the programs are loaded.
#[unsafe(no_mangle)]
static CONNTRACK_ROWS: Global<u32> = Global::new(conntrack::CAPACITY);

/// Where a row lies, or has lain when it was copied.
#[derive(Clone, Copy)]
pub struct Row<A: 'static>(NonNull<CtEntry<A>>);

/// Copies the row of `key` to `entry`, if there is one.
#[inline(always)]
pub fn conntrack<A: Tables>(key: &CtKey<A>, entry: &mut CtEntry<A>) -> Option<Row<A>> {
    let row = Row(A::conntrack().get_ptr_mut(key).and_then(NonNull::new)?);
    // SAFETY: the row's place stays one of the map until the program ends, and any bits are a valid entry.
    unsafe { copy_words::<u64, _>(row.0.as_ptr(), entry) };
    let is_at = entry.is_at(key);
    // Not from registers, of which there are few.
    room::read_anew();
    // Else it was removed meanwhile, or somebody has written it who does not know how.
    if !is_at {
        return None;
    }
    // The compiler would put off to ask whether there is one, which the verifier does not follow.
    // SAFETY: it is the same.
    Some(Row(unsafe { NonNull::new_unchecked(room::there(row.0.as_ptr())) }))
}

/// The same where the stack has no room for it.
#[inline(never)]
pub fn conntrack_apart<A: Tables>(key: &CtKey<A>, entry: &mut CtEntry<A>) -> Option<Row<A>> {
    conntrack(key, entry)
}

/// Copies what others may write meanwhile, each word once.
///
/// # Safety
/// `from` may be read, any bits are a valid `T`, and `from` and `to` consist of words `W` that lie as those must.
#[inline(always)]
pub(super) unsafe fn copy_words<W: Copy, T>(from: *const T, to: &mut T) {
    let (from, to) = (from.cast::<W>(), ptr::from_mut(to).cast::<W>());
    let mut index = 0;
    while index < size_of::<T>() / size_of::<W>() {
        // SAFETY: the caller's.
        unsafe { to.add(index).write(from.add(index).read_volatile()) };
        index += 1;
    }
}

/// A copy of the row of `key`, which the packet meets. It is good until the next is copied.
#[inline(always)]
pub fn found_row<A: Tables>(key: &CtKey<A>) -> Option<&'static mut CtEntry<A>> {
    if copied(key, FOUND) { room::found() } else { None }
}

/// A copy of the row of `key`, which belongs to another one that is at hand. It is good until the next is copied.
#[inline(always)]
pub fn other_row<A: Tables>(key: &CtKey<A>) -> Option<&'static mut CtEntry<A>> {
    if copied(key, OTHER) { room::other() } else { None }
}

/// A copy of the row of `key`, whose connection may give way to another. It is good until the next is copied.
#[inline(always)]
pub fn candidate<A: Tables>(key: &CtKey<A>) -> Option<&'static mut CtEntry<A>> {
    if copied(key, CANDIDATE) { room::candidate() } else { None }
}

const FOUND: u32 = 0;
const OTHER: u32 = 1;
const CANDIDATE: u32 = 2;

/// True if there is a row of `key`, of which that part of the room is a copy then.
#[inline(always)]
fn copied<A: Tables>(key: &CtKey<A>, to: u32) -> bool {
    let Some(asked) = room::asked() else { return false };
    *asked = *key;
    copy_asked::<A>(to) != 0
}

global_by_family! {
    fn copy_asked(to: u32) = copy_in_room as shunt_copy_row4, shunt_copy_row6;
    fn enter_asked(how: u32) = enter_in_room as shunt_enter_row4, shunt_enter_row6;
}

#[inline(always)]
fn copy_in_room<A: Tables>(to: u32) -> u32 {
    let Some(Room { asked, found, other, candidate, .. }) = room::room::<A>() else { return 0 };
    let entry = match to {
        FOUND => found,
        OTHER => other,
        _ => candidate,
    };
    conntrack(asked, entry).is_some().into()
}

impl<A: Tables> Row<A> {
    /// The word that is changed as one, from the role to the timer ticks.
    const STATE: usize = offset_of!(CtEntry<A>, role) / size_of::<u64>();

    /// Counts packets and their bytes. Where the row has just gone, they are counted for another.
    #[inline(always)]
    pub fn count(self, packets: u32, bytes: u32) {
        let row = self.0.as_ptr();
        // SAFETY: aligned words of the row, each read and written once: nobody finds half of a number.
        unsafe {
            let (packets_word, bytes_word) = (&raw mut (*row).packets, &raw mut (*row).bytes);
            packets_word.write_volatile(packets_word.read_volatile().wrapping_add(packets.into()));
            bytes_word.write_volatile(bytes_word.read_volatile().wrapping_add(bytes.into()));
        }
    }

    /// Writes when a packet was last seen. A row that has taken the place since was made at about the same time.
    #[inline(always)]
    pub fn see(self, now: u64) {
        // SAFETY: an aligned word of the row.
        unsafe { (&raw mut (*self.0.as_ptr()).last_seen).write_volatile(now) };
    }

    /// Changes flags, TCP flags or ticks of the copy by `change`, and those of the row, if they are still as they were
    /// copied.
    #[inline(always)]
    pub fn change_once(self, entry: &mut CtEntry<A>, change: impl Fn(&mut CtEntry<A>)) {
        self.exchange(entry, change);
    }

    /// Changes flags, TCP flags or ticks of the copy by `change`, and those of the row, if it is still there.
    #[inline(always)]
    pub fn change(self, entry: &mut CtEntry<A>, change: impl Fn(&mut CtEntry<A>)) {
        for _ in 0..ATTEMPTS {
            let (before, check) = (Self::state(entry), entry.check);
            let found = self.exchange(entry, &change);
            if found == before {
                return;
            }
            // SAFETY: any bits are a valid state.
            unsafe { Self::state_of(entry).write_volatile(found) };
            if entry.check != check {
                return;
            }
        }
    }

    /// Tries to; returns the state of the row before.
    #[inline(always)]
    fn exchange(self, entry: &mut CtEntry<A>, change: impl Fn(&mut CtEntry<A>)) -> u64 {
        let before = Self::state(entry);
        change(entry);
        let row = self.0.as_ptr().cast::<u64>().wrapping_add(Self::STATE);
        // SAFETY: an aligned word of the row.
        unsafe { compare_exchange(row, before, Self::state(entry)) }
    }

    #[inline(always)]
    fn state_of(entry: &mut CtEntry<A>) -> *mut u64 {
        ptr::from_mut(entry).cast::<u64>().wrapping_add(Self::STATE)
    }

    #[inline(always)]
    fn state(entry: &mut CtEntry<A>) -> u64 {
        // SAFETY: an aligned word of the entry. Volatile, as it was written by its parts.
        unsafe { Self::state_of(entry).read_volatile() }
    }

    /// Writes where packets go. What is said of a row that has taken the place since is not so, which it shows.
    #[inline(always)]
    pub fn go_out(self, out: u32) {
        // SAFETY: an aligned word of the row.
        unsafe { (&raw mut (*self.0.as_ptr()).ifindex).write_volatile(out) };
    }

    /// Names the source that the backend sees, in the copy and the row. It is a hint: who finds another row by it looks
    /// whether that is of the same connection.
    #[inline(always)]
    pub fn name_masquerade(self, entry: &mut CtEntry<A>, addr: A, port: u16) {
        entry.name_masquerade(addr, port);
        let row = self.0.as_ptr();
        // SAFETY: fields of the row. The port comes last: without one nothing is named.
        unsafe {
            if (&raw const (*row).check).read_volatile() == entry.check {
                (&raw mut (*row).other_addr).write_volatile(addr);
                (&raw mut (*row).other_port).write_volatile(port);
            }
        }
    }
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

/// Inserts the new row in the room only if there is none.
#[inline(always)]
pub fn conntrack_claim<A: Tables>(key: &CtKey<A>, row: &mut CtEntry<A>) -> Claim {
    match enter(key, row, BPF_NOEXIST) {
        ENTERED => Claim::Entered,
        TAKEN => Claim::Taken,
        _ => Claim::Full,
    }
}

/// Inserts the new row in the room, in the place of another if there is one: packets meet that or this.
#[inline(always)]
pub fn conntrack_put<A: Tables>(key: &CtKey<A>, row: &mut CtEntry<A>) -> Result<(), DropReason> {
    if enter(key, row, BPF_ANY) == ENTERED { Ok(()) } else { Err(DropReason::ConntrackFull) }
}

const ENTERED: u32 = 0;
const TAKEN: u32 = 1;
const FULL: u32 = 2;

#[inline(always)]
fn enter<A: Tables>(key: &CtKey<A>, row: &mut CtEntry<A>, how: u32) -> u32 {
    let Some(asked) = room::asked() else { return FULL };
    *asked = *key;
    // SAFETY: it does nothing, but might read the row: what has been written to this is there before the call.
    unsafe { asm!("{row} = {row}", row = inout(reg) ptr::from_mut(row) => _, options(nostack)) };
    enter_asked::<A>(how)
}

#[inline(always)]
fn enter_in_room<A: Tables>(how: u32) -> u32 {
    let Some(Room { asked, row, other, .. }) = room::room::<A>() else { return FULL };
    row.check = asked.check(row);
    match A::conntrack().insert(&*asked, &*row, how.into()) {
        Ok(()) => ENTERED,
        Err(EXISTS) if conntrack(asked, other).is_some() => TAKEN,
        // Nobody can read what is there.
        Err(EXISTS) if A::conntrack().insert(&*asked, &*row, BPF_ANY.into()).is_ok() => ENTERED,
        Err(_) => FULL,
    }
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
