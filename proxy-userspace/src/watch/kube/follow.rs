//! Follows the objects of one kind: chooses how to list, tells errors once, and turns
//! the events of the watch into signals.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    super::{WatchMetrics, convert::Convert, lenient::Lenient},
    gather::{Signal, Timed},
};

/// A server that knows no streaming lists may take the request for an ordinary watch, which never
/// says that the list is complete. It tells what exists at once, and is silent then, or goes on
/// with changes.
const STREAMING_DEADLINE: Duration = Duration::from_secs(30);

/// So many objects of a list prolong that: a large one takes its time.
const OBJECTS_IN_TIME: usize = 1_000;

/// Until a kind that the server does not have, or does not show to us, is asked for again.
const ABSENT_RETRY: Duration = Duration::from_secs(300);

/// Without an error for this long, more than the longest pause between tries, the
/// connection counts as healthy even if nothing happens on it.
const HEALTHY_AFTER: Duration = Duration::from_secs(90);

/// How to follow a kind.
pub(super) struct Follow {
    /// Which objects.
    pub(super) config: watcher::Config,
    /// The server may not have the kind.
    pub(super) optional: bool,
    /// Where the signals go.
    pub(super) signals: mpsc::Sender<Timed>,
    /// Counts errors.
    pub(super) metrics: Arc<WatchMetrics>,
}

/// Why a watch is begun anew.
enum Restart {
    /// Streaming lists do not work here.
    PlainList,
    /// The server does not have the kind, or does not show it to us.
    Absent,
    /// Nobody listens any more.
    Closed,
}

/// Follows the objects of kind `K` until nobody listens.
pub(super) async fn follow<K>(api: Api<Lenient<K>>, follow: Follow)
where
    K: Convert + Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut config = follow.config.clone().streaming_lists();
    let mut health = Health { kind: K::KIND.name(), last_error: None };
    loop {
        match watch_once(&api, config.clone(), &follow, &mut health).await {
            Restart::PlainList => config = follow.config.clone(),
            Restart::Absent => {
                if follow.signals.send((std::time::Instant::now(), Signal::Absent(K::KIND))).await.is_err() {
                    return;
                }
                sleep(ABSENT_RETRY).await;
            }
            Restart::Closed => return,
        }
    }
}

async fn watch_once<K>(
    api: &Api<Lenient<K>>,
    config: watcher::Config,
    follow: &Follow,
    health: &mut Health,
) -> Restart
where
    K: Convert + Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut streaming = config.initial_list_strategy == watcher::InitialListStrategy::StreamingList;
    let (mut listing_since, mut objects): (Option<Instant>, usize) = (None, 0);
    let mut events = watcher(api.clone(), config).default_backoff().boxed();
    loop {
        if streaming && listing_since.is_some_and(|since| since.elapsed() > STREAMING_DEADLINE) {
            info!(kind = K::KIND.name(), "the API server does not stream lists; listing in pages");
            return Restart::PlainList;
        }
        let event = match timeout(Duration::from_secs(5), events.next()).await {
            Ok(Some(event)) => event,
            Ok(None) => return Restart::Closed,
            Err(_) => {
                if health.pass() {
                    follow.metrics.set_following(K::KIND, true);
                }
                continue;
            }
        };
        let signal = match event {
            Ok(event) => {
                health.good();
                follow.metrics.set_following(K::KIND, true);
                match event {
                    Event::Init => listing_since = Some(Instant::now()),
                    Event::InitApply(_) => {
                        objects += 1;
                        if objects.is_multiple_of(OBJECTS_IN_TIME) {
                            listing_since = Some(Instant::now());
                        }
                    }
                    Event::InitDone => (streaming, listing_since) = (false, None),
                    _ => (),
                }
                Signal::of(event)
            }
            Err(error) if follow.optional && is_absent(&error) => {
                health.absent(&error);
                return Restart::Absent;
            }
            Err(error) if streaming && is_unknown_option(&error) => {
                debug!(kind = K::KIND.name(), %error, "the API server refuses streaming lists");
                return Restart::PlainList;
            }
            Err(error) => {
                follow.metrics.count_watch_error(K::KIND);
                follow.metrics.set_following(K::KIND, false);
                health.bad(&error);
                continue;
            }
        };
        if follow.signals.send((std::time::Instant::now(), signal)).await.is_err() {
            return Restart::Closed;
        }
    }
}

/// The answer of the API server, if that is what the error is.
fn status_code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

fn is_absent(error: &watcher::Error) -> bool {
    matches!(status_code(error), Some(403 | 404))
}

fn is_unknown_option(error: &watcher::Error) -> bool {
    matches!(status_code(error), Some(400 | 405 | 415 | 422))
}

/// Whether a watch works, so that the log tells changes and not tries.
struct Health {
    kind: &'static str,
    last_error: Option<Instant>,
}

impl Health {
    fn bad(&mut self, error: &watcher::Error) {
        if self.last_error.replace(Instant::now()).is_none() {
            let kind = self.kind;
            warn!(kind, %error, "cannot follow; trying again, and the last state stays");
        }
    }

    fn absent(&mut self, error: &watcher::Error) {
        if self.last_error.replace(Instant::now()).is_none() {
            warn!(kind = self.kind, %error, "not available here; going on without, and asking now and then");
        }
    }

    fn good(&mut self) {
        if self.last_error.take().is_some() {
            info!(kind = self.kind, "following again");
        }
    }

    /// Nothing happened for a while. True if that ends a time of errors.
    fn pass(&mut self) -> bool {
        let is_over = self.last_error.is_some_and(|at| at.elapsed() > HEALTHY_AFTER);
        if is_over {
            self.good();
        }
        is_over
    }
}
