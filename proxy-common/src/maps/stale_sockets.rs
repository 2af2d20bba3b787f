//! `stale_sockets_v4`, `stale_sockets_v6`: hash, pairs of sockets that the agent has found to lead where they
//! may not. Listing the sockets removes them. The key is a `SocketPair` of `socket_datagrams`.

/// Rows per family: pairs that are removed at once.
pub const CAPACITY: u32 = 1024;
