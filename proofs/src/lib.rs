//! Proofs that the prover reads as machine code: functions that take any values, call what they are about, and assert
//! what holds. `prove.py` follows every path through each of them with values that stand for all values; docs/proofs.md
//! tells how, and how to add one. What is enumerated instead is in `exhaustive`.
#![no_std]

mod checksum;
mod crc32c;
mod lifetime;
mod parser;
mod rows;
mod slots;
mod symbolic;
