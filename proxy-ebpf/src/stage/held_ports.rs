//! Source ports that are known to be held: a search for a free one passes over them.

use core::ptr;

use proxy_common::{
    flow::SourcePorts,
    maps::held_ports::{HeldPorts, LIFETIME_NS},
};

use super::conntrack::now;
use crate::maps::{self, Room, Tables};

/// Held ports of 64 that one search meets before they are remembered for others: where fewer are held, a
/// free one is soon found.
const MANY: u32 = 16;

/// What a search knows of the 64 ports that it tries.
#[repr(C)]
#[derive(Default)]
pub struct Known {
    /// Those that it has found held.
    here: HeldPorts,
    /// How many they are.
    count: u32,
    /// Which of the words that it has begun this is.
    word: u32,
    /// 1 if there is a row of `held_ports`.
    has_row: u32,
    /// 1 if ports have been passed over, of any word.
    has_passed_over: u32,
    /// 1 when no other port was to be had.
    is_doubted: u32,
}

impl Known {
    /// True if nothing is known yet of the word that the search has begun.
    #[inline(always)]
    pub fn is_of_another(&self, ports: &SourcePorts) -> bool {
        self.word != ports.begun()
    }

    /// True if ports have been passed over, which are to come when no other is to be had.
    #[inline(always)]
    pub fn doubt(&mut self) -> bool {
        let is_first = self.has_passed_over != 0 && self.is_doubted == 0;
        self.is_doubted = 1;
        is_first
    }

    /// What comes next is another word, or that of another address.
    #[inline(always)]
    pub fn forget(&mut self) {
        self.word = 0;
    }
}

/// Passes over ports of the word that the search has begun, if they are known to be held.
#[inline(always)]
pub fn pass_over<A: Tables>(room: &mut Room<A>) {
    let Room { search, ports_key, .. } = room;
    let (known, ports) = (&mut search.known, &mut search.ports);
    (known.here.held, known.count, known.has_row) = (0, 0, 0);
    known.word = ports.begun();
    ports_key.word = ports.word();
    let Some(row) = maps::held_ports(ports_key) else { return };
    // SAFETY: fields of a map row, which stays in place until the program ends; each is read once.
    let (held, since) =
        unsafe { (ptr::read_volatile(&raw const (*row).held), ptr::read_volatile(&raw const (*row).since)) };
    if now().wrapping_sub(since) > LIFETIME_NS {
        return;
    }
    known.has_row = 1;
    if known.is_doubted == 0 && held != 0 {
        known.has_passed_over = 1;
        ports.leave_out(held);
    }
}

/// Remembers that the port that was looked at is held.
#[inline(always)]
pub fn remember<A: Tables>(room: &mut Room<A>) {
    let Room { search, ports_key, key, .. } = room;
    let (known, ports) = (&mut search.known, &search.ports);
    known.here.held |= ports.bit_of(key.dport);
    known.count += 1;
    if known.has_row == 0 && known.count < MANY {
        return;
    }
    ports_key.word = ports.word_of(key.dport);
    if known.has_row != 0 && maps::add_held_ports(ports_key, known.here.held) {
        return;
    }
    known.here.since = now();
    maps::put_held_ports(ports_key, &known.here);
    known.has_row = 1;
}
