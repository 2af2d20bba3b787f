//! What holds under load that lasts, and does not show in the moments that [`super::traffic`] measures.
//!
//! [`stretch`]: requests for minutes, and whether the last cost what the first did; on the path of [`ports`] each source
//! port of the node is used again many times. [`floods`]: SYNs from forged addresses, beside honest clients.

mod connections;
mod floods;
mod ports;
mod programs;
mod reading;
mod results;
mod stretch;
mod table;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::ValueEnum;

pub use connections::Connections;
pub use floods::{Beside, Flood, NAMES as FLOOD_NAMES, cells as flood_cells};
pub use programs::Runs;
pub use reading::Reading;
pub use results::{Load, Sample, Span, Stretch};
pub use table::{
    PROGRAM_NAMES, STEADY_NAMES, STRETCH_NAMES, program_cells, steady_cells, stretch_cells, text,
};

use super::{
    bounds::{Bounds, Journal},
    contender::Contender,
    ends::Workload,
    machine::Machine,
    populate::populated,
    target::{self, Path as Way},
};

/// What can be measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Section {
    /// Source ports that are used again.
    Ports,
    /// What a connection costs after minutes of load.
    Steady,
    /// SYNs from forged addresses.
    Floods,
}

/// Who is measured if nobody is named.
const CONTENDERS: [Contender; 5] =
    [Contender::Direct, Contender::ShuntAll, Contender::ShuntOff, Contender::ShuntXdp, Contender::Nftables];

/// What to measure, and how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// What is measured.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Section::Ports, Section::Steady, Section::Floods])]
    sections: Vec<Section>,
    /// Who is measured, one after the other, where it does something of its own: by default `direct`, `shunt-all`,
    /// `shunt-off`, `shunt-xdp` and `nftables`.
    #[arg(long, value_delimiter = ',', value_enum)]
    contenders: Vec<Contender>,
    /// How long one contender is under load, in `ports` and `steady`.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
    /// Kinds of requests of that load.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Workload::TcpConnect])]
    workloads: Vec<Workload>,
    /// From where to where requests of `steady` go.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Way::PodRemote, Way::OutsideRemote])]
    paths: Vec<Way>,
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

    fn contenders(&self) -> &[Contender] {
        if self.contenders.is_empty() { &CONTENDERS } else { &self.contenders }
    }

    /// Errors where a contender is named that would not be measured.
    fn ensure_sensible(&self) -> Result<()> {
        for contender in &self.contenders {
            let name = contender.name();
            let ways = self.sections.iter().flat_map(|section| match section {
                Section::Ports => &ports::PATHS[..],
                Section::Steady => &self.paths,
                Section::Floods => &floods::PATHS,
            });
            let does_something = ways.copied().any(|way| way.concerns(*contender));
            ensure!(does_something, "--contenders {name}: does nothing of its own here");
        }
        if self.sections.contains(&Section::Ports) {
            ports::ensure_sensible(&self.workloads)?;
        }
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
    let Options { workloads, minutes, .. } = options;
    for (section, paths) in [(Section::Ports, &ports::PATHS[..]), (Section::Steady, &options.paths)] {
        if options.sections.contains(&section) {
            let asked = stretch::Asked { paths, workloads, minutes: *minutes };
            stretch::measure(asked, options.contenders(), common, book)?;
        }
    }
    if options.sections.contains(&Section::Floods) {
        floods::measure(&options.floods, options.contenders(), common, book)?;
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
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn options(arguments: &str) -> Options {
        Command::parse_from(std::iter::once("load").chain(arguments.split_whitespace())).options
    }

    #[test]
    fn each_section_can_be_measured_with_nobody_named() {
        for section in Section::value_variants() {
            let name = section.to_possible_value().expect("every section has a name");
            let options = options(&format!("--sections {}", name.get_name()));
            options.ensure_sensible().unwrap_or_else(|error| panic!("{section:?}: {error}"));
        }
    }

    #[test]
    fn who_is_named_and_would_not_be_measured_is_an_error() {
        let error =
            options("--sections floods --contenders shunt-off").ensure_sensible().expect_err("accepted");
        assert!(error.to_string().contains("shunt-off"), "{error}");
    }

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
