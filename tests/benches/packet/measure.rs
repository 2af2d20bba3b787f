//! Times every case in rounds, so that what disturbs the machine meets all cases alike.

use anyhow::{Result, ensure};

use crate::{
    bpf,
    cases::{Case, Packets},
    frames::checked,
    rig::Rig,
};

/// Repetitions within one call. Few enough for a packet that loses one hop of 255 each time.
const REPEAT: u32 = 250;
/// Calls of one case in one round. Each call of an XDP program waits for the kernel to prepare.
const CALLS: usize = 4;
/// New packets of one case in one round.
pub(crate) const FRESH: u16 = 400;

/// The result of one case.
pub(crate) struct Row {
    pub(crate) case: Case,
    /// Median over the rounds.
    pub(crate) nanoseconds: f64,
    /// The same of the program that does nothing, on the same packets.
    pub(crate) noop: f64,
    /// The shortest difference of any round: what other work on the machine added least to.
    pub(crate) least: f64,
    /// Median over the rounds of the difference to the program that does nothing.
    pub(crate) over_noop: f64,
    /// Median over the rounds of the ratio to it.
    pub(crate) ratio: f64,
}

/// Runs all cases `rounds` times.
pub(crate) fn all(rig: &mut Rig, cases: &[Case], rounds: u32) -> Result<Vec<Row>> {
    for case in cases {
        rig.forget_new_connections()?;
        rig.prepare(case);
        check(rig, case)?;
    }
    let mut samples = vec![Vec::new(); cases.len()];
    for round in 0..rounds {
        for (case, samples) in cases.iter().zip(&mut samples) {
            rig.forget_new_connections()?;
            rig.prepare(case);
            let noop = time(rig, case, round, true)?;
            samples.push((time(rig, case, round, false)?, noop));
        }
    }
    let row = |(case, samples): (&Case, Vec<(f64, f64)>)| {
        let of = |value: fn(&(f64, f64)) -> f64| median(samples.iter().map(value).collect());
        Row {
            case: case.clone(),
            nanoseconds: of(|(own, _)| *own),
            noop: of(|(_, noop)| *noop),
            least: samples.iter().map(|(own, noop)| own - noop).fold(f64::INFINITY, f64::min),
            over_noop: of(|(own, noop)| own - noop),
            ratio: of(|(own, noop)| own / noop),
        }
    };
    Ok(cases.iter().zip(samples).map(row).collect())
}

/// A case that does not do what its name says would be measured all the same.
fn check(rig: &Rig, case: &Case) -> Result<()> {
    let mut packet = rig.packet(case, 1, 0)?;
    for expected in &case.becomes {
        let run = bpf::run(rig.program(case)?, case.hook.kind(), &packet, rig.ifindex(case.hook), 1)?;
        let mut flow = checked(&run.packet);
        if expected.1.src.1 == 0 {
            flow.src = expected.1.src;
        }
        ensure!((run.verdict, flow) == *expected, "{case}: {flow:?}, {} and not {expected:?}", run.verdict);
        packet = run.packet;
    }
    Ok(())
}

fn time(rig: &Rig, case: &Case, round: u32, noop: bool) -> Result<f64> {
    let program = if noop { rig.noop(case.hook) } else { rig.program(case)? };
    let run = |packet: &[u8], repeat| {
        let run = bpf::run(program, case.hook.kind(), packet, rig.ifindex(case.hook), repeat)?;
        let expected = if noop { case.hook.kind().pass() } else { case.becomes[0].0 };
        ensure!(run.verdict == expected, "{case}: verdict {}", run.verdict);
        anyhow::Ok(f64::from(run.nanoseconds))
    };
    match case.packets {
        Packets::Same(_) => {
            let packet = rig.packet(case, 1, 0)?;
            let calls = (0..CALLS).map(|_| run(&packet, REPEAT)).collect::<Result<Vec<_>>>()?;
            Ok(median(calls))
        }
        Packets::New(_) => {
            let each = |number| run(&rig.packet(case, 2 + 2 * round + u32::from(noop), number)?, 1);
            Ok(median((0..FRESH).map(each).collect::<Result<Vec<_>>>()?))
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}
