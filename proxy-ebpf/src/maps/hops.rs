//! Next hops that drivers remember.

use proxy_common::maps::next_hops::NextHop;

use super::{NEXT_HOPS, ROUTES, flows::copy_words};

/// How often routes have changed.
#[inline(always)]
pub fn routes() -> u32 {
    // SAFETY: an aligned word of the map, to which the agent adds.
    ROUTES.get_ptr(0).map_or(0, |routes| unsafe { routes.read_volatile() } as u32)
}

/// Copies what lies at `place`, which may be parts of several next hops: other CPUs write there.
#[inline(always)]
pub fn copy_next_hop(place: u32, copy: &mut NextHop) -> bool {
    let Some(hop) = NEXT_HOPS.get_ptr(place) else { return false };
    // SAFETY: the map keeps it, and any bits are a next hop.
    unsafe { copy_words::<u64, _>(hop, copy) };
    true
}

/// Where the next hop lies from now on. Where both of its places are taken it is written over another, which rows that
/// name that then miss.
#[inline(always)]
pub fn put_next_hop(hop: &NextHop) -> u32 {
    let [first, second] = hop.places();
    for place in [first, second] {
        let Some(there) = NEXT_HOPS.get_ptr(place) else { continue };
        // SAFETY: as above.
        let there = unsafe { there.read_volatile() };
        if there == *hop {
            return place;
        }
        if there.in_ifindex == 0 {
            return write(place, hop);
        }
    }
    write(first, hop)
}

#[inline(always)]
fn write(place: u32, hop: &NextHop) -> u32 {
    if let Some(there) = NEXT_HOPS.get_ptr_mut(place) {
        // SAFETY: as above. Whoever reads half of it sees that it is not what his row names.
        unsafe { there.write_volatile(*hop) };
    }
    place
}
