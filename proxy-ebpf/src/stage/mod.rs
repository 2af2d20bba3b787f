//! The steps of a packet through the datapath, in their order.

pub mod affinity;
pub mod classify;
pub mod conntrack;
pub mod create;
pub mod decap;
pub mod direct;
pub mod echo;
pub mod encap;
pub mod forward;
pub mod fragments;
pub mod icmp_error;
pub mod lookup;
pub mod lost;
pub mod nat;
pub mod network;
pub mod output;
pub mod over;
pub mod ports;
pub mod reject;
pub mod route;
pub mod search;
pub mod select;
pub mod snat;
pub mod stray;
pub mod takeover;
pub mod trace;
