//! What keeps a long measurement within bounds: room on the disk, what is finished and what is left,
//! and what it leaves behind.

mod journal;
mod progress;

use anyhow::{Context as _, Result, ensure};
use nix::sys::statvfs::statvfs;

pub use journal::Journal;
pub use progress::Progress;

use super::populate::store;

/// What etcd takes for one Service with 10 endpoints, and for itself, in MiB: about twice what 10,000
/// were found to take, and its logs.
const MIB_PER_SERVICE: f64 = 0.02;
const MIB_OF_ITSELF: f64 = 300.0;
/// What is to be left for everybody else, in MiB, and when it is that much.
const LEFT: f64 = 10_240.0;
const MANY: u32 = 1_000;
const LEFT_BY_FEW: f64 = 1_024.0;

/// Options of measurements that take long.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Bounds {
    /// Go on where a measurement with the same options was cut off
    #[arg(long)]
    pub resume: bool,
    /// Keep the API servers' data for the next measurement, as `populate` does
    #[arg(long)]
    pub keep_data: bool,
}

impl Bounds {
    /// Begins the measurement that `name` stands for, or goes on with it. `options` are those that
    /// its results depend on.
    pub fn begin(&self, name: &str, options: &str, services: &[u32]) -> Result<Journal> {
        ensure_room(services)?;
        Journal::open(&store::folder()?.join(format!("bench-{name}.json")), options, self.resume)
    }

    /// Ends it: everything is finished. What it has written of API servers' data is removed.
    pub fn end(&self, journal: Journal) -> Result<()> {
        if !self.keep_data {
            journal.remove_data()?;
        }
        journal.close()
    }
}

/// Fails where the data of API servers with so many Services, one after the other, would fill the disk.
fn ensure_room(services: &[u32]) -> Result<()> {
    let most = services.iter().copied().max().unwrap_or_default();
    let kept: f64 = services.iter().map(|services| mib(*services)).sum();
    let left = if most >= MANY { LEFT } else { LEFT_BY_FEW };
    // Once as it is kept, once as a server uses it.
    let needed = kept + mib(most) + left;
    let folder = store::folder()?;
    let disk = statvfs(&folder).with_context(|| format!("ask for the room in {}", folder.display()))?;
    let free = disk.blocks_available() as f64 * disk.fragment_size() as f64 / f64::from(1 << 20);
    ensure!(
        free >= needed,
        "{} has {free:.0} MiB left, and {needed:.0} are needed ({left:.0} of them for everybody else): make room, \
         set XDG_CACHE_HOME to another disk, or measure fewer --services",
        folder.display()
    );
    Ok(())
}

fn mib(services: u32) -> f64 {
    MIB_OF_ITSELF + MIB_PER_SERVICE * f64::from(services)
}
