//! What a proof says to the prover: give me any value, consider only those, look at this memory.
//!
//! The functions declared here have no body. The prover knows them by their names and acts when they are called.

use core::{mem::MaybeUninit, panic::PanicInfo, slice};

use proxy_common::packet::headers::Header;

unsafe extern "C" {
    fn shunt_any(to: *mut u8, len: usize, name: *const u8, name_len: usize);
    fn shunt_stop() -> !;
    fn shunt_memory(len: usize) -> *const u8;
    fn shunt_failed(file: *const u8, file_len: usize, line: u32) -> !;
}

/// A type of which any bytes are a value.
///
/// # Safety
/// Integers and arrays and structures of them, without references, `bool` and enumerations.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),+ $(,)?) => { $(
        // SAFETY: integers, and arrays and structures of them.
        unsafe impl Plain for $type {}
    )+ };
}

plain!(u8, u16, u32, u64, proxy_common::Ip4, proxy_common::Ip6);
plain!(proxy_common::maps::slots::SlotRange, proxy_common::maps::settings::TimeoutSecs);

// SAFETY: integers and byte arrays, says `Header`.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
// SAFETY: rows and keys of maps are integers and byte arrays, with any bit pattern valid.
unsafe impl<A: Plain> Plain for proxy_common::maps::conntrack::CtEntry<A> {}
// SAFETY: as above.
unsafe impl<A: Plain> Plain for proxy_common::maps::conntrack::CtKey<A> {}
// SAFETY: as above.
unsafe impl<A: Plain> Plain for proxy_common::Tuple<A> {}

/// Any value. A counterexample gives it by this name.
#[inline(always)]
pub(crate) fn any<T: Plain>(name: &'static str) -> T {
    // SAFETY: any bytes are a T.
    unsafe { any_bytes(name) }
}

/// # Safety
/// Any bytes are a `T`.
#[inline(always)]
unsafe fn any_bytes<T>(name: &'static str) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the prover fills all bytes.
    unsafe {
        shunt_any(value.as_mut_ptr().cast(), size_of::<T>(), name.as_ptr(), name.len());
        value.assume_init()
    }
}

/// Any truth value.
#[inline(always)]
pub(crate) fn any_bool(name: &'static str) -> bool {
    any::<u8>(name) & 1 != 0
}

/// From here on only values for which this is true.
#[inline(always)]
pub(crate) fn assume(is_so: bool) {
    if !is_so {
        // SAFETY: the prover gives the path up.
        unsafe { shunt_stop() }
    }
}

/// So many bytes of memory that hold anything, and something else each time they are read. The prover refutes a proof
/// that reads beside them.
#[inline(always)]
pub(crate) fn memory(len: usize) -> &'static [u8] {
    // SAFETY: to the prover there are so many bytes at the address that it gives.
    unsafe { slice::from_raw_parts(shunt_memory(len), len) }
}

/// A header of any bytes.
#[inline(always)]
pub(crate) fn any_header<T: Header>(name: &'static str) -> T {
    // SAFETY: any bytes are a header.
    unsafe { any_bytes(name) }
}

/// An assertion that does not hold, an overflow, an index out of bounds: what the proof says is refuted.
#[panic_handler]
fn refuted(info: &PanicInfo) -> ! {
    let (file, line) = info.location().map_or(("unknown", 0), |place| (place.file(), place.line()));
    // SAFETY: the prover ends the path.
    unsafe { shunt_failed(file.as_ptr(), file.len(), line) }
}

/// Makes proofs of functions. Their documentation is what they prove, and is printed with the result.
macro_rules! proofs {
    ($($(#[doc = $text:literal])+ fn $name:ident() $body:block)+) => { $(
        const _: () = {
            // A symbol that the prover finds by its name: "prove_", and what the function is called.
            #[unsafe(export_name = concat!("prove_", stringify!($name)))]
            extern "C" fn prove() $body

            #[unsafe(export_name = concat!("about_", stringify!($name)))]
            static ABOUT: [u8; concat!($($text),+).len() + 1] = {
                let (text, mut bytes) = (concat!($($text),+).as_bytes(), [0; concat!($($text),+).len() + 1]);
                let mut i = 0;
                while i < text.len() {
                    bytes[i] = text[i];
                    i += 1;
                }
                bytes
            };
        };
    )+ };
}
pub(crate) use proofs;
