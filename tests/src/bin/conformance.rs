//! Runs conformance cases against the agent, on real kernel objects. Needs root.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use std::{
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};
use tests::{
    agent::SocketLb,
    conformance::{
        files::{self, Named},
        report::{Format, Report},
        run,
    },
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
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Whose sockets the agent translates
    #[arg(long, value_enum, default_value_t)]
    socket_lb: SocketLb,
    /// How many cases to run at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
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
        ensure!(!cases.is_empty(), "no case fits");
        Ok(cases)
    }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let cases = arguments.cases()?;
    let report = Mutex::new(Report::new(arguments.output));
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..arguments.jobs.max(1))
            .map(|_| {
                scope.spawn(|| {
                    while let Some(named) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let start = Instant::now();
                        let verdict = run(&named.case, arguments.socket_lb);
                        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                        report.add(named, &verdict, start.elapsed());
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
    let all_well = report.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
