//! What socket LB did to a TCP socket.

use aya_ebpf::{
    bindings::{BPF_SK_STORAGE_GET_F_CREATE, bpf_sock},
    helpers::generated as helper,
};
use proxy_common::maps::socket_peers::SocketPeer;

use super::Tables;

/// What the socket was connected to.
#[inline(always)]
pub fn socket_peer<A: Tables>(sk: *mut bpf_sock) -> Option<&'static SocketPeer<A>> {
    let peer = storage::<A>(sk, core::ptr::null_mut(), 0);
    // SAFETY: null or storage of this type, which stays until the program ends (RCU).
    unsafe { peer.as_ref() }
}

#[inline(always)]
pub fn put_socket_peer<A: Tables>(sk: *mut bpf_sock, new: &SocketPeer<A>) {
    let value = core::ptr::from_ref(new).cast_mut();
    let peer = storage::<A>(sk, value, u64::from(BPF_SK_STORAGE_GET_F_CREATE));
    if !peer.is_null() {
        // It is not a new one if the socket was connected before.
        // SAFETY: storage of this type; who reads it meanwhile compares the backend with the socket's peer.
        unsafe { *peer = *new };
    }
    // For want of memory the program sees the backend, and is connected all the same.
}

/// Has the socket be one that was connected to no frontend.
#[inline(always)]
pub fn clear_socket_peer<A: Tables>(sk: *mut bpf_sock) {
    let peer = storage::<A>(sk, core::ptr::null_mut(), 0);
    if !peer.is_null() {
        // SAFETY: as in `put_socket_peer`.
        unsafe { *peer = SocketPeer::default() };
    }
}

/// The socket's storage, null if it has none. With the flag to create it, `value` is what a new one holds.
#[inline(always)]
fn storage<A: Tables>(sk: *mut bpf_sock, value: *mut SocketPeer<A>, flags: u64) -> *mut SocketPeer<A> {
    let map = core::ptr::from_ref(A::socket_peers()).cast_mut().cast();
    // SAFETY: the loader puts the map in the place of its declaration; the kernel gives socket hooks a valid
    // socket, and only reads the value.
    unsafe { helper::bpf_sk_storage_get(map, sk.cast(), value.cast(), flags) }.cast()
}
