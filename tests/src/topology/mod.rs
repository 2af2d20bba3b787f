//! Networks made of namespaces.
//!
//! [`stage`] has one node, with everything else of the world in two namespaces that take
//! any address; [`cluster`] has several nodes that know each other.

pub mod cluster;
pub mod stage;

use std::{fmt::Write, net::IpAddr};

/// Link-local addresses of routers: fixed, so that routes can name them.
pub(crate) const NODE_V6: &str = "fe80::1:1";

/// How long a prefix of one address is.
pub(crate) fn full_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Lines for `ip -batch`.
#[derive(Debug, Default)]
pub(crate) struct Batch(String);

impl Batch {
    pub(crate) fn line(&mut self, line: impl AsRef<str>) -> &mut Self {
        self.0.push_str(line.as_ref());
        self.0.push('\n');
        self
    }

    pub(crate) fn address(&mut self, address: IpAddr, prefix: u8, device: &str) -> &mut Self {
        let nodad = if address.is_ipv4() { "" } else { " nodad" };
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "address add {address}/{prefix} dev {device}{nodad}");
        self
    }

    /// A router's link-local address, for IPv6 next hops.
    pub(crate) fn link_local(&mut self, address: &str, device: &str) -> &mut Self {
        self.line(format!("address add {address}/64 dev {device} nodad"))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}
