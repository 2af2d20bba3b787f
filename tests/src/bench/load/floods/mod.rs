//! Floods of SYNs from forged addresses: what becomes of connections that are established, and of those that
//! honest clients open meanwhile.
//!
//! One contender after the other, alone on the machine with the network it is measured in. A flood takes all
//! CPUs it can get, so that neither other networks nor the contender's own `direct` could be measured
//! beside it: what is compared is `direct` of the same run.

mod network;
mod readings;
mod results;
mod siege;
mod table;

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};

pub use results::{Beside, Connections, Flood};
pub use table::{NAMES, cells};

#[cfg(test)]
pub(super) use results::tests;

use super::Book;
use crate::{
    bench::{
        bounds::Progress,
        contender::Contender,
        cpus,
        ends::Workload,
        field::{Field, Surroundings},
        target::Path,
    },
    control_plane::SharedControlPlane,
};
use siege::Siege;

/// To ten backends, and to one: there all connections share the source ports of one address.
pub(super) const PATHS: [Path; 2] = [Path::OutsideRemote, Path::OutsideSingle];

/// How hard it is.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Options {
    /// How long a flood lasts.
    #[arg(long = "flood-seconds", default_value_t = 60, value_parser = clap::value_parser!(u32).range(8..))]
    seconds: u32,
    /// SYNs per second that are wished; a slow machine sends fewer.
    #[arg(long = "flood-rate", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Connections that are established before a flood.
    #[arg(long, default_value_t = 1_000)]
    established: usize,
    /// Where floods go: `outside-remote`, `outside-single`.
    #[arg(long = "flood-paths", value_delimiter = ',', value_enum, default_values_t = PATHS)]
    paths: Vec<Path>,
}

impl Options {
    pub(super) fn ensure_sensible(&self) -> Result<()> {
        for path in &self.paths {
            ensure!(PATHS.contains(path), "--flood-paths {}: is not masqueraded", path.name());
        }
        Ok(())
    }
}

/// Measures who is not finished.
pub(super) fn measure(
    options: &Options,
    contenders: &[Contender],
    (api, patience): (&Arc<SharedControlPlane>, Duration),
    book: &mut Book<'_>,
) -> Result<()> {
    let mut contenders = contenders.to_vec();
    // The others are compared with it, so it comes first.
    contenders.sort_by_key(|contender| *contender != Contender::Direct);
    let cpus = cpus::allowed()?;
    let surroundings = Surroundings { cpus: &cpus, api, at_once: true };
    let mut progress = Progress::new(contenders.len() * options.paths.len());
    for contender in contenders {
        if book.journal.has(&part(contender)) {
            progress.skip(options.paths.len());
            continue;
        }
        let (mut field, missing) = Field::build_all(
            &[contender],
            surroundings,
            (&options.paths, &[Workload::TcpConnect]),
            patience,
        )?;
        book.results.missing.extend(missing);
        let Some(field) = field.pop() else {
            progress.skip(options.paths.len());
            continue;
        };
        network::prepare(&field)?;
        for path in &options.paths {
            let flood = Siege::new(&field, *path, &cpus)?.measure(options)?;
            let part = format!("{} by {}", part(contender), path.name());
            let flood = Flood { beside: beside(book, *path), ..flood };
            progress.step(&format!("{part}: {flood}"));
            book.results.put_flood(flood);
            book.write()?;
        }
        book.journal.finish(&part(contender))?;
    }
    Ok(())
}

/// What `direct` of this run has to say about the path.
fn beside(book: &Book<'_>, path: Path) -> Option<Beside> {
    let direct = book.results.floods.iter().find(|flood| flood.is(path, Contender::Direct))?;
    book.journal.has(&part(Contender::Direct)).then(|| Beside::of(direct))
}

/// As the journal names it.
fn part(contender: Contender) -> String {
    format!("{} floods", contender.name())
}
