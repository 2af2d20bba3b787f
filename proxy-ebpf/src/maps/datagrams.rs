//! What socket LB did to a UDP socket.

use core::ptr;

use aya_ebpf::{
    bindings::{BPF_SK_STORAGE_GET_F_CREATE, bpf_sock},
    helpers::generated as helper,
};
use proxy_common::maps::socket_datagrams::{HeldPair, SENT, SocketDatagrams, SocketPair};

use super::{
    Tables,
    atomic::{exchange, fetch_add, fetch_or},
};

/// The socket's storage, if it has any. Others may write it meanwhile.
#[inline(always)]
pub fn socket_datagrams<A: Tables>(sk: *mut bpf_sock) -> Option<*mut SocketDatagrams<A>> {
    storage(sk, 0)
}

/// The same, made if there is none; nothing for want of memory.
#[inline(always)]
pub fn new_socket_datagrams<A: Tables>(sk: *mut bpf_sock) -> Option<*mut SocketDatagrams<A>> {
    storage(sk, BPF_SK_STORAGE_GET_F_CREATE)
}

/// Remembers a pair of `connect`, which `fill` writes. For want of memory the program sees the backend, and is
/// connected all the same.
#[inline(always)]
pub fn put_connected<A: Tables>(sk: *mut bpf_sock, cookie: u64, fill: impl FnOnce(&mut SocketPair<A>)) {
    let Some(data) = new_socket_datagrams::<A>(sk) else { return };
    // SAFETY: storage of this type, which stays until the program ends (RCU).
    unsafe { put_connected_in(data, cookie, fill) };
}

/// The same in storage that the socket has.
///
/// # Safety
/// `data` is a socket's storage.
#[inline(always)]
pub unsafe fn put_connected_in<A: Tables>(
    data: *mut SocketDatagrams<A>,
    cookie: u64,
    fill: impl FnOnce(&mut SocketPair<A>),
) {
    // SAFETY: the caller's.
    unsafe {
        let number = next(data, cookie);
        write(&raw mut (*data).connected, number, fill);
    }
}

/// Remembers a pair of `sendmsg`, in the place of the one that was used longest ago.
#[inline(always)]
pub fn put_sent<A: Tables>(sk: *mut bpf_sock, cookie: u64, fill: impl FnOnce(&mut SocketPair<A>)) {
    let Some(data) = new_socket_datagrams::<A>(sk) else { return };
    // SAFETY: as in `put_connected`.
    unsafe { put_sent_in(data, cookie, fill) };
}

/// Makes `pair` the one of `sendmsg` that was used last.
///
/// # Safety
/// `data` is a socket's storage.
#[inline(always)]
pub unsafe fn use_sent<A: Tables>(data: *mut SocketDatagrams<A>, cookie: u64, pair: &SocketPair<A>) {
    // SAFETY: the caller's.
    unsafe {
        let mut i = 0;
        while i < SENT {
            let held = sent(data, i);
            if look_at_pair(held, |known| (known == pair).then_some(())).is_some() {
                return use_pair(data, held);
            }
            i += 1;
        }
        put_sent_in(data, cookie, |new| *new = *pair);
    }
}

/// [`put_sent`] in storage that the socket has.
///
/// # Safety
/// `data` is a socket's storage.
#[inline(always)]
pub unsafe fn put_sent_in<A: Tables>(
    data: *mut SocketDatagrams<A>,
    cookie: u64,
    fill: impl FnOnce(&mut SocketPair<A>),
) {
    // SAFETY: the caller's.
    unsafe {
        let (mut oldest, mut place) = (u64::MAX, 0);
        let mut i = 0;
        while i < SENT {
            let version = ptr::read_volatile(&raw const (*sent(data, i)).version);
            if version < oldest {
                (oldest, place) = (version, i);
            }
            i += 1;
        }
        let number = next(data, cookie);
        // The verifier does not see that the place is one of them.
        if core::hint::black_box(place) < SENT {
            write(sent(data, place), number, fill);
        }
    }
}

/// True if anybody has ever written a pair there.
///
/// # Safety
/// `held` is part of a socket's storage.
#[inline(always)]
pub unsafe fn is_written<A>(held: *const HeldPair<A>) -> bool {
    // SAFETY: the caller's.
    unsafe { ptr::read_volatile(&raw const (*held).version) != 0 }
}

/// The pair in a place below [`SENT`].
///
/// # Safety
/// `data` is a socket's storage.
#[inline(always)]
pub unsafe fn sent<A: Tables>(data: *mut SocketDatagrams<A>, place: usize) -> *mut HeldPair<A> {
    // SAFETY: the caller's.
    unsafe { (&raw mut (*data).sent).cast::<HeldPair<A>>().add(place) }
}

/// Makes the pair the one that was used last.
///
/// # Safety
/// `held` is part of the socket's storage `data`.
#[inline(always)]
pub unsafe fn use_pair<A: Tables>(data: *mut SocketDatagrams<A>, held: *mut HeldPair<A>) {
    // SAFETY: the caller's.
    unsafe {
        let version = ptr::read_volatile(&raw const (*held).version);
        if version >> 1 != ptr::read_volatile(&raw const (*data).written) {
            let number = fetch_add(&raw mut (*data).written, 1) + 1;
            write(held, number, |_| ());
        }
    }
}

/// Looks at a pair; none if somebody writes it meanwhile.
///
/// # Safety
/// `held` is part of a socket's storage.
#[inline(always)]
pub unsafe fn look_at_pair<A: Tables, R>(
    held: *mut HeldPair<A>,
    look: impl FnOnce(&SocketPair<A>) -> Option<R>,
) -> Option<R> {
    // SAFETY: the caller's; the compiler moves no access over the atomic operations, and what was seen of a pair
    // that has been written meanwhile is not used.
    unsafe {
        let version = &raw mut (*held).version;
        let before = fetch_or(version, 0);
        if before & 1 != 0 {
            return None;
        }
        let seen = look(&(*held).pair)?;
        if before == fetch_or(version, 0) { Some(seen) } else { None }
    }
}

/// # Safety
/// `data` is a socket's storage.
#[inline(always)]
unsafe fn next<A: Tables>(data: *mut SocketDatagrams<A>, cookie: u64) -> u64 {
    // SAFETY: the caller's; every writer writes the same cookie.
    unsafe {
        ptr::write_volatile(&raw mut (*data).cookie, [(cookie >> 32) as u32, cookie as u32]);
        fetch_add(&raw mut (*data).written, 1) + 1
    }
}

/// Leaves it to the other if two write the same pair.
///
/// # Safety
/// `held` is part of a socket's storage.
#[inline(always)]
unsafe fn write<A: Tables>(held: *mut HeldPair<A>, number: u64, fill: impl FnOnce(&mut SocketPair<A>)) {
    // SAFETY: the caller's; an odd version is the writer's lock.
    unsafe {
        let version = &raw mut (*held).version;
        if fetch_or(version, 1) & 1 == 0 {
            fill(&mut (*held).pair);
            exchange(version, number << 1);
        }
    }
}

#[inline(always)]
fn storage<A: Tables>(sk: *mut bpf_sock, flags: u32) -> Option<*mut SocketDatagrams<A>> {
    let map = ptr::from_ref(A::socket_datagrams()).cast_mut().cast();
    // SAFETY: the loader puts the map in the place of its declaration; the kernel gives socket hooks a valid
    // socket, and without a value makes storage of zeros.
    let data = unsafe { helper::bpf_sk_storage_get(map, sk.cast(), ptr::null_mut(), u64::from(flags)) };
    if data.is_null() { None } else { Some(data.cast()) }
}
