//! The programs that carry service traffic.
//!
//! `tc.rs`, `xdp.rs`, `sock.rs` and `bind.rs` are the entry points: they wrap the kernel's context, call a
//! pipeline, count, and turn the verdict into an action. `pipeline.rs` lists the stages. The agent has those of
//! `list.rs` and `sweep.rs` run over what maps hold.
//! Everything below is generic over the address family and the kind of packet.
#![no_std]
#![no_main]
// One instruction of assembly, see `maps::admit_address`; the BPF target is built with unstable features on.
#![feature(asm_experimental_arch)]
#![allow(
    clippy::needless_borrows_for_generic_args,
    reason = "a key or value that is passed by value is copied on a stack of 512 bytes"
)]

mod bind;
mod global;
mod iter;
mod list;
mod maps;
mod packet;
mod pipeline;
mod sock;
mod stage;
mod sweep;
mod tc;
mod xdp;

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel offers several of the helpers used here to GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
