//! Packets through the real programs, by `BPF_PROG_TEST_RUN`: what goes in, what comes out,
//! what was counted. Cases stand in the order in which a packet lives, and run for both
//! families.

mod bench;
#[allow(dead_code, reason = "shared with the benchmark, which uses the rest")]
mod bpf;
mod connection;
mod cpus;
mod fragments;
mod frames;
mod uplink;

mod affinity;
mod agreement;
mod direct;
mod dsr;
mod echo;
mod forgotten;
mod forward;
mod grace;
mod handover;
mod hooks;
mod hostile;
mod icmp_error;
mod mutated;
mod next_hop;
mod ports;
mod refuse;
mod reply;
mod reuse;
mod rows;
mod stray;
mod sweep;
mod transient;
mod turnover;
mod vanishing;
mod verifier;
