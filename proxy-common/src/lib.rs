//! What the eBPF programs and the agent must agree on: map layouts, flags, drop
//! reasons, and arithmetic that runs unchanged on both sides.
//!
//! Nothing here touches a context, a map or a clock, so all of it is tested on any
//! machine without privileges.
//!
//! Byte order: addresses are the bytes of the wire; ports are host-order integers,
//! so that `bpftool map dump` shows them as people write them.
#![no_std]
// One instruction of assembly, see `packet::bounded`; the BPF target is built with unstable features on.
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

#[cfg(any(feature = "user", test))]
extern crate std;

pub mod addr;
pub mod checksum;
pub mod crc32c;
pub mod drop_reason;
pub mod flow;
pub mod hash;
pub mod maps;
pub mod packet;
pub mod proto;
pub mod tuple;
mod weighted_sum;

pub use addr::{Addr, Ip4, Ip6};
pub use drop_reason::DropReason;
pub use tuple::Tuple;
