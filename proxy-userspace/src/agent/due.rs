//! What the agent has to do when.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Time between looks at the tables of connections.
pub(super) const SWEEP: Duration = Duration::from_secs(10);

/// Rows that changed may have left connections without a backend: a look comes soon.
pub(super) const SWEEP_AFTER_WRITES: Duration = Duration::from_secs(1);

/// Time between signs of life, by which a loop that hangs is noticed.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// Time between attempts to find room for Services that have none, where nobody has given any back.
pub(super) const REFUSED: Duration = Duration::from_secs(30);

/// The same where somebody has.
pub(super) const REFUSED_WITH_ROOM: Duration = Duration::from_secs(1);

/// For each second that a sweep took, seconds until the next one may begin, whatever is written:
/// large tables are looked at less often, not with more of a processor.
pub(super) const SWEEP_REST: u32 = 10;

/// For each second that a comparison of all rows took, seconds until the next one may begin: changes
/// wait while it goes on, and of a hundred changes not one shall.
pub(super) const FULL_SYNC_REST: u32 = 200;

/// Time between looks whether what is attached still is. Two system calls for each program.
pub(super) const ATTACHMENTS: Duration = Duration::from_secs(10);

/// Pods that start while the API server is away have their link attached after this.
const LISTS_PATIENCE: Duration = Duration::from_secs(15);

/// When something has to be done next.
pub(super) struct Due {
    /// The next sign of life.
    pub(super) beat: Instant,
    /// A round of writes, if there is anything to write.
    pub(super) writes: Option<Instant>,
    /// The earliest time of the next round.
    pub(super) writes_not_before: Instant,
    /// Another attempt to find room for Services that have none.
    pub(super) refused: Option<Instant>,
    pub(super) full_sync: Instant,
    /// A look whether what is attached still is.
    pub(super) attachments: Instant,
    pub(super) sweep: Instant,
    /// The earliest time of the next sweep.
    pub(super) sweep_not_before: Instant,
    /// Another look for the cgroups of pods that want no socket LB.
    pub(super) exempt: Option<Instant>,
    /// Attaching without knowing the node, if it comes to that.
    pub(super) patience: Option<Instant>,
}

impl Due {
    pub(super) fn new(sync_period: Duration) -> Self {
        let now = Instant::now();
        Self {
            beat: now,
            writes: None,
            writes_not_before: now,
            refused: None,
            full_sync: now + sync_period,
            attachments: now + ATTACHMENTS,
            sweep: now + SWEEP,
            sweep_not_before: now,
            exempt: None,
            patience: Some(now + LISTS_PATIENCE),
        }
    }

    /// A retry that waits for its time must not hold up what is new.
    pub(super) fn write_soon(&mut self) {
        self.writes = Some(self.writes_not_before.max(Instant::now()));
    }

    pub(super) fn full_sync_at(&self, listed: bool) -> Option<Instant> {
        listed.then_some(self.full_sync)
    }

    /// Until programs are attached there is nothing to look for.
    pub(super) fn attachments_at(&self) -> Option<Instant> {
        self.patience.is_none().then_some(self.attachments)
    }

    pub(super) fn sweep_at(&self, listed: bool) -> Option<Instant> {
        listed.then_some(self.sweep.max(self.sweep_not_before))
    }
}

/// Completes at `time`, or never.
pub(super) async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
