//! Events of the files of a folder, gathered into bursts.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    time::Duration,
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, ModifyKind},
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tracing::{debug, warn};

/// A file that is written to for longer is read as it stands: the event that ends the
/// writing may have been lost.
const UNFINISHED: Duration = Duration::from_secs(30);

/// The events of one folder.
pub struct FileEvents {
    /// Absent where the system has no more watches to give; then only looking helps.
    _watcher: Option<RecommendedWatcher>,
    rx: mpsc::UnboundedReceiver<notify::Result<Event>>,
    /// Files that were written to and not closed since. Reading them could find half of
    /// a file, and half of a list of services is a shorter list of services.
    written: HashMap<PathBuf, Instant>,
    unfinished: HashSet<PathBuf>,
}

impl FileEvents {
    /// Starts listening.
    pub fn of(folder: &Path) -> Self {
        let (tx, rx) = mpsc::unbounded_channel();
        let watcher = notify::recommended_watcher(move |event| {
            // The reader is gone only when the source is.
            let _ = tx.send(event);
        });
        let watching = watcher.and_then(|mut watcher| {
            watcher.watch(folder, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        let watcher = watching.inspect_err(|error| {
            debug!(folder = %folder.display(), %error, "no events of this folder; looking at it now and then");
        });
        Self { _watcher: watcher.ok(), rx, written: HashMap::new(), unfinished: HashSet::new() }
    }

    /// Files that are being written.
    pub fn unfinished(&self) -> &HashSet<PathBuf> {
        &self.unfinished
    }

    /// Waits for an event, and then until none has come for `quiet`; at most until
    /// `rescan`. Returns the files that were touched.
    pub async fn next(&mut self, rescan: Instant, quiet: Duration) -> HashSet<PathBuf> {
        let mut touched = HashSet::new();
        let mut deadline = rescan;
        loop {
            match timeout_at(deadline, self.rx.recv()).await {
                Ok(Some(Ok(event))) => {
                    if self.note(event, &mut touched) {
                        deadline = rescan.min(Instant::now() + quiet);
                    }
                }
                Ok(Some(Err(error))) => warn!(%error, "events of files may have been lost"),
                // Without a watcher nobody sends; the time still passes.
                Ok(None) => tokio::time::sleep_until(deadline).await,
                Err(_) => break,
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        let now = Instant::now();
        self.written.retain(|_, since| now - *since < UNFINISHED);
        self.unfinished = self.written.keys().cloned().collect();
        touched
    }

    /// Notes what an event says, and returns whether it says anything. Our own reading
    /// causes events, too.
    fn note(&mut self, event: Event, touched: &mut HashSet<PathBuf>) -> bool {
        match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => self.forget(&event.paths),
            EventKind::Access(_) => return false,
            EventKind::Modify(ModifyKind::Data(_)) => {
                let now = Instant::now();
                for path in &event.paths {
                    self.written.entry(path.clone()).or_insert(now);
                }
            }
            // Renamed or deleted: what has that name is another file.
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)) => self.forget(&event.paths),
            _ => (),
        }
        touched.extend(event.paths);
        true
    }

    fn forget(&mut self, paths: &[PathBuf]) {
        for path in paths {
            self.written.remove(path);
        }
    }
}
