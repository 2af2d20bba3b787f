//! Where the desired state comes from: a Kubernetes API server, or a folder of ordinary
//! manifests. Both speak in batches of model values; objects are converted here, and a
//! bad one is refused alone, with a reason, while its last good state stays.
//!
//! The only module that knows kube-rs and the types of the Kubernetes API.

pub mod convert;
mod file_events;
pub mod kube;
pub mod manifests;
pub mod metrics;

use tokio::sync::mpsc;

use crate::model::Change;

pub use file_events::FileEvents;
pub use metrics::WatchMetrics;

/// What a source reports at one time.
#[derive(Debug)]
pub struct Batch {
    /// What changed, in order.
    pub changes: Vec<Change>,
    /// The first batch of a source: everything that exists. Nothing may be written before it.
    pub initial: bool,
    /// Grows with each batch of a source.
    pub revision: u64,
}

/// The receiving end of a source. It ends when the source is dropped, never by itself.
pub type Batches = mpsc::Receiver<Batch>;

/// Batches a source may be ahead of its reader.
const BATCHES_AHEAD: usize = 4;
