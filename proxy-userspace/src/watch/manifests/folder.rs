//! What a folder of manifests says, read again and again. Knows files, their order and
//! what they last said; does not know when to look.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use tracing::{info, warn};

use super::{
    super::{
        WatchMetrics,
        convert::{Found, Kind, ObjectKey},
        told::Told,
    },
    parse::{self, FileError, Format},
};
use crate::model::Change;

/// The folder, and what is known of it.
pub(super) struct Folder {
    path: PathBuf,
    /// Nodes of other names are left out, as by the field selector of the API.
    node_name: Arc<str>,
    metrics: Arc<WatchMetrics>,
    files: BTreeMap<PathBuf, File>,
    /// What was reported, by object.
    current: HashMap<ObjectKey, Change>,
    /// Objects found in several files, to say so once.
    doubles: BTreeSet<ObjectKey>,
    told: Told,
    readable: bool,
}

/// A file when it was last read.
struct File {
    stamp: Stamp,
    /// What it said when it last parsed.
    objects: Vec<Found>,
}

/// Tells versions of a file apart without reading it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

impl Folder {
    pub(super) fn new(path: PathBuf, node_name: Arc<str>, metrics: Arc<WatchMetrics>) -> Self {
        Self {
            path,
            node_name,
            metrics,
            files: BTreeMap::new(),
            current: HashMap::new(),
            doubles: BTreeSet::new(),
            told: Told::default(),
            readable: true,
        }
    }

    /// Reads what is new and says what that changes. Files in `touched` are read even if
    /// they look the same; those in `unfinished` are still being written and keep their
    /// last state. A folder that cannot be listed changes nothing.
    pub(super) fn read(&mut self, touched: &HashSet<PathBuf>, unfinished: &HashSet<PathBuf>) -> Vec<Change> {
        let listed = self.list();
        for kind in Kind::ALL {
            match listed {
                Ok(_) => self.metrics.heard(kind),
                Err(_) => self.metrics.set_following(kind, false),
            }
        }
        let listed = match listed {
            Ok(listed) => listed,
            Err(error) => {
                if std::mem::replace(&mut self.readable, false) {
                    warn!(folder = %self.path.display(), %error, "cannot list the manifests; the last state stays");
                }
                return Vec::new();
            }
        };
        if !std::mem::replace(&mut self.readable, true) {
            info!(folder = %self.path.display(), "the manifests are back");
        }
        self.files.retain(|path, _| listed.contains_key(path));
        for (path, (stamp, format)) in listed {
            let known = self.files.get(&path).is_some_and(|f| f.stamp == stamp);
            if (!known || touched.contains(&path)) && !unfinished.contains(&path) {
                self.read_file(path, stamp, format);
            }
        }
        self.diff()
    }

    /// True when the folder could be listed the last time.
    pub(super) fn is_readable(&self) -> bool {
        self.readable
    }

    fn list(&self) -> io::Result<BTreeMap<PathBuf, (Stamp, Format)>> {
        let mut listed = BTreeMap::new();
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            let Some(format) = Format::of(&path) else { continue };
            // Links are followed: mounted ConfigMaps consist of them.
            match std::fs::metadata(&path) {
                Ok(meta) if meta.is_file() => {
                    let modified = (meta.mtime(), meta.mtime_nsec());
                    listed.insert(path, (Stamp { inode: meta.ino(), len: meta.len(), modified }, format));
                }
                Ok(_) => (),
                Err(error) if error.kind() == io::ErrorKind::NotFound => (),
                Err(error) => return Err(error),
            }
        }
        Ok(listed)
    }

    fn read_file(&mut self, path: PathBuf, stamp: Stamp, format: Format) {
        match self.read_objects(&path, format) {
            Ok(objects) => {
                for found in &objects {
                    self.told.tell(found, &self.metrics);
                }
                self.files.insert(path, File { stamp, objects });
            }
            // Deleted since it was listed: the next look finds it missing.
            Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => (),
            Err(reason) => {
                self.metrics.count_failed_file();
                warn!(file = %path.display(), %reason, "cannot read the manifest; its last good objects stay");
                self.files.entry(path).or_insert(File { stamp, objects: Vec::new() }).stamp = stamp;
            }
        }
    }

    fn read_objects(&self, path: &Path, format: Format) -> Result<Vec<Found>, FileError> {
        let mut objects = parse::parse(&std::fs::read_to_string(path)?, format)?;
        objects.retain(|f| f.key.kind != Kind::Node || *f.key.name.name == *self.node_name);
        Ok(objects)
    }

    /// What all files say together, compared with what was reported. An object that is
    /// refused is wanted, too: as it was last reported.
    fn diff(&mut self) -> Vec<Change> {
        let mut wanted = HashMap::<&ObjectKey, (&Path, &Found)>::new();
        let mut doubles = BTreeSet::new();
        for (path, file) in &self.files {
            for found in &file.objects {
                let Some((earlier, _)) = wanted.insert(&found.key, (path, found)) else { continue };
                if !self.doubles.contains(&found.key) && doubles.insert(found.key.clone()) {
                    let (ignored, used) = (earlier.display(), path.display());
                    warn!(object = %found.key, %ignored, %used, "the same object twice; the last file by name counts");
                }
                doubles.insert(found.key.clone());
            }
        }
        self.told.retain(|key| wanted.contains_key(key));
        let mut gone: Vec<_> = self.current.keys().filter(|key| !wanted.contains_key(key)).cloned().collect();
        let news = wanted.into_iter().filter_map(|(key, (_, found))| {
            let change = found.change.as_ref().ok()?;
            (self.current.get(key) != Some(change)).then(|| (key.clone(), change.clone()))
        });
        let mut news: Vec<_> = news.collect();
        gone.sort();
        news.sort_by(|(a, _), (b, _)| a.cmp(b));
        self.doubles = doubles;
        self.record(gone, news)
    }

    fn record(&mut self, gone: Vec<ObjectKey>, news: Vec<(ObjectKey, Change)>) -> Vec<Change> {
        let mut changes = Vec::with_capacity(gone.len() + news.len());
        for key in gone {
            self.current.remove(&key);
            changes.push(key.gone());
        }
        for (key, change) in news {
            changes.push(change.clone());
            self.current.insert(key, change);
        }
        if !changes.is_empty() {
            for kind in Kind::ALL {
                self.metrics.set_objects(kind, self.current.keys().filter(|key| key.kind == kind).count());
            }
        }
        changes
    }
}
