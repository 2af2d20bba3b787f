//! Any bytes as an IP packet.
#![no_main]

#[path = "../src/parser.rs"]
mod parser;

libfuzzer_sys::fuzz_target!(|packet: &[u8]| parser::check(packet));
