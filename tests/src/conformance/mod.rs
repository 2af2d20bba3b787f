//! Runs the cases of `tests/cases`: builds what a case describes from real kernel
//! objects, runs the agent on it, and asks real sockets where packets go.
//!
//! `files` reads the cases, `case` is their form and `pick` chooses among them; `objects`
//! keeps the manifests, `scene` builds the world of a case, `flow` makes the connections and
//! `pause` the time between them, `judge` compares, `config`, `conntrack` and `health` do what
//! their sections say, `run` puts them in order and `report` prints.

pub mod case;
mod config;
mod conntrack;
pub mod files;
mod flow;
mod health;
mod judge;
mod objects;
mod overdue;
mod pause;
pub mod pick;
pub mod report;
mod run;
mod scene;

pub use run::{Setting, Verdict, run};
