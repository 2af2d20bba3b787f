//! Makes batches of the signals of all kinds, and knows when every initial list is complete.
//! What a list no longer contains is gone. What was never listed is unknown, which is not the same.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kube::runtime::watcher::Event;
use tokio::{sync::mpsc, time};
use tracing::warn;

use super::{
    super::{
        Batch, Versions, WatchMetrics,
        convert::{Convert, Found, Kind, ObjectKey},
        told::Told,
        versions,
    },
    optional::Optional,
};
use crate::model::{Change, ObjectName, Unknown};

/// An event of a watch, converted.
pub(super) enum Signal {
    /// A list begins.
    ListBegins(Kind),
    /// An object exists, in this version; it may be refused, or taken without what is ignored of it.
    Object(Box<Found>, Option<u64>),
    /// An object is gone since this version.
    Gone(ObjectKey, Option<u64>),
    /// The list is complete.
    ListEnds(Kind),
    /// The server does not have this kind.
    Lacking(Kind),
    /// The server does not show us this kind.
    Denied(Kind),
}

impl Signal {
    /// Converts an event.
    pub(super) fn of<K: Convert>(event: Event<K>) -> Self {
        match event {
            Event::Init => Signal::ListBegins(K::KIND),
            Event::InitApply(object) | Event::Apply(object) => {
                Signal::Object(Box::new(Found::of(&object)), versions::of(object.meta()))
            }
            Event::Delete(object) => Signal::Gone(object.key(), versions::of(object.meta())),
            Event::InitDone => Signal::ListEnds(K::KIND),
        }
    }
}

/// A signal, and when it came.
pub(super) type Timed = (Instant, Signal);

/// Signals taken at one time, and with them the size of a batch. First lists are handed on in
/// such parts, too: nobody has to hold all objects of a cluster in the form in which they came.
const SIGNALS_AT_ONCE: usize = 1_024;

/// So long Services wait for kinds that the agent can do without, once everything else is listed. The watches try
/// three or four times in it, so what is only slow is not missed; and a node on which nothing is served yet does not
/// wait long for what is out of order.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes batches until either side is gone.
pub(super) async fn run(
    mut signals: mpsc::Receiver<Timed>,
    batches: mpsc::Sender<Batch>,
    metrics: Arc<WatchMetrics>,
) {
    let mut gather = Gather::new(metrics);
    let mut taken = Vec::new();
    loop {
        tokio::select! {
            count = signals.recv_many(&mut taken, SIGNALS_AT_ONCE) => if count == 0 { return },
            () = at(gather.deadline) => gather.go_on_without(),
        }
        for (arrived, signal) in taken.drain(..) {
            gather.arrived.get_or_insert(arrived);
            gather.take(signal);
        }
        if let Some(batch) = gather.batch()
            && batches.send(batch).await.is_err()
        {
            return;
        }
    }
}

async fn at(deadline: Option<time::Instant>) {
    match deadline {
        Some(deadline) => time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

struct Gather {
    kinds: HashMap<Kind, Known>,
    /// The first lists are handed on, as far as there are any.
    complete: bool,
    /// When they are, at the latest.
    deadline: Option<time::Instant>,
    /// What was said to be unknown last.
    unknown: Unknown,
    changes: Vec<Change>,
    /// When the first of them came.
    arrived: Option<Instant>,
    triggers: HashMap<ObjectName, Timestamp>,
    versions: Versions,
    revision: u64,
    told: Told,
    metrics: Arc<WatchMetrics>,
}

/// What is known of the objects of one kind.
#[derive(Default)]
struct Known {
    /// A list was complete once, or there is none to have.
    listed: bool,
    /// There is no point in waiting for the first list.
    given_up: bool,
    /// Objects that were reported.
    names: HashSet<ObjectName>,
    /// Of these, what the list that is being read has not named yet.
    missing: Option<HashSet<ObjectName>>,
    /// The latest version in that list, which is in no order: known only with all of it.
    listed_version: Option<u64>,
}

impl Gather {
    fn new(metrics: Arc<WatchMetrics>) -> Self {
        let kinds = Kind::ALL.into_iter().map(|kind| (kind, Known::default())).collect();
        let (changes, triggers, versions) = (Vec::new(), HashMap::new(), Versions::default());
        Self {
            kinds,
            complete: false,
            deadline: None,
            unknown: Unknown::default(),
            changes,
            arrived: None,
            triggers,
            versions,
            revision: 0,
            told: Told::default(),
            metrics,
        }
    }

    fn known(&mut self, kind: Kind) -> &mut Known {
        self.kinds.entry(kind).or_default()
    }

    fn take(&mut self, signal: Signal) {
        match signal {
            // A list that breaks off begins anew; what it had so far does not count.
            Signal::ListBegins(kind) => {
                let known = self.known(kind);
                known.missing = Some(known.names.clone());
                known.listed_version = None;
                self.told.retain(|key| key.kind != kind);
            }
            Signal::Object(found, version) => {
                self.version(found.key.kind, version);
                self.object(*found);
            }
            Signal::Gone(key, version) => {
                self.version(key.kind, version);
                self.told.retain(|other| *other != key);
                if self.known(key.kind).names.remove(&key.name) {
                    self.count(key.kind);
                    self.changes.push(key.gone());
                }
            }
            Signal::ListEnds(kind) => self.list_ends(kind),
            // What there was before such an answer stays: it may come from one server of several.
            Signal::Lacking(kind) => self.known(kind).listed = true,
            Signal::Denied(kind) => self.known(kind).given_up = true,
        }
    }

    fn version(&mut self, kind: Kind, version: Option<u64>) {
        let known = self.known(kind);
        if known.missing.is_some() {
            known.listed_version = known.listed_version.max(version);
        } else if let Some(version) = version {
            self.versions.note(kind, version);
        }
    }

    fn object(&mut self, found: Found) {
        self.told.tell(&found, &self.metrics);
        let Found { key, change, triggered, .. } = found;
        self.triggers.extend(triggered.filter(|_| change.is_ok()).map(|at| (key.name.clone(), at)));
        let known = self.known(key.kind);
        if let Some(missing) = &mut known.missing {
            missing.remove(&key.name);
        }
        if let Ok(mut change) = change {
            change.share_name(&key.name);
            known.names.insert(key.name);
            self.changes.push(change);
            self.count(key.kind);
        }
    }

    fn count(&mut self, kind: Kind) {
        let count = self.known(kind).names.len();
        self.metrics.set_objects(kind, count);
    }

    fn list_ends(&mut self, kind: Kind) {
        let known = self.known(kind);
        known.listed = true;
        let Some(vanished) = known.missing.take() else { return };
        known.names.retain(|name| !vanished.contains(name));
        let version = known.listed_version.take();
        self.version(kind, version);
        self.count(kind);
        self.changes.extend(vanished.into_iter().map(|name| ObjectKey { kind, name }.gone()));
    }

    /// Does not wait any longer for the first list of what the agent can do without.
    fn go_on_without(&mut self) {
        self.deadline = None;
        for (kind, known) in self.kinds.iter_mut().filter(|(_, known)| !known.listed && !known.given_up) {
            known.given_up = true;
            if let Some(Optional { stays, .. }) = Optional::of(*kind) {
                let kind = kind.name();
                warn!(
                    kind,
                    stays, "not listed yet; going on without, and what depends on it stays as it was"
                );
            }
        }
    }

    /// True once everything is known that is worth waiting for.
    fn is_complete(&mut self) -> bool {
        let waiting = self.kinds.iter().filter(|(_, known)| !known.listed && !known.given_up);
        let (required, optional): (Vec<_>, Vec<_>) =
            waiting.partition(|(kind, _)| Optional::of(**kind).is_none());
        if required.is_empty() && !optional.is_empty() {
            self.deadline.get_or_insert_with(|| time::Instant::now() + PATIENCE);
        }
        self.complete |= required.is_empty() && optional.is_empty();
        self.complete
    }

    fn unknown(&self) -> Unknown {
        let unknown = |kind| self.kinds.get(&kind).is_none_or(|known| !known.listed);
        Unknown {
            service_cidrs: unknown(Kind::ServiceCidr),
            pods: unknown(Kind::Pod),
            namespaces: unknown(Kind::Namespace),
        }
    }

    /// The changes so far. The one that completes the initial lists comes even if nothing
    /// exists: it says that nothing does. So does a later one that makes something known.
    fn batch(&mut self) -> Option<Batch> {
        let listed = self.is_complete();
        let initial = listed && self.revision == 0;
        let unknown = self.unknown();
        let news = std::mem::replace(&mut self.unknown, unknown) != unknown;
        if self.changes.is_empty() && !initial && !(listed && news) {
            self.arrived = None;
            return None;
        }
        self.revision += u64::from(listed);
        let changes = std::mem::take(&mut self.changes);
        let arrived = self.arrived.take().unwrap_or_else(Instant::now);
        let triggers = std::mem::take(&mut self.triggers);
        let versions = self.versions.clone();
        Some(Batch { arrived, unknown, triggers, versions, ..Batch::new(changes, initial, self.revision) })
    }
}

#[cfg(test)]
mod tests;
