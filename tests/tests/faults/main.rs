//! The faults tier: agents end, crash and come back, the API server goes away, somebody else
//! writes to the maps, links flap; meanwhile traffic flows that counts every connection and
//! every datagram ([`tests::load`]). Needs root.
#![allow(clippy::unwrap_used, reason = "a test")]

mod api_server;
mod links;
mod load;
mod restart;
mod tampering;
mod turnover;
mod upgrade;
mod world;
