//! Where rows of `conntrack` and what belongs to them are put together, from one call or program to the
//! next: the stack has no room.

use core::arch::asm;

use proxy_common::{
    Tuple,
    maps::{
        conntrack::{CtEntry, CtKey},
        counters::{CounterKey, Traffic},
        devices::SNAT_ADDRESSES,
        fragments::{FragmentKey, FragmentRow},
        frontends::Frontend,
        held_ports::HeldPortsKey,
        next_hops::NextHop,
    },
    packet::Parsed,
};

use super::{Tables, device::DeviceFacts};
use crate::stage::{ports::Search, select::Refusal};

/// The room of a CPU.
#[repr(C)]
pub struct Room<A> {
    pub row: CtEntry<A>,
    pub found: CtEntry<A>,
    pub candidate: CtEntry<A>,
    pub other: CtEntry<A>,
    pub asked: CtKey<A>,
    pub key: CtKey<A>,
    /// Of a row that belongs to the one whose key is above.
    pub other_key: CtKey<A>,
    pub search: Search,
    pub ports_key: HeldPortsKey<A>,
    pub carried: Carried,
    pub turn: Turn,
    refusal: Refusal,
    pub parsed: Parsed<A>,
    /// What the packet is at another step of its translation than the one in `parsed`.
    pub step: Tuple<A>,
    /// Where it goes from there, by a driver.
    pub hop: NextHop,
    frontend: Frontend,
    fragment_key: FragmentKey<A>,
    fragment: FragmentRow<A>,
    pub snat_addresses: [A; SNAT_ADDRESSES],
    facts: DeviceFacts,
}

/// All of it, for functions whose stack has no room for a reference to each part.
#[inline(always)]
pub fn room<A: Tables>() -> Option<&'static mut Room<A>> {
    // SAFETY: see `parts`.
    A::rooms().get_ptr_mut(0).map(|room| unsafe { &mut *there(room) })
}

/// A turn in a queue of connections that give way.
#[repr(C)]
pub struct Turn {
    /// When the connection whose key is in the room begins to wait, 0 if none does.
    pub since: u64,
    /// When who waited in the place began to.
    pub waits_since: u64,
    /// The protocol of the connection that takes the place; 0 if it has ended.
    pub proto: u32,
    /// 1 if who waited in the place is to be forgotten, whose key is in the room then.
    pub is_due: u32,
    /// 1 if nothing is left of that connection but the row with this key.
    pub is_alone: u32,
}

/// What a row has counted that is about to go.
#[repr(C)]
pub struct Carried {
    pub key: CounterKey,
    /// 1 when it is gone.
    pub is_removed: u32,
    pub traffic: Traffic,
}

macro_rules! parts {
    ($($(#[$doc:meta])* $part:ident = $name:ident: $type:ty;)+) => {
        $(
            $(#[$doc])*
            #[inline(always)]
            pub fn $name<A: Tables>() -> Option<&'static mut $type> {
                // SAFETY: the slot belongs to this CPU, and no other program of ours interrupts the one
                // that uses it: those of devices run with softirqs off. Programs alone write it, and zeroes
                // are valid everywhere. Nobody uses a part that has been asked for again since.
                A::rooms().get_ptr_mut(0).map(|room| unsafe { &mut (*there(room)).$part })
            }
        )+
    };
}

parts! {
    /// Room for a row that is not in the table yet.
    row = new_row: CtEntry<A>;
    /// A copy of the packet's row.
    found = found: CtEntry<A>;
    /// A copy of a row whose connection may give way to another.
    candidate = candidate: CtEntry<A>;
    /// A copy of a row that belongs to another one: from one line to the next.
    other = other: CtEntry<A>;
    /// Room for the keys of rows that are looked for.
    key = new_key: CtKey<A>;
    /// The key of the row that a function is to copy, or check.
    asked = asked: CtKey<A>;
    /// What the packet is at another step of its translation.
    step = step: Tuple<A>;
    /// The next hop of a frame that a driver sends on.
    hop = next_hop: NextHop;
    /// The search for a source port.
    search = search: Search;
    /// Room for the key of what is known of source ports.
    ports_key = ports_key: HeldPortsKey<A>;
    /// What a row has counted.
    carried = carried: Carried;
    /// A turn in a queue.
    turn = turn: Turn;
    /// Why a packet is refused.
    refusal = refusal: Refusal;
    /// What a packet says.
    parsed = parsed: Parsed<A>;
    /// Room for the frontend that a packet goes to.
    frontend = frontend_room: Frontend;
    /// The key of the row that a function is to copy.
    fragment_key = fragment_key: FragmentKey<A>;
    /// A copy of the row of a packet in fragments.
    fragment = fragment_room: FragmentRow<A>;
    /// A copy of the addresses of a device.
    snat_addresses = snat_addresses: [A; SNAT_ADDRESSES];
    /// A copy of what is known of a device.
    facts = facts: DeviceFacts;
}

/// Has the compiler compute with a pointer only where it is known that there is one: the verifier refuses the rest.
#[inline(always)]
pub(super) fn there<T>(mut pointer: *mut T) -> *mut T {
    // SAFETY: it does nothing.
    unsafe { asm!("{0} = {0}", inout(reg) pointer, options(readonly, nostack, preserves_flags)) };
    pointer
}

/// Keeps a refusal for the program that says it.
#[inline(always)]
pub fn put_refusal<A: Tables>(kept: Refusal) {
    if let Some(room) = refusal::<A>() {
        *room = kept;
    }
}

/// Has the compiler read from the room what it has just written there.
#[inline(always)]
pub fn read_anew() {
    // SAFETY: no instruction, but it may have written anything.
    unsafe { asm!("", options(nostack, preserves_flags)) };
}
