//! `shunt verify`: whether the maps hold what the objects of the cluster ask for.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use super::{
    describe,
    desired::{
        Desired, SourceArgs,
        compare::{self, Difference},
    },
    list::column,
    output::{self, Output},
};

pub(super) const EXAMPLES: &str = "Examples:
  On a node, by the API server:
    shunt verify --config /etc/shunt/config.yaml --hostname-override \"$NODE_NAME\"
  By manifests:
    shunt verify --manifests manifests --hostname-override node-1
  For a script:
    shunt verify -o json | jq -r '.differences[] | \"\\(.service) \\(.row) \\(.kind)\"'

The exit status is 0 if the maps hold exactly what is asked for, 1 if not, 2 if it cannot be told.";

/// `shunt verify`
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
    /// For how long the agent may be behind, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub wait: u64,
    /// Against what.
    #[command(flatten)]
    pub source: SourceArgs,
}

/// What came out.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// The maps hold what is asked for.
    pub same: bool,
    /// The node for which they were looked at.
    pub node: String,
    /// Services that are asked for.
    pub services: usize,
    /// Objects that make no sense; the agent goes by their last good state, which is not known here.
    pub rejected_objects: u64,
    /// Manifests that cannot be read.
    pub unreadable_manifests: u64,
    /// What differs.
    pub differences: Vec<Difference>,
    /// What the maps have no room for: service, and why.
    pub unwritable: Vec<(String, String)>,
}

/// Cannot be told.
const UNKNOWN: u8 = 2;

/// Time between looks.
const PAUSE: Duration = Duration::from_millis(250);

/// Prints the verdict.
pub fn run(args: &VerifyArgs) -> Result<ExitCode> {
    match super::runtime()?.block_on(verify(args)) {
        Ok(verdict) => {
            output::print(&text(args.output, &verdict)?)?;
            Ok(if verdict.same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Err(error) => {
            eprintln!("cannot tell: {}", describe(&error));
            Ok(UNKNOWN.into())
        }
    }
}

async fn verify(args: &VerifyArgs) -> Result<Verdict> {
    let mut desired = Desired::gather(&args.source).await?;
    let deadline = Instant::now() + Duration::from_secs(args.wait);
    loop {
        desired.catch_up();
        let verdict = look(&desired)?;
        if verdict.same || Instant::now() >= deadline {
            return Ok(verdict);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn look(desired: &Desired) -> Result<Verdict> {
    let live = desired.live()?;
    let live =
        live.with_context(|| format!("no agent has run here: no maps at {}", desired.bpffs().display()))?;
    let written = desired.write(live)?;
    let differences = compare::differences(&written.before, &written.after);
    let (rejected_objects, unreadable_manifests) = desired.refused();
    Ok(Verdict {
        same: differences.is_empty() && written.failures.is_empty(),
        node: desired.node_name.to_string(),
        services: desired.services(),
        rejected_objects,
        unreadable_manifests,
        differences,
        unwritable: written.failures,
    })
}

fn text(output: Output, verdict: &Verdict) -> Result<String> {
    match output {
        Output::Json => output::json(verdict),
        Output::Yaml => output::yaml(verdict),
        Output::Table | Output::Wide => Ok(table(verdict)),
    }
}

fn table(verdict: &Verdict) -> String {
    let mut text = String::new();
    if !verdict.differences.is_empty() {
        let header = ["SERVICE", "MAP", "ROW", "IS", "DETAILS"].map(str::to_owned).to_vec();
        let rows = verdict.differences.iter().map(|difference| {
            let Difference { service, map, row, kind, details } = difference;
            let details = if details.is_empty() { "-".to_owned() } else { details.join("\n") };
            vec![service.clone(), (*map).to_owned(), row.clone(), kind.name().to_owned(), details]
        });
        text = column::plain(Some(header), rows) + "\n\n";
    }
    for (service, reason) in &verdict.unwritable {
        text += &format!("{service} cannot be written: {reason}\n");
    }
    for (count, what) in [
        (verdict.rejected_objects, "objects make no sense and were left out"),
        (verdict.unreadable_manifests, "manifests cannot be read"),
    ] {
        if count > 0 {
            text += &format!("{count} {what}: see the warnings\n");
        }
    }
    let Verdict { node, services, differences, .. } = verdict;
    text + &match differences.len() {
        0 if verdict.same => format!("the maps of {node} hold what {services} services ask for"),
        count => format!("{count} differences from what {services} services ask for on {node}"),
    }
}
