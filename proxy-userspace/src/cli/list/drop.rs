//! `shunt drop list`: what was refused, and why.

use std::path::Path;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use proxy_common::{DropReason, maps::service_drops::ServiceDropKey};
use serde::Serialize;

use super::{
    ListArgs, Listed, Stored,
    column::{Column, Shown, Value},
    filter::{Facets, Where},
};
use crate::{
    cli::rows::Names,
    kernel::{PinnedMaps, Pins},
};

/// `shunt drop`
#[derive(Debug, Subcommand)]
pub enum DropCommand {
    /// Show how many packets and connections were refused, by reason, or by service and reason.
    ///
    /// Counted since the maps were made, over all CPUs. Some reasons come before any service is known;
    /// with many services, those for which nothing was refused for long are forgotten.
    #[command(after_help = EXAMPLES)]
    List(ListArgs<DropView>),
}

const EXAMPLES: &str = "Examples:
  shunt drop list
  shunt drop list --by service --sort count --reverse
  shunt drop list --service shop/web
  shunt drop list --all";

/// Which rows.
#[derive(Debug, Default, Args)]
pub struct DropFilter {
    /// By what.
    #[arg(long, default_value = "reason")]
    pub by: By,
    /// Reasons that never occurred, too.
    #[arg(long, help_heading = "Filters")]
    pub all: bool,
    /// Only this reason, by its name.
    #[arg(long, help_heading = "Filters", value_parser = reasons())]
    pub reason: Option<String>,
    /// Only of this service: NAMESPACE/NAME, or NAMESPACE/NAME:PORT for one of its ports.
    #[arg(long, value_name = "NAMESPACE/NAME[:PORT]", help_heading = "Filters")]
    pub service: Option<String>,
    /// Only of services in this namespace.
    #[arg(long, value_name = "NAMESPACE", help_heading = "Filters")]
    pub namespace: Option<String>,
}

fn reasons() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(DropReason::ALL.iter().map(|reason| reason.name()))
}

/// What there is a row for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Each reason.
    #[default]
    Reason,
    /// Each service and reason.
    Service,
}

/// How often something was refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DropView {
    /// The reason, by its name in metrics.
    pub reason: &'static str,
    /// Whose clients were refused; none where all are counted together.
    pub service: Option<String>,
    /// How often.
    pub count: u64,
    /// What the reason means.
    pub meaning: &'static str,
}

impl Listed for DropView {
    type Filter = DropFilter;

    const COLUMNS: &'static [Column<Self>] = &[
        Column { name: "REASON", shown: Shown::Always, value: |v| v.reason.into() },
        Column {
            name: "SERVICE",
            shown: Shown::Always,
            value: |v| v.service.as_deref().unwrap_or("*").into(),
        },
        Column { name: "COUNT", shown: Shown::Always, value: |v| Value::Number(v.count) },
        Column { name: "MEANING", shown: Shown::Always, value: |v| v.meaning.into() },
    ];

    fn is_wanted(&self, filter: &DropFilter) -> bool {
        let at = Where {
            service: filter.service.clone(),
            namespace: filter.namespace.clone(),
            ..Where::default()
        };
        let services = self.service.iter().map(String::as_str).collect();
        at.admits(&Facets { services, ..Facets::default() })
            && (filter.all || self.count > 0)
            && filter.reason.as_ref().is_none_or(|reason| reason == self.reason)
    }
}

impl Stored for DropView {
    fn read(bpffs: &Path, filter: &DropFilter) -> Result<Vec<Self>> {
        let maps = PinnedMaps::open(Pins::new(bpffs))?;
        // Only rows of services can be of one.
        if filter.by == By::Service || filter.service.is_some() || filter.namespace.is_some() {
            return Ok(by_service(&maps.service_drops()?, &Names::read(&maps, false)?));
        }
        Ok(maps.drops()?.into_iter().map(|(reason, count)| view(reason, None, count)).collect())
    }
}

/// One row.
pub(in crate::cli) fn view(reason: DropReason, service: Option<String>, count: u64) -> DropView {
    DropView { reason: reason.name(), service, count, meaning: reason.help() }
}

/// Refusals by service and reason, in the order of names.
pub(in crate::cli) fn by_service(rows: &[(ServiceDropKey, u64)], names: &Names) -> Vec<DropView> {
    let name = |service: u32| if service == 0 { UNKNOWN.to_owned() } else { names.of(service) };
    let view = |(key, count): &(ServiceDropKey, u64)| {
        let reason = DropReason::ALL.get(key.reason as usize)?;
        Some(view(*reason, Some(name(key.service)), *count))
    };
    let mut views: Vec<_> = rows.iter().filter_map(view).collect();
    views.sort_by(|a, b| (&a.service, a.reason).cmp(&(&b.service, b.reason)));
    views
}

/// Stands for the name where no service was known yet.
const UNKNOWN: &str = "(none)";
