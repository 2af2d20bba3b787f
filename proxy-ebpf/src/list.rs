//! Lists the pairs that UDP sockets hold, which the kernel shows nobody else: the agent reads what these
//! programs write. Pairs that it has found to lead where they may not are removed on the way.
//!
//! Iterators over socket storage (`iter.rs`).

use core::ptr;

use aya_ebpf::bindings::seq_file;
use proxy_common::{
    Ip4, Ip6,
    maps::socket_datagrams::{HeldPair, ListedPair, SENT, SocketDatagrams, kind},
};

use crate::{
    iter::{Element, write},
    maps::{Tables, is_written, sent},
};

/// `struct sock`.
pub struct Socket;

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_sk_storage_map")]
pub extern "C" fn list_sockets_v4(element: *const Element<Socket, SocketDatagrams<Ip4>>) -> i32 {
    list::<Ip4>(element)
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_sk_storage_map")]
pub extern "C" fn list_sockets_v6(element: *const Element<Socket, SocketDatagrams<Ip6>>) -> i32 {
    list::<Ip6>(element)
}

#[inline(always)]
fn list<A: Tables>(element: *const Element<Socket, SocketDatagrams<A>>) -> i32 {
    // SAFETY: the kernel runs the program with such a context, and the agent lets it iterate over maps with
    // values of this type alone; the kernel refuses maps with smaller ones.
    unsafe {
        let data = (*element).value;
        if data.is_null() {
            return 0;
        }
        let seq = (*element).seq();
        let cookie = ptr::read_volatile(&raw const (*data).cookie);
        let connected = &raw mut (*data).connected;
        show(seq, cookie, kind::CONNECTED, connected);
        let sent_kind = if is_written(connected) { kind::EARLIER } else { kind::SENT };
        let mut place = 0;
        while place < SENT {
            show(seq, cookie, sent_kind, sent(data, place));
            place += 1;
        }
    }
    0
}

/// # Safety
/// `held` is part of a socket's storage.
#[inline(always)]
unsafe fn show<A: Tables>(seq: *mut seq_file, cookie: [u32; 2], kind: u32, held: *mut HeldPair<A>) {
    // SAFETY: the caller's. A pair that is written meanwhile is a pair of nobody: the agent destroys only
    // sockets that have the cookie and the peer, and nothing is removed for it.
    unsafe {
        let listed = ListedPair { cookie, kind, pair: ptr::read_volatile(&raw const (*held).pair) };
        if !is_written(held) || !listed.pair.holds() {
            return;
        }
        if A::stale_sockets().get_ptr(&listed.pair).is_some() {
            ptr::write_volatile(&raw mut (*held).pair.service, 0);
        } else {
            write(seq, &listed);
        }
    }
}
