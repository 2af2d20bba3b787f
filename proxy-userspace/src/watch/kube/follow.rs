//! Follows the objects of one kind: chooses how to list, tells errors once, and turns
//! the events of the watch into signals.

use std::{fmt::Display, sync::Arc, time::Duration};

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
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    super::{
        WatchMetrics,
        convert::{Convert, Kind},
        lenient::Lenient,
    },
    gather::{Signal, Timed},
    optional::Optional,
};

/// Between two looks at a watch that says nothing.
const LOOK: Duration = Duration::from_secs(5);

/// So many looks in a row at a list that goes on, and nothing came: it has stopped. However long a list takes as a
/// whole, a server that sends is left to it.
const LOOKS_AT_A_LIST: u32 = 6;

/// Until a kind that the server does not have is asked for again: it takes an upgrade to have it.
const LACKING_RETRY: Duration = Duration::from_secs(300);

/// Pauses after refusals, the first and the longest, each twice the one before: a right that comes a moment after the
/// agent is used at once, and one that never comes costs the API server next to nothing.
const DENIED_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Before a list that has stopped is begun anew.
const STOPPED_RETRY: Duration = Duration::from_secs(1);

/// Pauses after errors, the first and the longest, each with as much again by chance: the agents of a cluster that
/// lose the API server at one moment come back one by one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));

/// How to follow a kind.
pub(super) struct Follow {
    /// Which objects.
    pub(super) config: watcher::Config,
    /// Where the signals go.
    pub(super) signals: mpsc::Sender<Timed>,
    /// Counts errors.
    pub(super) metrics: Arc<WatchMetrics>,
}

/// Why a watch is begun anew.
enum Restart {
    /// The server says that it does not stream lists.
    PlainList,
    /// There is a list to read again.
    Streaming,
    /// The server stopped in the middle of a list.
    Stopped,
    /// The server does not have the kind.
    Lacking,
    /// The server does not show us the kind.
    Denied,
    /// Nobody listens any more.
    Closed,
}

/// Follows the objects of kind `K` until nobody listens.
pub(super) async fn follow<K>(api: Api<Lenient<K>>, follow: Follow)
where
    K: Convert + Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let streaming = follow.config.clone().streaming_lists();
    let mut config = streaming.clone();
    let mut health = Health { kind: K::KIND, said: Said::Good, refusals: 0 };
    follow.metrics.set_following(K::KIND, false);
    loop {
        match watch_once(&api, config.clone(), &follow, &mut health).await {
            Restart::PlainList => config = follow.config.clone(),
            // What one server refuses the next may grant, or the same one after an upgrade.
            Restart::Streaming => config = streaming.clone(),
            Restart::Stopped => sleep(spread(STOPPED_RETRY)).await,
            Restart::Lacking if follow.send(Signal::Lacking(K::KIND)).await => {
                sleep(spread(LACKING_RETRY)).await;
            }
            Restart::Denied if follow.send(Signal::Denied(K::KIND)).await => {
                sleep(spread(after_refusals(health.refusals))).await;
            }
            Restart::Lacking | Restart::Denied | Restart::Closed => return,
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
    let streaming = config.initial_list_strategy == watcher::InitialListStrategy::StreamingList;
    let (mut listing, mut listed, mut silent_looks) = (false, false, 0);
    let mut events = watcher(api.clone(), config).backoff(pauses()).boxed();
    loop {
        let event = match timeout(LOOK, events.next()).await {
            Ok(Some(event)) => event,
            Ok(None) => return Restart::Closed,
            Err(_) => {
                silent_looks += 1;
                if streaming && listing && silent_looks >= LOOKS_AT_A_LIST {
                    follow.failed(
                        K::KIND,
                        health,
                        &format_args!("the list stopped for {:?}", LOOK * silent_looks),
                    );
                    return Restart::Stopped;
                }
                // A watch that was resumed may have nothing to say.
                if follow.metrics.follows(K::KIND) {
                    health.good();
                }
                continue;
            }
        };
        silent_looks = 0;
        let signal = match event {
            // Before it asks for the list.
            Ok(Event::Init) if !streaming && listed => return Restart::Streaming,
            Ok(event) => {
                // The server has said nothing yet when a plain list is about to be asked for.
                if streaming || !matches!(event, Event::Init) {
                    health.good();
                }
                match event {
                    Event::Init => listing = true,
                    Event::InitDone => (listing, listed) = (false, true),
                    _ => (),
                }
                Signal::of(event)
            }
            Err(error) if let Some(restart) = do_without(K::KIND, &error) => {
                follow.do_without(K::KIND, health, &restart, &error);
                return restart;
            }
            Err(error) if streaming && is_unknown_option(&error) => {
                debug!(kind = K::KIND.name(), %error, "the API server does not stream lists; listing in pages this time");
                return Restart::PlainList;
            }
            Err(error) => {
                follow.failed(K::KIND, health, &error);
                continue;
            }
        };
        if !follow.send(signal).await {
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

/// What is to be done when there is nothing to follow, of a kind that the agent can do without. Where every API server
/// has the kind, a 404 comes from something else that answers in its place, and is an error like any other.
fn do_without(kind: Kind, error: &watcher::Error) -> Option<Restart> {
    let optional = Optional::of(kind)?;
    match status_code(error)? {
        403 => Some(Restart::Denied),
        404 if optional.is_recent => Some(Restart::Lacking),
        _ => None,
    }
}

fn is_unknown_option(error: &watcher::Error) -> bool {
    matches!(status_code(error), Some(400 | 405 | 415 | 422))
}

impl Follow {
    fn failed(&self, kind: Kind, health: &mut Health, error: &dyn Display) {
        self.metrics.count_watch_error(kind);
        self.metrics.set_following(kind, false);
        health.bad(error);
    }

    fn do_without(&self, kind: Kind, health: &mut Health, restart: &Restart, error: &dyn Display) {
        self.metrics.set_following(kind, false);
        if matches!(restart, Restart::Lacking) {
            health.lacking(error);
        } else {
            self.metrics.count_watch_error(kind);
            health.denied(error);
        }
    }

    /// False when nobody listens any more.
    async fn send(&self, signal: Signal) -> bool {
        self.signals.send((std::time::Instant::now(), signal)).await.is_ok()
    }
}

/// Whether a watch works, so that the log tells changes and not tries.
struct Health {
    kind: Kind,
    said: Said,
    /// In a row.
    refusals: u32,
}

/// What the log says of a watch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Good,
    Failing,
    Lacking,
    Denied,
}

impl Health {
    fn bad(&mut self, error: &dyn Display) {
        if self.news(Said::Failing) {
            let kind = self.kind.name();
            warn!(kind, %error, "cannot follow; trying again, and the last state stays");
        }
    }

    fn lacking(&mut self, error: &dyn Display) {
        if self.news(Said::Lacking) {
            let kind = self.kind.name();
            warn!(kind, %error, "not available here; going on without, and asking now and then");
        }
    }

    fn denied(&mut self, error: &dyn Display) {
        self.refusals += 1;
        if self.news(Said::Denied)
            && let Some(Optional { resource, stays, .. }) = Optional::of(self.kind)
        {
            warn!(
                kind = self.kind.name(),
                %error,
                stays,
                "the API server does not show this kind; allow the agent's role to list and watch {resource}. Trying \
                 again, and what depends on it stays as it was"
            );
        }
    }

    fn good(&mut self) {
        self.refusals = 0;
        if self.news(Said::Good) {
            info!(kind = self.kind.name(), "following again");
        }
    }

    /// True if the log says something else so far.
    fn news(&mut self, said: Said) -> bool {
        std::mem::replace(&mut self.said, said) != said
    }
}

fn pauses() -> watcher::ExponentialBackoff {
    let (first, longest) = PAUSES;
    let pauses = backon::ExponentialBuilder::new().with_min_delay(first).with_max_delay(longest);
    pauses.with_factor(2.0).with_jitter().without_max_times().into()
}

/// The pause after so many refusals in a row.
fn after_refusals(refusals: u32) -> Duration {
    let (first, longest) = DENIED_RETRY;
    let factor = 2_u32.saturating_pow(refusals.saturating_sub(1));
    first.saturating_mul(factor).min(longest)
}

/// Up to twice as long, by chance.
fn spread(pause: Duration) -> Duration {
    // Without randomness the agents still ask, only together.
    let share = f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX);
    pause.mul_f64(1.0 + share)
}

#[cfg(test)]
mod tests;
