//! One module per map: key, value, capacity. Layouts are `repr(C)` integers and byte
//! arrays with the padding written out, so that any bit pattern is a valid value, and
//! their sizes are asserted at compile time.
//!
//! A change of a layout raises [`LAYOUT_VERSION`], which is part of the pin path: two
//! versions of the agent never take each other's bytes for their own. An agent that finds rows of
//! another layout copies them, field by field, by the names that BTF keeps beside each map.

pub mod address_filter;
pub mod affinity;
pub mod backends;
pub mod conntrack;
pub mod counters;
pub mod device_status;
pub mod devices;
pub mod events;
pub mod fragments;
pub mod frontends;
pub mod held_ports;
pub mod netns_addresses;
pub mod next_hops;
pub mod node_addresses;
pub mod refused_services;
pub mod service_cidrs;
pub mod service_drops;
pub mod services;
pub mod settings;
pub mod slots;
pub mod socket_datagrams;
pub mod socket_lb_exempt;
pub mod socket_peers;
pub mod source_ranges;
pub mod stale_sockets;
pub mod stale_ways;
pub mod sweep;
pub mod tails;
pub mod text;
pub mod transient;

/// Part of the path under which maps are pinned: `g<number>-v<LAYOUT_VERSION>`.
pub const LAYOUT_VERSION: u32 = 12;

/// Asserts sizes at compile time, where the reader of the struct sees them.
macro_rules! assert_size {
    ($($type:ty = $size:literal),+ $(,)?) => {
        $(const _: () = assert!(size_of::<$type>() == $size, concat!(stringify!($type), " changed its size"));)+
    };
}
pub(crate) use assert_size;

/// Marks types as plain old data for aya, which then copies their bytes to and from the
/// kernel. `Name<A>` stands for both families.
macro_rules! pod {
    ($($type:ident $(<$addr:ident>)?),+ $(,)?) => {
        $(
            // SAFETY: repr(C) integers and byte arrays without implicit padding (sizes asserted for both
            // families): every byte is initialised and any bit pattern is valid.
            #[cfg(feature = "user")]
            unsafe impl $(<$addr: $crate::addr::Addr + aya::Pod>)? aya::Pod for $type $(<$addr>)? {}
        )+
    };
}
pub(crate) use pod;
