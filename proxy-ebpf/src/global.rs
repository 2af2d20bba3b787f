//! Functions that the verifier walks once in a program. Others it walks anew for each call, and for each way that leads
//! to it: a search for a source port would be most of what it has to do.

/// Declares functions that the verifier takes for themselves ("global" in `check_func_call`, kernel/bpf/verifier.c),
/// as bodies that are inlined into them. It knows nothing of numbers that they are given; of pointers they take
/// the program's context alone, and look up in maps what else they need.
macro_rules! global_functions {
    ($($visibility:vis fn $name:ident($($argument:ident: $type:ty),*) = $body:expr;)+) => {$(
        #[unsafe(no_mangle)]
        #[inline(never)]
        $visibility extern "C" fn $name($($argument: $type),*) -> u32 {
            $body($($argument),*)
        }
    )+};
}
pub(crate) use global_functions;

/// Declares a function that calls a global one for its address family: these have no parameters of type. The body
/// has.
macro_rules! global_by_family {
    ($(fn $name:ident($($argument:ident: $type:ty),*) = $body:ident as $v4:ident, $v6:ident;)+) => {$(
        #[inline(always)]
        fn $name<A: $crate::maps::Tables>($($argument: $type),*) -> u32 {
            if A::VERSION == 4 { $v4($($argument),*) } else { $v6($($argument),*) }
        }

        $crate::global::global_functions! {
            fn $v4($($argument: $type),*) = $body::<proxy_common::Ip4>;
            fn $v6($($argument: $type),*) = $body::<proxy_common::Ip6>;
        }
    )+};
}
pub(crate) use global_by_family;
