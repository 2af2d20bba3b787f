//! Tells load balancers and the kubelet how this node is doing, over HTTP: a port per
//! service that asks for one, and one for the proxy itself. Ports, paths, answers and
//! headers are kube-proxy's.
//!
//! What is answered is decided in `state`, `ports` and `body`, which do no I/O; `serve`
//! knows nothing but HTTP.

mod body;
mod count;
mod ports;
mod state;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tracing::{info, warn};

use self::count::Counts;
pub use self::{
    count::HEALTH,
    ports::{Ports, ports},
    state::{Programs, State},
};
use crate::{
    metrics::Checks,
    model::{Family, HealthCheck},
    serve::{self, Answer, Asked, Handler, Listen, Reply, Task},
};

/// The servers, and what they tell.
#[derive(Debug)]
pub struct Health {
    board: Arc<Board>,
    general: Option<Task>,
    /// A server for each socket that is wanted, bound or still trying.
    services: BTreeMap<Listen, Task>,
}

/// What the agent writes and the servers read.
#[derive(Debug)]
struct Board {
    state: Mutex<State>,
    /// Service health ports.
    checks: Mutex<HashMap<u16, HealthCheck>>,
    counts: Counts,
}

impl Health {
    /// Healthy until a change waits longer than `patience`, or the agent hangs. Nothing is
    /// served yet. `checks` count what is asked.
    pub fn new(patience: Duration, checks: Checks) -> Self {
        let (state, counts) = (Mutex::new(State::new(patience)), Counts::new(checks));
        let board = Board { state, checks: Mutex::default(), counts };
        Self { board: Arc::new(board), general: None, services: BTreeMap::new() }
    }

    /// Makes the counts of answers part of what is shown.
    pub fn register(&self, registry: &mut Registry) {
        self.board.counts.register(registry);
    }

    /// Serves `/healthz` and `/livez`. A port that is taken is tried again, unless it has
    /// to be free at once.
    pub fn serve(&mut self, address: SocketAddr, at_once: bool) -> io::Result<()> {
        let listen = Listen::general(address);
        let board = self.board.clone();
        let handler: Handler = Arc::new(move |asked| board.general(&asked).into());
        self.general = Some(if at_once {
            serve::start_at_once(listen, handler)?
        } else {
            serve::start(listen, "health of the proxy", handler)
        });
        info!(%address, "serving the proxy's health");
        Ok(())
    }

    /// Serves `/healthz` and `/livez` at another address, as soon as that can be had, or nowhere.
    pub fn serve_elsewhere(&mut self, address: Option<SocketAddr>) {
        // The port is free for the new server before it asks.
        self.general = None;
        if let Some(address) = address
            && let Err(error) = self.serve(address, false)
        {
            warn!(%error, %address, "cannot serve the proxy's health");
        }
    }

    /// A change is late after this long.
    pub fn set_patience(&self, patience: Duration) {
        self.board.state().set_patience(patience);
    }

    /// The agent's loop comes round; to be told every second.
    pub fn beat(&self) {
        self.board.state().beat(Instant::now());
    }

    /// Changes wait to be written.
    pub fn queued(&self) {
        let now = Instant::now();
        let mut state = self.board.state();
        Family::ALL.into_iter().for_each(|family| state.queued(family, now));
    }

    /// A round of writes is over; some families may have rows left that wait.
    pub fn synced(&self, is_pending: impl Fn(Family) -> bool) {
        let (now, wall) = (Instant::now(), Timestamp::now());
        let mut state = self.board.state();
        for family in Family::ALL {
            if is_pending(family) { state.queued(family, now) } else { state.updated(family, wall) }
        }
    }

    /// Whether the programs are where they have to be.
    pub fn set_programs(&self, programs: Programs) {
        self.board.state().set_programs(programs, Instant::now());
    }

    /// Whether the node may be sent new connections from outside.
    pub fn set_eligible(&self, eligible: bool) {
        if self.board.state().set_eligible(eligible) {
            if eligible {
                info!("the node stays; load balancers may use it");
            } else {
                warn!("the node is going or gone; load balancers are told to leave it");
            }
        }
    }

    /// Answers at exactly these ports for services from here on.
    pub fn open(&mut self, ports: Ports) {
        // What the servers tell comes first: a socket that stays may have a new owner.
        *self.board.checks() = ports.owners;
        self.services.retain(|listen, _| ports.listens.contains(listen));
        for listen in ports.listens {
            let start = || {
                let board = self.board.clone();
                let handler: Handler = Arc::new(move |asked| Reply::from(board.service(&asked)));
                serve::start(listen, "health of a service", handler)
            };
            self.services.entry(listen).or_insert_with(start);
        }
    }
}

impl Board {
    // The values are whole at every moment, also after a panic elsewhere.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn checks(&self) -> MutexGuard<'_, HashMap<u16, HealthCheck>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn general(&self, asked: &Asked) -> Option<Answer> {
        let report = || self.state().report(Instant::now(), Timestamp::now());
        match asked.path.as_str() {
            "/healthz" => Some(self.counts.healthz(&report())),
            "/livez" => Some(self.counts.livez(&report())),
            _ => None,
        }
    }

    fn service(&self, asked: &Asked) -> Option<Answer> {
        let healthy = self.state().is_healthy(Instant::now());
        let checks = self.checks();
        let check = checks.get(&asked.port)?;
        Some(body::service(&check.service, check.endpoints_for(asked.family), healthy))
    }
}

#[cfg(test)]
mod tests;
