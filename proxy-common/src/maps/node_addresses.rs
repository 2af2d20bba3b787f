//! `node_addresses_v4`, `node_addresses_v6`: hash, address the host owns → bits of [`flags`].

/// Number of addresses a node may have per family.
pub const CAPACITY: u32 = 4_096;

/// Bits of the value.
pub mod flags {
    /// NodePorts are served on this address.
    pub const NODE_PORTS: u32 = 1;
}
