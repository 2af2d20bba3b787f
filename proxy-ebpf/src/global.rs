//! Functions that the verifier walks once in a program. Others it walks anew for each call, and for each way that leads
//! to it: a search for a source port would be most of what it has to do.

/// Declares functions that the verifier takes for themselves ("global" in `check_func_call`, kernel/bpf/verifier.c),
/// as bodies that are inlined into them. It knows nothing of numbers that they are given; of pointers they take
/// the program's context alone, and look up in maps what else they need.
macro_rules! global_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) = $body:expr;)+) => {$(
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $name($($argument: $type),*) -> u32 {
            $body($($argument),*)
        }
    )+};
}
pub(crate) use global_functions;
