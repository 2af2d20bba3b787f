//! The agent: `watch → model → plan → dataplane → kernel`.

pub mod config;
pub mod logging;
