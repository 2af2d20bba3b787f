//! Says which Services find no room, each once: in the log, as an Event on the Service, in a metric, and to
//! `shunt service list`.

use std::collections::BTreeMap;

use tracing::{info, warn};

use super::engine::Engine;
use crate::{
    dataplane::{MapError, MapName},
    kernel::KernelMaps,
    model::ObjectName,
    watch::kube::{About, Events, Notice},
};

/// Services that one round tells of by their names. Full tables may refuse thousands at once.
const TOLD_AT_ONCE: usize = 10;

/// What has been told.
pub(super) struct Refusals {
    events: Option<Events>,
    told: BTreeMap<ObjectName, MapName>,
    /// The map may hold what an earlier agent told.
    unknown: bool,
}

impl Refusals {
    pub(super) fn new(events: Option<Events>) -> Self {
        Self { events, told: BTreeMap::new(), unknown: true }
    }

    /// Takes in which Services have no room after a round of writes. Returns their number by the map that lacks it.
    pub(super) fn look(&mut self, engine: &Engine, maps: &mut KernelMaps) -> BTreeMap<MapName, usize> {
        let now: BTreeMap<_, _> =
            engine.refused().filter_map(|(service, _, why)| Some((service.clone(), lacking(why)?))).collect();
        if now != self.told || !now.is_empty() || self.unknown {
            let reasons = engine.refused().map(|(service, _, why)| (service, why.to_string()));
            let written = maps.replace_refused(reasons);
            self.unknown = written.is_err();
            if let Err(error) = written {
                warn!(%error, "cannot note which Services have no room");
            }
        }
        self.tell(engine);
        for service in self.told.keys().filter(|service| !now.contains_key(*service)) {
            info!(%service, "the Service has the room it needs, or is gone");
        }
        self.told = now;
        self.counts()
    }

    fn tell(&self, engine: &Engine) {
        let news: Vec<_> =
            engine.refused().filter(|(service, ..)| !self.told.contains_key(*service)).collect();
        for (service, uid, error) in news.iter().take(TOLD_AT_ONCE) {
            warn!(%service, %error, "no room for what is wanted of the Service; it stays as it was");
            if let Some(events) = &self.events {
                events.publish(notice(service, uid, error));
            }
        }
        if news.len() > TOLD_AT_ONCE {
            warn!(services = news.len(), "no room for what is wanted of further Services");
        }
    }

    fn counts(&self) -> BTreeMap<MapName, usize> {
        let mut counts = BTreeMap::new();
        for map in self.told.values() {
            *counts.entry(*map).or_default() += 1;
        }
        counts
    }
}

fn lacking(why: &MapError) -> Option<MapName> {
    match why {
        MapError::Full { map, .. } | MapError::TooLarge { map, .. } => Some(*map),
        MapError::Retryable { .. } | MapError::Fatal { .. } => None,
    }
}

fn notice(service: &ObjectName, uid: &str, why: &MapError) -> Notice {
    Notice {
        about: About::Service(service.clone(), uid.into()),
        reason: "NoRoom",
        subject: lacking(why).map(MapName::name).unwrap_or_default().into(),
        note: format!("no room on this node for what is wanted of the Service, which stays as it was: {why}"),
    }
}
