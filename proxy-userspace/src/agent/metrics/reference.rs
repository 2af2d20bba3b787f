//! Every metric there is, for the reference in `docs/metrics.md` and for whoever compares it
//! with what a running agent shows.

use super::{AGENT, config::CONFIG, kube_proxy::KUBE_PROXY, levels::LEVELS, traffic::TRAFFIC};
use crate::{
    health::HEALTH,
    kernel::DROPS,
    meter::Meter,
    metrics::{BUILD, PROCESS, SLIS},
    watch::WATCH,
};

/// The tables of all modules, by the heading they stand under.
pub fn reference() -> Vec<(&'static str, Vec<Meter>)> {
    let of = |tables: &[&[Meter]]| tables.concat();
    vec![
        ("kube-proxy's", of(&[&KUBE_PROXY, &HEALTH])),
        ("Services and backends", of(&[&TRAFFIC])),
        ("Refusals", of(&[&DROPS])),
        ("Levels", of(&[&LEVELS])),
        ("The agent's work", of(&[&AGENT, &CONFIG])),
        ("Sources of objects", of(&[&WATCH])),
        ("The process", of(&[&BUILD, &PROCESS])),
        ("Component SLIs, at `/metrics/slis`", of(&[&SLIS])),
    ]
}
