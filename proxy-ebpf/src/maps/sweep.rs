//! Where a sweep puts a connection together: on the stack there is no room. And the verifier follows what lies on the
//! stack, so that it walks the rest of the program once for each way to get there; of values of maps it knows nothing.

use proxy_common::{
    flow::Connection,
    maps::{
        conntrack::CtKey,
        sweep::{Sweep, SweptConnection},
    },
};

use super::{SWEEP, Tables, atomic::exchange};

/// The room of a CPU.
#[repr(C)]
pub struct SweepRoom<A> {
    /// 1 while a program uses it.
    taken: u64,
    pub connection: Connection<A>,
    pub swept: SweptConnection<A>,
    /// Of a row that belongs to the one that is looked at.
    pub other: CtKey<A>,
}

/// How to sweep.
#[inline(always)]
pub fn sweep() -> Option<&'static mut Sweep> {
    // SAFETY: the agent writes it before it has the programs run. Whoever else reads their pins has them run too: then
    // `rows`, which is all that programs write, is wrong.
    SWEEP.get_ptr_mut(0).map(|p| unsafe { &mut *p })
}

/// Calls `inside` with the room of this CPU; nothing if another reader of the iterator has it, whom this one
/// interrupted.
#[inline(always)]
pub fn in_sweep_room<A: Tables, T>(inside: impl FnOnce(&mut SweepRoom<A>) -> T) -> Option<T> {
    let room = A::sweep_rooms().get_ptr_mut(0)?;
    // SAFETY: `taken` is an aligned u64 of the map, and programs alone write there. Whoever finds 0 has the room until
    // it writes that again: the kernel moves no program to another CPU. Zeroes are valid everywhere.
    unsafe {
        let taken = &raw mut (*room).taken;
        if exchange(taken, 1) != 0 {
            return None;
        }
        let result = inside(&mut *room);
        exchange(taken, 0);
        Some(result)
    }
}
