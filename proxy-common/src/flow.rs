//! What a connection is: how its rows of [`conntrack`] are made of each other, and the state that they
//! tell together. The datapath's stages and the agent's sweep both go by it.
//!
//! No row is a fact of its own: anybody may delete one. Each
//! names all ends of its connection, so what is lost is made anew of any row that a packet meets
//! ([`CtEntry::write_pair`], [`CtEntry::write_next`]).
//!
//! [`conntrack`]: crate::maps::conntrack
//! [`CtEntry::write_pair`]: crate::maps::conntrack::CtEntry::write_pair
//! [`CtEntry::write_next`]: crate::maps::conntrack::CtEntry::write_next

mod connection;
mod end;
mod ports;
mod role;
mod rows;
mod tcp;
#[cfg(test)]
mod testing;

pub use self::{
    connection::{Connection, may_be_cut},
    ports::SourcePorts,
    tcp::{TcpState, ends, noted},
};
