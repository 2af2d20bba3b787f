//! What holds under load that lasts, and does not show in the moments that [`super::traffic`] measures.
//!
//! [`ports`]: connections through a NodePort to a single backend, for minutes, so that each source port
//! of the node is used again many times. [`floods`]: SYNs from forged addresses, beside honest clients.

mod floods;
mod ports;
mod results;
mod table;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::ValueEnum;

pub use floods::{Beside, Connections, Flood, NAMES as FLOOD_NAMES, cells as flood_cells};
pub use results::{Load, Sample, Span, Stretch};
pub use table::{NAMES, cells, text};

use super::{
    bounds::{Bounds, Journal},
    contender::Contender,
    machine::Machine,
    populate::populated,
    target,
};

/// What can be measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Section {
    /// Source ports that are used again.
    Ports,
    /// SYNs from forged addresses.
    Floods,
}

/// What to measure, and how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// What is measured.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Section::Ports, Section::Floods])]
    sections: Vec<Section>,
    /// Who is measured, one after the other.
    #[arg(long, value_delimiter = ',', value_enum)]
    #[arg(default_values_t = [Contender::Direct, Contender::ShuntAll, Contender::ShuntXdp, Contender::Nftables])]
    contenders: Vec<Contender>,
    #[command(flatten)]
    ports: ports::Options,
    #[command(flatten)]
    floods: floods::Options,
    /// Number of other Services, each with 10 endpoints.
    #[arg(long, default_value_t = 10)]
    services: u32,
    /// Longest wait for a contender to deliver, in seconds.
    #[arg(long, default_value_t = 900)]
    patience: u64,
    /// Where load.json is, to which results are added.
    #[arg(long, default_value = "docs/benchmarks")]
    out: PathBuf,
    #[command(flatten)]
    bounds: Bounds,
}

impl Options {
    /// Those that results depend on, as text.
    fn told(&self) -> String {
        format!("{:?}", Self { bounds: Bounds::default(), ..self.clone() })
    }

    fn ensure_sensible(&self) -> Result<()> {
        for contender in &self.contenders {
            let name = contender.name();
            ensure!(ports::PATH.concerns(*contender), "--contenders {name}: does nothing of its own here");
        }
        self.ports.ensure_sensible()?;
        self.floods.ensure_sensible()
    }
}

/// Where results go.
struct Book<'a> {
    journal: &'a mut Journal,
    results: &'a mut Load,
    file: &'a Path,
}

impl Book<'_> {
    fn write(&self) -> Result<()> {
        self.results.write(self.file)
    }
}

/// Measures, and writes the results after each contender.
pub fn run(options: &Options) -> Result<()> {
    options.ensure_sensible()?;
    let file = options.out.join("load.json");
    let mut journal = options.bounds.begin("load", &options.told(), &[options.services])?;
    let mut results = Load::read(&file)?;
    results.machine = Machine::here()?;
    results.missing.clear();
    measure(options, &mut Book { journal: &mut journal, results: &mut results, file: &file })?;
    options.bounds.end(journal)?;
    println!("\n{}", text(&results));
    Ok(())
}

fn measure(options: &Options, book: &mut Book<'_>) -> Result<()> {
    let control_plane = populated(options.services, book.journal)?;
    control_plane.write(&target::objects())?;
    let patience = Duration::from_secs(options.patience);
    let common = (&control_plane, patience);
    if options.sections.contains(&Section::Ports) {
        ports::measure(&options.ports, &options.contenders, common, book)?;
    }
    if options.sections.contains(&Section::Floods) {
        floods::measure(&options.floods, &options.contenders, common, book)?;
    }
    Ok(())
}

/// The reasons that came up in between, and how often.
fn grown(before: &BTreeMap<String, u64>, mut after: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    for (reason, count) in &mut after {
        *count -= before.get(reason).copied().unwrap_or_default().min(*count);
    }
    after.retain(|_, count| *count > 0);
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_dropped_meanwhile_counts() {
        let counts = |counts: &[(&str, u64)]| -> BTreeMap<String, u64> {
            counts.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
        };
        let before = counts(&[("no-backend", 2), ("no-connection", 5)]);
        let after = counts(&[("no-backend", 2), ("no-connection", 6), ("snat-ports-exhausted", 3)]);
        assert_eq!(grown(&before, after), counts(&[("no-connection", 1), ("snat-ports-exhausted", 3)]));
    }
}
