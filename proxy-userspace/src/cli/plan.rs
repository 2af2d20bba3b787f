//! `shunt plan`: what the agent would write, without writing it.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Result;
use clap::Args;
use proxy_common::maps::services::ServiceRow;
use serde::Serialize;

use super::{
    desired::{
        Desired, SourceArgs, Written,
        compare::{self, Change, Difference, NODE},
    },
    list::{
        self, Listed, ShowArgs,
        column::{Column, Shown, Value},
        filter::{Facets, Where},
        service::{self, FrontendView},
    },
    output::{self, Output},
    rows::{Names, Rows},
};
use crate::dataplane::{MapAddr, MemoryFamily, MemoryMaps};

pub(super) const EXAMPLES: &str = "Examples:
  What an agent would do on this node, by the API server:
    shunt plan --kubeconfig /etc/kubernetes/kubelet.conf --changes
  What manifests mean for a node, on any machine:
    shunt plan --manifests manifests --hostname-override node-1
  How one Service is served:
    shunt plan --manifests manifests --hostname-override node-1 --service shop/web -o yaml

Where there are maps of an agent, CHANGE tells what would become of each row of theirs. Nothing is written.";

/// `shunt plan`
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// How to show it.
    #[command(flatten)]
    pub show: ShowArgs<PlannedView>,
    /// By what.
    #[command(flatten)]
    pub source: SourceArgs,
}

/// Which rows.
#[derive(Debug, Default, Args)]
pub struct PlanFilter {
    /// By what all lists have.
    #[command(flatten)]
    pub at: Where,
    /// Only what would change.
    #[arg(long, help_heading = "Filters")]
    pub changes: bool,
}

/// One row as it would be.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedView {
    /// `same`, `new`, `changed` or `removed`.
    pub change: &'static str,
    /// What of it changes.
    pub details: Vec<String>,
    /// The row; none for rows of other maps, which are only shown where they change.
    #[serde(flatten)]
    pub frontend: Option<FrontendView>,
    /// Where it is not a frontend: the service, the map, the row.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub other: Option<Other>,
}

/// A row that is not a frontend.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Other {
    pub service: String,
    pub map: &'static str,
    pub row: String,
}

const SAME: &str = "same";

impl Listed for PlannedView {
    type Filter = PlanFilter;

    const COLUMNS: &'static [Column<Self>] = &[
        Column { name: "CHANGE", shown: Shown::Always, value: |v| v.change.into() },
        Column { name: "SERVICE", shown: Shown::Always, value: |v| v.service().into() },
        Column { name: "KIND", shown: Shown::Always, value: |v| v.of(|f| f.kind.into(), |o| o.map.into()) },
        Column {
            name: "FRONTEND",
            shown: Shown::Narrow,
            value: |v| v.of(|f| f.with_port(&f.address).into(), |o| o.row.as_str().into()),
        },
        Column {
            name: "FRONTEND",
            shown: Shown::Wide,
            value: |v| v.of(service::every_address, |o| o.row.as_str().into()),
        },
        Column {
            name: "PROTO",
            shown: Shown::Always,
            value: |v| v.of(|f| f.protocol.into(), |_| Value::None),
        },
        Column {
            name: "POLICY",
            shown: Shown::Always,
            value: |v| v.of(service::policy_and_balancer, |_| Value::None),
        },
        Column {
            name: "BACKENDS",
            shown: Shown::Narrow,
            value: |v| v.of(service::some_backends, |_| Value::None),
        },
        Column {
            name: "BACKENDS",
            shown: Shown::Wide,
            value: |v| v.of(service::every_backend, |_| Value::None),
        },
        Column { name: "AFFINITY", shown: Shown::Wide, value: |v| v.of(service::affinity, |_| Value::None) },
        Column {
            name: "DETAILS",
            shown: Shown::Always,
            value: |v| if v.details.is_empty() { Value::None } else { Value::Lines(v.details.clone()) },
        },
    ];

    fn is_wanted(&self, filter: &PlanFilter) -> bool {
        let admitted = match &self.frontend {
            Some(frontend) => filter.at.admits(&frontend.facets()),
            None => filter.at.admits(&Facets { services: vec![self.service()], ..Facets::default() }),
        };
        admitted && (!filter.changes || self.change != SAME)
    }

    fn is_detail(&self) -> bool {
        self.frontend.as_ref().is_some_and(Listed::is_detail) && self.change == SAME
    }
}

impl PlannedView {
    fn service(&self) -> &str {
        let other = || self.other.as_ref().map_or(NODE, |other| &other.service);
        self.frontend.as_ref().map_or_else(other, |frontend| &frontend.service)
    }

    fn of(&self, frontend: impl Fn(&FrontendView) -> Value, other: impl Fn(&Other) -> Value) -> Value {
        match (&self.frontend, &self.other) {
            (Some(row), _) => frontend(row),
            (None, Some(row)) => other(row),
            (None, None) => Value::None,
        }
    }
}

/// Prints the plan.
pub fn run(args: &PlanArgs) -> Result<ExitCode> {
    let written = super::runtime()?.block_on(plan(&args.source))?;
    let rows = planned(&written, args.show.filter.at.numeric);
    let count = |change: &str| rows.iter().filter(|row| row.change == change).count();
    let summary = format!(
        "{} rows would be new, {} changed, {} removed, {} stay",
        count("new"),
        count("changed"),
        count("removed"),
        count(SAME)
    );
    for (service, reason) in &written.failures {
        output::note(&format!("{service} could not be written: {reason}"));
    }
    let printed = output::print(&list::show(&args.show, rows)?)?;
    if matches!(args.show.output, Output::Table | Output::Wide) {
        output::note(&summary);
    }
    Ok(printed)
}

async fn plan(source: &SourceArgs) -> Result<Written> {
    let mut desired = Desired::gather(source).await?;
    if !desired.knows_node() {
        output::note(&format!("there is no Node {}: NodePorts have no address", desired.node_name));
    }
    if !desired.is_here() {
        output::note(&format!(
            "this host is not {}: the addresses are those of the Node object",
            desired.node_name
        ));
        desired.assume_addresses_of_the_node();
    }
    let before = match desired.live()? {
        Some(live) => live,
        None => desired.empty(),
    };
    desired.write(before)
}

/// Every frontend that there would be, and all that changes.
fn planned(written: &Written, numeric: bool) -> Vec<PlannedView> {
    let after = frontends(&written.after, numeric);
    let before = frontends(&written.before, numeric);
    let mut differences: BTreeMap<_, Difference> = compare::differences(&written.before, &written.after)
        .into_iter()
        .map(|difference| ((difference.map, difference.row.clone()), difference))
        .collect();
    let mut view = |row: FrontendView| {
        let difference = differences.remove(&("frontends", row.row_name()));
        let (change, details) = difference.map_or((SAME, Vec::new()), |d| (word(d.kind), d.details));
        PlannedView { change, details, frontend: Some(row), other: None }
    };
    let mut rows: Vec<_> = after.into_iter().map(&mut view).collect();
    rows.extend(before.into_iter().map(view).filter(|row| row.change == word(Change::Extra)));
    rows.extend(differences.into_values().map(|Difference { service, map, row, kind, details }| {
        PlannedView { change: word(kind), details, frontend: None, other: Some(Other { service, map, row }) }
    }));
    rows
}

/// What would become of a row that differs.
fn word(change: Change) -> &'static str {
    match change {
        Change::Missing => "new",
        Change::Extra => "removed",
        Change::Different => "changed",
    }
}

fn frontends(maps: &MemoryMaps, numeric: bool) -> Vec<FrontendView> {
    let name = |(id, row): (&u32, &ServiceRow)| (*id, row.name().to_owned());
    let names = Names::new(maps.services.iter().map(name).collect(), numeric);
    let mut views = service::frontends(&rows(&maps.v4), &names);
    views.extend(service::frontends(&rows(&maps.v6), &names));
    service::sort(&mut views);
    // There are no connections in a plan.
    for view in &mut views {
        view.counts = None;
        view.backends.iter_mut().for_each(|backend| backend.counts = None);
    }
    views
}

fn rows<A: MapAddr>(maps: &MemoryFamily<A>) -> Rows<A> {
    use proxy_common::maps::backends::flags::PRESENT;
    let backends = (0..).zip(&maps.backends).filter(|(_, row)| row.flags & PRESENT != 0);
    Rows {
        frontends: maps.frontends.iter().map(|(key, row)| (*key, *row)).collect(),
        backends: backends.map(|(id, row)| (id, *row)).collect(),
        slots: maps.slots.clone(),
        node_addresses: maps.node_addresses.iter().map(|(addr, flags)| (*addr, *flags)).collect(),
        ..Rows::default()
    }
}
