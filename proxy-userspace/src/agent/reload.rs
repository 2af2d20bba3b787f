//! Follows the configuration file: a change that is right takes effect as far as it can
//! without a restart, one that is wrong changes nothing.

use std::{io, path::PathBuf, sync::Arc};

use tokio::{sync::mpsc, time::Instant};
use tracing::{debug, error, info, warn};

use super::{Agent, process, startup};
use crate::{
    config::{Config, ConfigError, Difference, fields::Takes},
    logging,
    model::SocketLb,
    tasks::Tasks,
    watch::FileEvents,
};

/// Silence after which a burst of events counts as over.
const QUIET: std::time::Duration = std::time::Duration::from_millis(100);

/// Time between looks at the file without an event.
const RESCAN: std::time::Duration = std::time::Duration::from_secs(10);

/// What the file says whenever it says something else.
pub(super) struct Reloads(Option<mpsc::Receiver<io::Result<String>>>);

impl Reloads {
    /// Starts following the file of a configuration, if it has one.
    pub(super) fn of(config: &Config, tasks: &mut Tasks) -> Self {
        let Some(file) = config.file().and_then(|file| std::path::absolute(file).ok()) else {
            return Self(None);
        };
        let (tx, rx) = mpsc::channel(1);
        tasks.spawn("the follower of the configuration file", follow(file, config.hash.clone(), tx));
        Self(Some(rx))
    }

    /// Waits for another text; forever if there is no file.
    pub(super) async fn next(&mut self) -> io::Result<String> {
        match &mut self.0 {
            Some(rx) => match rx.recv().await {
                Some(read) => read,
                None => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

/// A mounted ConfigMap is swapped by a link beside the file, an editor swaps the file: the
/// folder sees both. Links out of it are looked at now and then.
async fn follow(file: PathBuf, mut hash: String, tx: mpsc::Sender<io::Result<String>>) {
    let folder = file.parent().unwrap_or(&file).to_owned();
    let mut events = FileEvents::of(&folder);
    let mut readable = true;
    loop {
        events.next(Instant::now() + RESCAN, QUIET).await;
        if events.unfinished().contains(&file) {
            continue;
        }
        let news = match std::fs::read_to_string(&file) {
            Ok(text) => {
                readable = true;
                let before = std::mem::replace(&mut hash, Config::hash_of(&text));
                if before == hash { continue } else { Ok(text) }
            }
            // The folder may have been replaced, and its events with it.
            Err(error) => {
                events = FileEvents::of(&folder);
                if !std::mem::replace(&mut readable, false) {
                    continue;
                }
                Err(error)
            }
        };
        if tx.send(news).await.is_err() {
            return;
        }
    }
}

/// Why a file that was read does not count.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("cannot read the file: {0}")]
    Unreadable(#[from] io::Error),
    #[error("the file is empty")]
    Empty,
    #[error(transparent)]
    Wrong(#[from] ConfigError),
}

impl Agent {
    /// Takes up what the file says now, or says why not.
    pub(super) fn reload(&mut self, read: io::Result<String>) {
        let old = self.config.get();
        match reread(&old, read) {
            Ok(new) => self.take_up(&old, new),
            Err(Refusal::Wrong(ConfigError::Invalid(problems))) => {
                for problem in problems {
                    error!(
                        field = problem.path,
                        reason = problem.reason,
                        "a wrong field in the configuration file"
                    );
                }
                self.refused(&"it has wrong fields");
            }
            Err(refusal) => self.refused(&refusal),
        }
    }

    fn refused(&self, reason: &dyn std::fmt::Display) {
        error!(%reason, "the configuration file is refused; what was in force stays");
        self.metrics.config().refused();
    }

    fn take_up(&mut self, old: &Arc<Config>, new: Config) {
        let differences = new.differences(old);
        let fields = |takes| differences.iter().filter(move |d| d.takes == takes);
        for Difference { field, from, to, .. } in fields(Takes::Live) {
            info!(field, %from, %to, "a field of the configuration file is in force");
        }
        for Difference { field, from, to, .. } in fields(Takes::Restart) {
            warn!(field, %from, %to, "a field of the configuration file takes effect when the agent is started again");
        }
        let untold: Vec<_> = new.notes.iter().filter(|note| !old.notes.contains(note)).cloned().collect();
        process::tell(&untold);
        let waiting = fields(Takes::Restart).count();
        let new = new.as_followed_from(old);
        self.follow_config(old, &new);
        self.metrics.config().applied(&new.hash, waiting);
        info!(
            hash = new.hash,
            changed = fields(Takes::Live).count(),
            waiting,
            "the configuration file was read again"
        );
        self.config.set(new);
    }

    /// What can change while the agent runs.
    fn follow_config(&mut self, old: &Config, new: &Config) {
        self.timeouts = new.model.timeouts;
        (self.sync_period, self.min_sync_period) = (new.sync_period, new.min_sync_period);
        self.due.full_sync = self.due.full_sync.min(Instant::now() + new.sync_period);
        self.health.set_patience(startup::patience(new));
        if new.logging.level != old.logging.level
            && let Err(error) = logging::set_level(&new.logging)
        {
            warn!(error = format!("{error:#}"), "the level of the log stays as it was");
        }
        if (new.oom_score_adj, new.host_conntrack) != (old.oom_score_adj, old.host_conntrack) {
            process::set_up(new);
        }
        if new.health != old.health {
            self.health.serve_elsewhere(new.health);
        }
        if new.metrics != old.metrics {
            self.serve_metrics_elsewhere(new);
        }
        if new.model != old.model || new.interfaces != old.interfaces {
            self.plan_anew(new);
        }
    }

    fn serve_metrics_elsewhere(&mut self, new: &Config) {
        // The port is free for the new server before it asks.
        self._metrics_server = None;
        let mut patient = new.clone();
        patient.bind_hard_fail = false;
        let told = startup::Told {
            checks: &self.checks,
            health: &self.health,
            watch: &self.watch_metrics,
            agent: &self.metrics,
            config: &self.config,
        };
        match startup::metrics(&patient, told) {
            Ok(server) => self._metrics_server = server,
            Err(error) => warn!(error = format!("{error:#}"), "metrics are not served"),
        }
    }

    /// Rows first, then edges, then the sockets, as at the start. Connections that were
    /// translated stay what they are; new ones go by what is written now.
    fn plan_anew(&mut self, new: &Config) {
        startup::check_host(new);
        self.socket_lb = new.model.socket_lb;
        if self.socket_lb != SocketLb::Off
            && !self.datapath.is_taking_over()
            && let Err(error) = self.datapath.set_socket_lb(true)
        {
            warn!(%error, "cannot attach the socket hooks");
        }
        self.edges.set_policy(new);
        self.engine.set_config(new.model.clone());
        if self.engine.is_listed() {
            if let Err(error) = self.begin() {
                warn!(error = format!("{error:#}"), "the change is not in force");
            }
        } else {
            debug!("no complete list of objects yet; the change is in force once there is");
        }
    }
}

fn reread(old: &Config, read: io::Result<String>) -> Result<Config, Refusal> {
    let text = read?;
    if text.trim().is_empty() {
        return Err(Refusal::Empty);
    }
    Ok(old.with_text(&text)?)
}
