//! The faults tier: agents end, crash and come back, the API server goes away, somebody else
//! writes to the maps, links flap; meanwhile traffic flows that counts every connection and
//! every datagram ([`tests::load`]). Needs root.
#![allow(clippy::unwrap_used, reason = "a test")]

mod load;
mod restart;
mod world;
