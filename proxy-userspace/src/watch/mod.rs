//! Where the desired state comes from: a Kubernetes API server, or a folder of ordinary
//! manifests. Both speak in batches of model values; objects are converted here. A bad part is
//! left out, and a bad object refused, alone and with a reason; its last good state stays then.
//!
//! The only module that knows kube-rs and the types of the Kubernetes API.

mod api;
pub mod convert;
mod file_events;
pub mod kube;
mod lenient;
pub mod manifests;
pub mod metrics;
mod told;
mod versions;

use std::{collections::HashMap, time::Instant};

use jiff::Timestamp;
use tokio::sync::mpsc;

use crate::model::{Change, ObjectName, Unknown};

pub use file_events::FileEvents;
pub use metrics::{WATCH, WatchMetrics};
pub use versions::Versions;

/// What a source reports at one time.
#[derive(Debug)]
pub struct Batch {
    /// What changed, in order.
    pub changes: Vec<Change>,
    /// With this batch, and those before it, everything that exists is known, but for what is `unknown`. Nothing
    /// may be written earlier.
    pub initial: bool,
    /// What the source cannot tell so far. What it could tell once does not become unknown again.
    pub unknown: Unknown,
    /// Grows with each batch of a source from that one on; 0 before.
    pub revision: u64,
    /// When the first of the changes was noticed.
    pub arrived: Instant,
    /// When what changed slices happened, as far as the API server says. By the slice's name.
    pub triggers: HashMap<ObjectName, Timestamp>,
    /// With this batch, and those before it, everything up to these versions is known.
    pub versions: Versions,
}

impl Batch {
    /// Changes that are noticed now, and say nothing of their past.
    pub fn new(changes: Vec<Change>, initial: bool, revision: u64) -> Self {
        let (triggers, versions) = (HashMap::new(), Versions::default());
        let unknown = Unknown::default();
        Self { changes, initial, unknown, revision, arrived: Instant::now(), triggers, versions }
    }
}

/// The receiving end of a source. It ends when the source is dropped, never by itself.
pub type Batches = mpsc::Receiver<Batch>;

/// Batches a source may be ahead of its reader.
const BATCHES_AHEAD: usize = 4;
