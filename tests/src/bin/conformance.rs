//! Runs conformance cases against the agent, on real kernel objects. Needs root.

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use serde_json::json;
use std::{
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};
use tests::{
    agent::SocketLb,
    conformance::{
        Setting,
        files::{self, Named},
        pick::every_nth,
        report::{Format, Report},
        run,
    },
    control_plane::SharedControlPlane,
};

/// Runs conformance cases.
#[derive(Debug, Parser)]
struct Arguments {
    /// Folders of case files, or single files; the project's own cases by default
    paths: Vec<PathBuf>,
    /// Only the case of this name, or those whose names contain it
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Only these topics (names of case files)
    #[arg(long, value_name = "TOPIC", value_delimiter = ',')]
    topics: Vec<String>,
    /// Only tell which cases there are, in JSON: one on each line
    #[arg(long)]
    list: bool,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Whose sockets the agent translates
    #[arg(long, value_enum, default_value_t)]
    socket_lb: SocketLb,
    /// What feeds the agent; an API server needs its programs in the folder KUBEBUILDER_ASSETS
    #[arg(long, value_enum, default_value_t)]
    source: Source,
    /// Only every Nth case of each topic that has objects [default: 3 with an API server and
    /// without --case, else all cases]
    #[arg(long, value_name = "N")]
    every: Option<usize>,
    /// How many cases to run at a time [default: two per CPU, for cases mostly wait; one with
    /// an API server]
    #[arg(long)]
    jobs: Option<usize>,
}

/// What feeds the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Source {
    /// A folder of files.
    #[default]
    Manifests,
    /// A real kube-apiserver, one for each of the cases run at a time.
    Api,
}

impl Arguments {
    fn cases(&self) -> Result<Vec<Named>> {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
        let mut cases = if self.paths.is_empty() { files::load(&[own]) } else { files::load(&self.paths) }
            .context("read the cases")?;
        cases.retain(|named| self.topics.is_empty() || self.topics.contains(&named.topic));
        if let Some(name) = &self.case {
            let whole = cases.iter().any(|named| named.case.name == *name);
            cases.retain(
                |named| if whole { named.case.name == *name } else { named.case.name.contains(name) },
            );
        }
        if let Some(n) = self.every.or(self.default_every()) {
            cases = every_nth(cases, n);
        }
        Ok(cases)
    }

    fn default_every(&self) -> Option<usize> {
        (self.source == Source::Api && self.case.is_none()).then_some(3)
    }

    fn jobs(&self) -> usize {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let default = if self.source == Source::Api { cpus } else { 2 * cpus };
        self.jobs.unwrap_or(default).max(1)
    }

    /// What was run, over the sums.
    fn title(&self) -> String {
        let name = |value: Option<clap::builder::PossibleValue>| value.map(|v| v.get_name().to_owned());
        let socket_lb = name(self.socket_lb.to_possible_value()).unwrap_or_default();
        let source = name(self.source.to_possible_value()).unwrap_or_default();
        format!("socket LB {socket_lb}, fed by {source}")
    }

    fn setting(&self) -> Result<Setting> {
        let api_server = match self.source {
            Source::Manifests => None,
            Source::Api => {
                Some(Arc::new(SharedControlPlane::find_or_start().context("start an API server")?))
            }
        };
        Ok(Setting { socket_lb: self.socket_lb, api_server })
    }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let cases = arguments.cases()?;
    if arguments.list {
        for Named { topic, file, case } in &cases {
            println!("{}", json!({"topic": topic, "case": case.name, "file": file}));
        }
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!cases.is_empty(), "no case fits");
    let report = Mutex::new(Report::new(arguments.output));
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let setting = arguments.setting()?;
        while let Some(named) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let start = Instant::now();
            let verdict = run(&named.case, &setting);
            let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
            report.add(named, &verdict, start.elapsed());
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..arguments.jobs()).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    let report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    let all_well = report.finish(&arguments.title());
    Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
