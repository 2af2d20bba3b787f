//! Floods of SYNs from forged addresses: what becomes of connections that are established, and of those that
//! honest clients open meanwhile.
//!
//! One contender after the other, alone on the machine with a new network for each flood. A flood takes all
//! CPUs it can get, so that neither other networks nor the contender's own `direct` could be measured
//! beside it: what is compared is `direct` of the same run.

mod network;
mod results;
mod siege;
mod table;

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};

pub use results::{Beside, Flood};
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
#[group(skip)]
pub(super) struct Options {
    /// How long a flood lasts.
    #[arg(long = "flood-seconds", default_value_t = 60, value_parser = clap::value_parser!(u32).range(8..))]
    seconds: u32,
    /// SYNs per second that are wished, one flood for each; a slow machine sends fewer.
    #[arg(long = "flood-rate", value_delimiter = ',', default_values_t = [50_000, 200_000])]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    rates: Vec<u64>,
    /// Connections that are established before a flood.
    #[arg(long, default_value_t = 1_000)]
    established: usize,
    /// Where floods go: `outside-remote`, `outside-single`.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = PATHS)]
    flood_paths: Vec<Path>,
}

impl Options {
    /// Paths and rates.
    fn kinds(&self) -> impl Iterator<Item = (Path, u64)> {
        self.flood_paths.iter().flat_map(|path| self.rates.iter().map(|rate| (*path, *rate)))
    }

    pub(super) fn ensure_sensible(&self) -> Result<()> {
        for path in &self.flood_paths {
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
    contenders.retain(|contender| options.flood_paths.iter().any(|path| path.concerns(*contender)));
    // The others are compared with it, so it comes first.
    contenders.sort_by_key(|contender| *contender != Contender::Direct);
    let cpus = cpus::allowed()?;
    let surroundings = Surroundings { cpus: &cpus, api, at_once: true };
    let floods = options.kinds().count();
    let mut progress = Progress::new(contenders.len() * floods);
    for contender in contenders {
        if book.journal.has(&part(contender)) {
            progress.skip(floods);
            continue;
        }
        for (path, rate) in options.kinds() {
            let requests = (&[path][..], &[Workload::TcpConnect][..]);
            // What the last flood has left in tables would be part of the next one.
            let (mut field, missing) = Field::build_all(&[contender], surroundings, requests, patience)?;
            book.results.missing.extend(missing);
            let Some(field) = field.pop() else {
                progress.skip(1);
                continue;
            };
            network::prepare(&field)?;
            let flood = Siege::new(&field, path, &cpus)?.measure(rate, options)?;
            let flood = Flood { beside: beside(book, path, rate), ..flood };
            progress.step(&format!("{} by {}: {flood}", part(contender), path.name()));
            book.results.put_flood(flood);
            book.write()?;
        }
        book.journal.finish(&part(contender))?;
    }
    Ok(())
}

/// What `direct` of this run has to say about the same.
fn beside(book: &Book<'_>, path: Path, rate: u64) -> Option<Beside> {
    let key = (path, rate, Contender::Direct);
    let direct = book.results.floods.iter().find(|flood| flood.key() == key)?;
    book.journal.has(&part(Contender::Direct)).then(|| Beside::of(direct))
}

/// As the journal names it.
fn part(contender: Contender) -> String {
    format!("{} floods", contender.name())
}
