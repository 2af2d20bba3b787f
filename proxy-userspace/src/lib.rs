//! The agent: `watch → model → plan → dataplane → kernel`.

pub mod agent;
pub mod cli;
pub mod clock;
pub mod config;
pub mod dataplane;
pub mod health;
pub mod kernel;
pub mod logging;
pub mod meter;
pub mod metrics;
pub mod model;
pub mod plan;
pub mod serve;
pub mod tasks;
pub mod watch;
