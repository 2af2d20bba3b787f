//! Tables for people.

use comfy_table::{ContentArrangement, Table, presets};

use super::{check::Report, conns::ConnView, services::FrontendView};
use crate::model::{Algorithm, Mode};

/// Backends in a cell of the short table; a service may have thousands.
const BACKENDS_SHOWN: usize = 4;

/// The table of `shunt service list`.
pub fn services(views: &[FrontendView], wide: bool) -> String {
    let mut header = vec!["SERVICE", "KIND", "FRONTEND", "PROTO", "POLICY", "BACKENDS", "CONNECTIONS"];
    if wide {
        header.extend(["AFFINITY", "POD", "NODE", "EXTERNAL"]);
    }
    let mut table = plain(&header);
    // Rows for a whole address only say that its other ports are refused.
    for view in views.iter().filter(|view| wide || view.port != 0) {
        let mut row = vec![
            view.service.clone(),
            view.kind.to_owned(),
            frontend(view, wide),
            view.protocol.to_owned(),
            policy(view),
            backends(view, wide),
            view.connections.to_string(),
        ];
        if wide {
            let rules = &view.rules;
            let words = |words: &[&str]| if words.is_empty() { "-".to_owned() } else { words.join(",") };
            row.push(if view.affinity_seconds == 0 {
                "-".into()
            } else {
                format!("{}s", view.affinity_seconds)
            });
            row.extend([&rules.pod, &rules.node, &rules.external].map(|rule| words(rule)));
        }
        table.add_row(row);
    }
    table.trim_fmt()
}

fn frontend(view: &FrontendView, wide: bool) -> String {
    let with_port = |address: &String| match view.port {
        0 => address.clone(),
        port if address.contains(':') => format!("[{address}]:{port}"),
        port => format!("{address}:{port}"),
    };
    if wide && !view.node_addresses.is_empty() {
        return view.node_addresses.iter().map(with_port).collect::<Vec<_>>().join("\n");
    }
    with_port(&view.address)
}

/// The policy, and below it what is not the default of the load balancer.
fn policy(view: &FrontendView) -> String {
    let words = [(view.mode, Mode::default().name()), (view.algorithm, Algorithm::default().name())];
    let differing = words.into_iter().filter(|(word, default)| word != default).map(|(word, _)| word);
    std::iter::once(view.policy).chain(differing).collect::<Vec<_>>().join(" ")
}

/// One backend per line, those on this node with a mark.
fn backends(view: &FrontendView, wide: bool) -> String {
    if view.backends.is_empty() {
        return if view.port == 0 { "-".into() } else { "<none>".into() };
    }
    let shown = if wide { view.backends.len() } else { BACKENDS_SHOWN };
    let mut lines: Vec<String> = Vec::new();
    for backend in view.backends.iter().take(shown) {
        let mark = if backend.local { " *" } else { "" };
        let count = if wide { format!(" ({})", backend.connections) } else { String::new() };
        lines.push(format!("{}{mark}{count}", backend.address));
    }
    if view.backends.len() > shown {
        lines.push(format!("… {} more", view.backends.len() - shown));
    }
    lines.join("\n")
}

/// The table of `shunt conn list`.
pub fn connections(views: &[ConnView]) -> String {
    let mut table = plain(&["SERVICE", "PROTO", "CLIENT", "FRONTEND", "BACKEND", "SNAT", "STATE", "IDLE"]);
    for view in views {
        table.add_row([
            view.service.clone(),
            view.protocol.to_owned(),
            view.client.to_string(),
            view.frontend.to_string(),
            view.backend.to_string(),
            match view.snat {
                Some(snat) => snat.to_string(),
                None if view.direct_return => "dsr".to_owned(),
                None => "-".to_owned(),
            },
            view.state.map_or("-", |state| state.name()).to_owned(),
            idle(view.idle_seconds),
        ]);
    }
    table.trim_fmt()
}

/// The tables of `shunt check`.
pub fn check(report: &Report) -> String {
    let mut checks = plain(&["CHECK", "STATE", "DETAIL"]);
    for finding in &report.checks {
        checks.add_row([finding.check, finding.state.name(), &finding.detail]);
    }
    let mut text = checks.trim_fmt();
    if !report.devices.is_empty() {
        let mut devices = plain(&["DEVICE", "TC", "XDP", "REASON", "OTHERS"]);
        for device in &report.devices {
            let (ingress, egress) = (device.tc.ingress, device.tc.egress);
            let tc = if ingress == egress { ingress.into() } else { format!("{ingress}/{egress}") };
            let or_dash = |text: String| if text.is_empty() { "-".into() } else { text };
            devices.add_row([
                device.interface.clone(),
                tc,
                device.xdp.mode.to_owned(),
                or_dash(device.xdp.reason.clone()),
                or_dash(device.others.join(", ")),
            ]);
        }
        text = format!("{text}\n\n{}", devices.trim_fmt());
    }
    text
}

/// The two largest units, as kubectl shows ages.
fn idle(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        _ => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// A table without lines, for eyes and for `awk`.
fn plain(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::idle;

    #[test]
    fn idle_times() {
        let shown = [0, 59, 60, 3599, 3600, 90_061].map(idle);
        assert_eq!(shown, ["0s", "59s", "1m0s", "59m59s", "1h0m", "25h1m"]);
    }
}
