//! Shows two nodes with real traffic: what was tried, what should happen, who answered.

mod checks;
mod look;
mod table;

pub use checks::all as check_all;
pub use table::{Row, render};

use crate::{
    agent::{Agent, SocketLb},
    manifests,
    topology::cluster::Cluster,
};
use anyhow::Result;
use std::{
    thread,
    time::{Duration, Instant},
};

/// Runs the demo; true when everything held.
pub fn run(socket_lb: SocketLb, keep: bool) -> Result<bool> {
    let mut cluster = timed("two nodes, four pods, a client and a load balancer", || {
        Cluster::build(2, &Agent::small(socket_lb))
    })?;
    timed("an agent on each node, fed with manifests", || cluster.start(&manifests::two_nodes()?))?;
    let rows = timed("connections of real sockets", || check_all(&cluster))?;
    println!("\n{}", render(&rows));
    let held = rows.iter().filter(|row| row.holds).count();
    println!("{held} of {} hold", rows.len());
    if keep {
        look::explain(&cluster)?;
        wait();
    }
    Ok(held == rows.len())
}

fn timed<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    println!("… {what}");
    let done = work()?;
    println!("  {} ms", start.elapsed().as_millis());
    Ok(done)
}

/// Until a signal comes, whose handling removes everything.
fn wait() -> ! {
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}
