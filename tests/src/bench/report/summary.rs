//! The first page: what was wanted, and what was reached.

use super::{grouped, head, row, traffic::find};
use crate::bench::{
    contender::Contender,
    ends::Workload,
    target::Path,
    traffic::{Run, Traffic},
};

/// What is wanted of a contender: at most so many times the CPU time of `direct`.
struct Goal {
    path: Path,
    workload: Workload,
    contender: Contender,
    most: f64,
}

const fn goal(path: Path, workload: Workload, contender: Contender, most: f64) -> Goal {
    Goal { path, workload, contender, most }
}

const GOALS: [Goal; 12] = [
    goal(Path::PodLocal, Workload::TcpConnect, Contender::ShuntAll, 1.03),
    goal(Path::PodLocal, Workload::TcpConnect, Contender::ShuntOff, 1.10),
    goal(Path::PodRemote, Workload::TcpConnect, Contender::ShuntAll, 1.03),
    goal(Path::PodRemote, Workload::TcpConnect, Contender::ShuntOff, 1.10),
    goal(Path::HostLocal, Workload::TcpConnect, Contender::ShuntHost, 1.03),
    goal(Path::OutsideLocal, Workload::TcpConnect, Contender::ShuntAll, 1.10),
    goal(Path::OutsideKept, Workload::TcpConnect, Contender::ShuntAll, 1.10),
    goal(Path::OutsideRemote, Workload::TcpConnect, Contender::ShuntAll, 1.15),
    goal(Path::OutsideRemote, Workload::TcpConnect, Contender::ShuntXdp, 1.00),
    goal(Path::PodPod, Workload::TcpConnect, Contender::ShuntAll, 1.02),
    goal(Path::PodLocal, Workload::UdpFlow, Contender::ShuntAll, 1.05),
    goal(Path::PodLocal, Workload::UdpFlow, Contender::ShuntOff, 1.15),
];

/// The page.
pub(super) fn page(traffic: Option<&Traffic>, changes: bool, load: bool) -> String {
    let mut text = "# Benchmarks\n\nshunt beside the real kube-proxy and beside no proxy, in one run. \
                    [How](method.md), and [what limits the figures](../performance.md).\n\n"
        .to_owned();
    if traffic.is_some() {
        text += "- [Traffic](traffic.md): what connections, requests and streams cost.\n";
    }
    if changes {
        text +=
            "- [Changes](control.md): how long it takes until a change is in force, and what that costs.\n";
    }
    if load {
        text += "- [Load](load.md): connections for minutes to one backend, and the source ports they take; \
                 floods of SYNs.\n";
    }
    let Some(traffic) = traffic else { return text };
    let services: Vec<String> = traffic.runs.iter().map(|run| grouped(run.services)).collect();
    text += &format!(
        "\n{}\n\nCPU time over that of `direct`, median, at {} Services of 10 endpoints:\n\n",
        traffic.machine.describe(),
        services.join(" → ")
    );
    let names = ["path", "request", "iptables", "iptables-legacy", "nftables", "shunt", "wanted", "as"];
    text += &head(&names.map(String::from));
    for Goal { path, workload, contender, most } in GOALS {
        let by = |contender| series(&traffic.runs, path, workload, contender);
        text += &row([
            path.name(),
            workload.name(),
            by(Contender::Iptables),
            by(Contender::IptablesLegacy),
            by(Contender::Nftables),
            by(contender),
            format!("≤ {most:.2}"),
            contender.name(),
        ]);
    }
    text + "\n![CPU time of a connection](traffic.svg)\n"
}

fn series(runs: &[Run], path: Path, workload: Workload, contender: Contender) -> String {
    let one = |run| match find(run, path, workload, contender) {
        Some(cell) if cell.to_direct > 0.0 => format!("{:.2}", cell.to_direct),
        Some(_) => "failed".into(),
        None => "–".into(),
    };
    runs.iter().map(one).collect::<Vec<String>>().join(" → ")
}
