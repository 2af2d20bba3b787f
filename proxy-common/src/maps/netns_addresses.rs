//! `netns_addresses_v4`, `netns_addresses_v6`: LRU hash, network namespace → the address of its sockets,
//! known once one of them was bound to it.
//!
//! A socket that is not bound has no address yet when it is connected. Session affinity takes it for the
//! same client as one that is bound to this address.

use super::assert_size;
use crate::addr::{Ip4, Ip6};

/// Rows that are kept at a time, per family. The map has more: free ones lie with each CPU.
pub const CAPACITY: u32 = 4_096;

/// `bpf_get_netns_cookie` of the namespace.
pub type Netns = u64;

assert_size!(Ip4 = 4, Ip6 = 16);
