//! Makes batches of the signals of all kinds, and knows when every initial list is complete.
//! What a list no longer contains is gone.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use jiff::Timestamp;
use kube::runtime::watcher::Event;
use tokio::sync::mpsc;

use super::super::{
    Batch, WatchMetrics,
    convert::{Convert, Found, Kind, ObjectKey},
};
use crate::model::{Change, ObjectName};

/// An event of a watch, converted.
pub(super) enum Signal {
    /// A list begins.
    ListBegins(Kind),
    /// An object exists; it may be refused, or taken without what is ignored of it.
    Object(Box<Found>),
    /// An object is gone.
    Gone(ObjectKey),
    /// The list is complete.
    ListEnds(Kind),
    /// The server does not show this kind.
    Absent(Kind),
}

impl Signal {
    /// Converts an event.
    pub(super) fn of<K: Convert>(event: Event<K>) -> Self {
        match event {
            Event::Init => Signal::ListBegins(K::KIND),
            Event::InitApply(object) | Event::Apply(object) => Signal::Object(Box::new(Found::of(&object))),
            Event::Delete(object) => Signal::Gone(object.key()),
            Event::InitDone => Signal::ListEnds(K::KIND),
        }
    }
}

/// A signal, and when it came.
pub(super) type Timed = (Instant, Signal);

/// Signals taken at one time, and with them the size of a batch. First lists are handed on in
/// such parts, too: nobody has to hold all objects of a cluster in the form in which they came.
const SIGNALS_AT_ONCE: usize = 1_024;

/// Makes batches until either side is gone.
pub(super) async fn run(
    mut signals: mpsc::Receiver<Timed>,
    batches: mpsc::Sender<Batch>,
    metrics: Arc<WatchMetrics>,
) {
    let mut gather = Gather::new(metrics);
    let mut taken = Vec::new();
    while signals.recv_many(&mut taken, SIGNALS_AT_ONCE).await > 0 {
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

struct Gather {
    kinds: HashMap<Kind, Known>,
    changes: Vec<Change>,
    /// When the first of them came.
    arrived: Option<Instant>,
    triggers: HashMap<ObjectName, Timestamp>,
    revision: u64,
    metrics: Arc<WatchMetrics>,
}

/// What is known of the objects of one kind.
#[derive(Default)]
struct Known {
    /// A list was complete once, or there is none to have.
    listed: bool,
    /// Objects that were reported.
    names: HashSet<ObjectName>,
    /// Of these, what the list that is being read has not named yet.
    missing: Option<HashSet<ObjectName>>,
}

impl Gather {
    fn new(metrics: Arc<WatchMetrics>) -> Self {
        let kinds = Kind::ALL.into_iter().map(|kind| (kind, Known::default())).collect();
        let (changes, triggers) = (Vec::new(), HashMap::new());
        Self { kinds, changes, arrived: None, triggers, revision: 0, metrics }
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
            }
            Signal::Object(found) => self.object(*found),
            Signal::Gone(key) => {
                if self.known(key.kind).names.remove(&key.name) {
                    self.count(key.kind);
                    self.changes.push(key.gone());
                }
            }
            Signal::ListEnds(kind) => self.list_ends(kind),
            Signal::Absent(kind) => self.known(kind).listed = true,
        }
    }

    fn object(&mut self, found: Found) {
        found.report(&self.metrics);
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
        self.count(kind);
        self.changes.extend(vanished.into_iter().map(|name| ObjectKey { kind, name }.gone()));
    }

    /// The changes so far. The one that completes the initial lists comes even if nothing
    /// exists: it says that nothing does.
    fn batch(&mut self) -> Option<Batch> {
        let listed = self.kinds.values().all(|known| known.listed);
        let initial = listed && self.revision == 0;
        if self.changes.is_empty() && !initial {
            self.arrived = None;
            return None;
        }
        self.revision += u64::from(listed);
        let changes = std::mem::take(&mut self.changes);
        let arrived = self.arrived.take().unwrap_or_else(Instant::now);
        let triggers = std::mem::take(&mut self.triggers);
        Some(Batch { arrived, triggers, ..Batch::new(changes, initial, self.revision) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::Node, watch::convert::Rejected};

    fn slice_key(name: &str) -> ObjectKey {
        ObjectKey { kind: Kind::EndpointSlice, name: ObjectName::new("ns", name) }
    }

    /// A node stands for any object: it is the smallest.
    fn node(name: &str) -> Signal {
        let key = ObjectKey { kind: Kind::Node, name: ObjectName::new("", name) };
        let change = Ok(Change::Node(Node { name: name.into(), ..Node::default() }));
        Signal::Object(Box::new(Found { key, change, ignored: Vec::new(), triggered: None }))
    }

    fn refused(name: &str) -> Signal {
        let key = ObjectKey { kind: Kind::Node, name: ObjectName::new("", name) };
        Signal::Object(Box::new(Found {
            key,
            change: Err(Rejected::NoSpec),
            ignored: Vec::new(),
            triggered: None,
        }))
    }

    fn listed() -> Gather {
        let mut gather = Gather::new(Arc::default());
        for kind in Kind::ALL {
            gather.take(Signal::ListBegins(kind));
            if kind == Kind::Node {
                gather.take(node("a"));
                gather.take(node("b"));
            }
            gather.take(Signal::ListEnds(kind));
        }
        assert_eq!(gather.batch().unwrap().changes.len(), 2);
        gather
    }

    #[test]
    fn the_first_lists_are_handed_on_in_parts_and_the_last_part_says_so() {
        let mut gather = Gather::new(Arc::default());
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Pod, Kind::Namespace] {
            gather.take(Signal::ListBegins(kind));
            gather.take(Signal::ListEnds(kind));
        }
        gather.take(Signal::ListBegins(Kind::Node));
        gather.take(node("a"));
        gather.take(Signal::Absent(Kind::ServiceCidr));
        let part = gather.batch().unwrap();
        assert_eq!((part.initial, part.revision, part.changes.len()), (false, 0, 1));
        assert!(gather.batch().is_none());
        gather.take(Signal::ListEnds(Kind::Node));
        let batch = gather.batch().unwrap();
        assert_eq!((batch.initial, batch.revision, batch.changes.len()), (true, 1, 0));
        assert!(gather.batch().is_none());
    }

    #[test]
    fn an_empty_cluster_is_an_answer() {
        let mut gather = Gather::new(Arc::default());
        Kind::ALL.into_iter().for_each(|kind| gather.take(Signal::ListEnds(kind)));
        let batch = gather.batch().unwrap();
        assert_eq!((batch.initial, batch.changes.len()), (true, 0));
    }

    #[test]
    fn what_a_new_list_lacks_is_gone_and_what_it_refuses_stays() {
        let mut gather = listed();
        gather.take(Signal::ListBegins(Kind::Node));
        gather.take(node("x"));
        assert_eq!(
            gather.batch().unwrap().changes.len(),
            1,
            "new objects need not wait for the end of a list"
        );
        gather.take(Signal::ListBegins(Kind::Node));
        gather.take(refused("a"));
        gather.take(Signal::ListEnds(Kind::Node));
        let batch = gather.batch().unwrap();
        let mut gone: Vec<_> = batch.changes.iter().map(|c| format!("{c:?}")).collect();
        gone.sort();
        assert_eq!(gone, [r#"NodeGone("b")"#, r#"NodeGone("x")"#]);
        assert_eq!((batch.initial, gather.metrics.rejected(Kind::Node)), (false, 1));
    }

    #[test]
    fn only_what_was_reported_can_go() {
        let mut gather = listed();
        gather.take(Signal::Gone(slice_key("never-seen")));
        assert!(gather.batch().is_none());
    }
}
