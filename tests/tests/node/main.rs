//! The node tier: namespaces as nodes, pods and clients, an agent on each node, and real
//! sockets. Needs root.
#![allow(clippy::unwrap_used, reason = "a test")]

mod addresses;
mod calls;
mod capture;
mod check;
mod confined;
mod conntrack_memory;
mod copies;
mod datagrams;
mod detour;
mod detour_mtu;
mod direct;
mod documents;
mod dsr;
mod edges;
mod explain;
mod flood;
mod fragments;
mod growth;
mod harness;
mod health;
mod http;
mod icmp;
mod inspect;
mod life;
mod lost;
mod metrics;
mod monitoring;
mod operator;
mod opt_out;
mod ports;
mod raw;
mod reconnect;
mod reload;
mod repair;
mod services;
mod sharing;
mod socket;
mod stage;
mod stats;
mod trace;
mod udp;
mod verify;
mod world;
mod xdp;
