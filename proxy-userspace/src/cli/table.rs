//! The tables of `shunt check`.

use comfy_table::{ContentArrangement, Table, presets};

use super::check::Report;

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
