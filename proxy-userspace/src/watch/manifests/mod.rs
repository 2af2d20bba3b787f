//! Manifests in a folder as a source: `kubectl get svc,endpointslices,nodes -o yaml`, or
//! files written by hand. Read again whenever something changes.
//!
//! Change is noticed through inotify (by the `notify` crate) and, because events can be
//! lost and network file systems send none, by a look at the folder now and then.

mod folder;
mod parse;

use std::{collections::HashSet, path::PathBuf, sync::Arc, time::Duration};

use thiserror::Error;
use tokio::{sync::mpsc, time::Instant};
use tracing::{debug, warn};

use self::folder::Folder;
use super::{BATCHES_AHEAD, Batch, Batches, FileEvents, WatchMetrics};
use crate::tasks::Tasks;

pub use parse::{FileError, Format, parse};

/// Silence after which a burst of events counts as over.
const QUIET: Duration = Duration::from_millis(50);

/// Time between looks at the folder without an event.
const RESCAN: Duration = Duration::from_secs(10);

/// Why a folder cannot be a source.
#[derive(Debug, Error)]
#[error("cannot read manifests from {path}: {source}", path = path.display())]
pub struct FolderError {
    path: PathBuf,
    source: std::io::Error,
}

/// Starts reading `folder`. Nodes other than `node_name` are left out.
pub fn start(
    folder: PathBuf,
    node_name: Arc<str>,
    metrics: Arc<WatchMetrics>,
    tasks: &mut Tasks,
) -> Result<Batches, FolderError> {
    // Absolute, because events name files so.
    let path = match std::path::absolute(&folder).and_then(|path| std::fs::read_dir(&path).map(|_| path)) {
        Ok(path) => path,
        Err(source) => return Err(FolderError { path: folder, source }),
    };
    let (tx, rx) = mpsc::channel(BATCHES_AHEAD);
    let events = FileEvents::of(&path);
    let follower = follow(Folder::new(path.clone(), node_name, metrics), path, events, tx);
    tasks.spawn("the follower of manifests", follower);
    Ok(rx)
}

async fn follow(mut folder: Folder, path: PathBuf, mut events: FileEvents, tx: mpsc::Sender<Batch>) {
    let mut touched = HashSet::new();
    let mut revision = 0;
    loop {
        let arrived = std::time::Instant::now();
        let eventful = !touched.is_empty();
        let unfinished = events.unfinished().clone();
        let read = tokio::task::spawn_blocking(move || {
            let changes = folder.read(&touched, &unfinished);
            (folder, changes)
        });
        let changes;
        (folder, changes) = match read.await {
            Ok(read) => read,
            Err(error) => return warn!(%error, "stopped reading manifests"),
        };
        // A look that was prompted by an event is answered even if nothing came of it:
        // whoever wrote the file can then see that it was read.
        if revision == 0 || eventful || !changes.is_empty() {
            revision += 1;
            debug!(revision, changes = changes.len(), "manifests read");
            if tx.send(Batch { arrived, ..Batch::new(changes, revision == 1, revision) }).await.is_err() {
                return;
            }
        }
        if !folder.is_readable() {
            events = FileEvents::of(&path);
        }
        touched = events.next(Instant::now() + RESCAN, QUIET).await;
    }
}

#[cfg(test)]
mod tests;
