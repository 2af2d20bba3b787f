//! The benchmarks that compare: the same networks without a proxy, with the real kube-proxy and
//! with shunt, side by side in one run.
//!
//! [`traffic`] measures what requests cost, [`control`] what changes of Services cost, [`load`] what holds
//! under load that lasts; [`report`] writes it down. [`bounds`] keeps them from filling the machine. How, and
//! what the figures mean, is told in `docs/benchmarks/method.md`.

pub mod bounds;
pub mod contender;
pub mod control;
pub mod cpus;
pub mod ends;
pub mod field;
pub mod load;
pub mod machine;
pub mod populate;
mod proc;
pub mod report;
pub mod statistics;
pub mod target;
pub mod traffic;
