//! Compares what happened with what a case promises. The first difference is told.

use super::case::{Backends, Expect, Fate, Flow, Snat, Via};
use crate::{
    late,
    probe::{Answer, Arrival, Outcome},
};
use anyhow::{Result, anyhow, bail, ensure};
use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
};

/// Allowed deviation from an equal share.
const TOLERANCE: f64 = 0.3;

/// What became of the connections of a flow.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) outcomes: Vec<Outcome>,
    /// What reached any server meanwhile.
    pub(super) arrivals: Vec<Arrival>,
    /// What SYNs led to meanwhile in any namespace.
    pub(super) openings: u64,
    /// TCP segments that the client's namespace sent once more.
    pub(super) resent: u64,
}

/// What the judgement depends on besides the flow.
pub(super) struct Facts<'a> {
    pub(super) node_addresses: &'a [IpAddr],
    /// The client's socket is translated, so its packets carry the backend's address and
    /// the source address may stay as it is.
    pub(super) socket_translated: bool,
    /// The server that listens on an address.
    pub(super) server_at: &'a dyn Fn(IpAddr) -> String,
    /// Targets of flows with an id.
    pub(super) targets: &'a HashMap<String, SocketAddr>,
}

/// Judges one flow.
pub(super) fn judge(flow: &Flow, expect: &Expect, observed: &Observed, facts: &Facts) -> Result<()> {
    match expect {
        Expect::OneOf(alternatives) => {
            let judged = alternatives.one_of.iter().map(|one| judge(flow, one, observed, facts));
            let errors: Vec<_> = judged.filter_map(Result::err).collect();
            if errors.len() < alternatives.one_of.len() {
                return Ok(());
            }
            let why = errors.iter().map(late::unmarked).collect::<Vec<_>>().join("; ");
            ensure!(errors.iter().all(late::is_late), "no alternative holds: {why}");
            bail!(late!("no alternative holds yet: {why}"))
        }
        Expect::Verdict(decided) => match decided.verdict {
            Fate::Pass => passed(flow, observed, facts),
            Fate::Reject => rejected(observed),
            Fate::Drop => dropped(observed),
        },
        Expect::Backends(backends) => delivered(flow, backends, observed, facts),
    }
}

/// The answers that came. Attempts without any are for [`all_came`] to judge.
fn answers(observed: &Observed) -> Result<Vec<&Answer>> {
    let answers = observed.outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Answered(answer) => Some(Ok(answer)),
        Outcome::TimedOut => None,
        other => Some(Err(anyhow!("{other}{}", arrived(observed)))),
    });
    answers.collect()
}

/// Where all answers that came are right, one that did not is only late, unless its request is
/// known to have gone elsewhere or the connection was open before.
fn all_came(flow: &Flow, observed: &Observed, targets: &[SocketAddr]) -> Result<()> {
    if !observed.outcomes.contains(&Outcome::TimedOut) {
        return Ok(());
    }
    let text = format!("no answer{}", arrived(observed));
    let went_well = observed.arrivals.iter().all(|arrival| targets.contains(&arrival.local));
    ensure!(went_well && flow.established.is_none(), text);
    bail!(late!("{text}"))
}

fn arrived(observed: &Observed) -> String {
    observed.arrivals.last().map(|arrival| format!(", though {arrival}")).unwrap_or_default()
}

fn passed(flow: &Flow, observed: &Observed, facts: &Facts) -> Result<()> {
    for answer in answers(observed)? {
        ensure!(answer.local == flow.to, "not left alone: {answer}");
        came_back(flow, answer, facts)?;
        let source_is_kept = match flow.via {
            Via::Node => facts.node_addresses.contains(&answer.saw.ip()) || answer.saw.ip().is_loopback(),
            _ => flow.clients().any(|client| client == answer.saw.ip()),
        };
        ensure!(source_is_kept, "the source was rewritten: {answer}");
    }
    all_came(flow, observed, &[flow.to])
}

fn rejected(observed: &Observed) -> Result<()> {
    for outcome in &observed.outcomes {
        ensure!(*outcome == Outcome::Refused, "not refused: {outcome}{}", arrived(observed));
    }
    ensure!(observed.resent == 0, "refused only when asked again: {} segments", observed.resent);
    ensure!(observed.arrivals.is_empty(), "refused{}", arrived(observed));
    Ok(())
}

fn dropped(observed: &Observed) -> Result<()> {
    for outcome in &observed.outcomes {
        ensure!(matches!(outcome, Outcome::TimedOut | Outcome::Dropped), "not dropped: {outcome}");
    }
    ensure!(observed.arrivals.is_empty(), "no answer{}", arrived(observed));
    ensure!(observed.openings == 0, "no answer, but {} SYNs arrived somewhere", observed.openings);
    Ok(())
}

/// The answer came from the right server, and the client saw it come from where it sent to.
fn came_back(flow: &Flow, answer: &Answer, facts: &Facts) -> Result<()> {
    let server = (facts.server_at)(answer.local.ip());
    ensure!(answer.server == server, "{answer}, but that address belongs to {server}");
    ensure!(answer.peer == flow.to, "the client's peer is {}: {answer}", answer.peer);
    Ok(())
}

fn delivered(flow: &Flow, expect: &Backends, observed: &Observed, facts: &Facts) -> Result<()> {
    let mut counts: BTreeMap<SocketAddr, usize> = BTreeMap::new();
    for answer in answers(observed)? {
        ensure!(expect.backends.contains(&answer.local), "reached another target: {answer}");
        came_back(flow, answer, facts)?;
        source(flow, expect.snat, answer, facts)?;
        *counts.entry(answer.local).or_default() += 1;
    }
    if let Some(id) = &expect.same_as {
        let before = facts.targets.get(id);
        let moved = counts.keys().find(|target| Some(*target) != before);
        ensure!(moved.is_none(), "{moved:?} is not the target of flow {id}, {before:?}");
    }
    ensure!(!expect.sticky || counts.len() <= 1, "not sticky: {counts:?}");
    all_came(flow, observed, &expect.backends)?;
    ensure!(!expect.spread || counts.len() > 1, "not spread: {counts:?}");
    if wants_every_target(flow, expect) {
        let missed = expect.backends.iter().find(|target| !counts.contains_key(*target));
        ensure!(
            missed.is_none(),
            "never reached {}: {counts:?}",
            missed.map(ToString::to_string).unwrap_or_default()
        );
    }
    if expect.distribution.is_some()
        && let Some((target, count)) = uneven(&expect.backends, observed)
    {
        bail!("{target} got {count} of {} connections", observed.outcomes.len());
    }
    Ok(())
}

/// Whether the promise is about all targets. The number of connections is then free.
pub(super) fn wants_every_target(flow: &Flow, expect: &Backends) -> bool {
    let of_few_connections = flow.repeat.is_some() || flow.clients.is_some() || flow.source_port.is_some();
    let of_one_target =
        expect.sticky || expect.spread || expect.same_as.is_some() || flow.established.is_some();
    !of_few_connections && !of_one_target
}

/// A target whose share is too far from the equal one.
pub(super) fn uneven(targets: &[SocketAddr], observed: &Observed) -> Option<(SocketAddr, usize)> {
    let share = observed.outcomes.len() as f64 / targets.len() as f64;
    let counts = targets.iter().map(|target| {
        let hits =
            observed.outcomes.iter().filter(|o| matches!(o, Outcome::Answered(a) if a.local == *target));
        (*target, hits.count())
    });
    let mut far = counts.filter(|(_, count)| (*count as f64 - share).abs() > share * TOLERANCE);
    far.next()
}

fn source(flow: &Flow, snat: Snat, answer: &Answer, facts: &Facts) -> Result<()> {
    let saw = answer.saw.ip();
    let of_node = facts.node_addresses.contains(&saw);
    let masked = match snat {
        Snat::Yes => true,
        Snat::No => false,
        Snat::HairpinOnly => answer.local.ip() == flow.from,
    };
    let of_client = flow.clients().any(|client| client == saw);
    // The kernel chooses a process's address by the route to the backend.
    let any_of_node = flow.via == Via::Node && facts.socket_translated && of_node;
    let fits = match masked {
        true => of_node || (facts.socket_translated && of_client),
        false => of_client || any_of_node,
    };
    ensure!(fits, "{} address was expected: {answer}", if masked { "a node" } else { "the client's" });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(via: &str, expect: Value, outcomes: Vec<Outcome>) -> Result<()> {
        let flow =
            json!({"from": "10.0.0.2", "via": via, "proto": "TCP", "to": "172.30.0.41:80", "expect": expect});
        let flow: Flow = serde_json::from_value(flow)?;
        let facts = Facts {
            node_addresses: &["192.168.0.2".parse()?],
            socket_translated: false,
            server_at: &|_| "s".into(),
            targets: &HashMap::new(),
        };
        judge(&flow, &flow.expect, &Observed { outcomes, ..Observed::default() }, &facts)
    }

    fn answer(local: &str, saw: &str) -> Outcome {
        let parse = |text: &str| text.parse().expect("an address");
        let (local, saw, peer) = (parse(local), parse(saw), parse("172.30.0.41:80"));
        Outcome::Answered(Answer { server: "s".into(), local, saw, peer, received: 0 })
    }

    #[test]
    fn every_target_and_no_other() {
        let both = json!({"backends": ["10.180.0.1:80", "10.180.2.1:80"], "snat": false});
        let one = answer("10.180.0.1:80", "10.0.0.2:9");
        let two = answer("10.180.2.1:80", "10.0.0.2:9");
        assert!(check("pod", both.clone(), vec![one.clone(), two.clone()]).is_ok());
        for bad in [
            vec![one.clone()],
            vec![one.clone(), two.clone(), answer("10.180.3.1:80", "10.0.0.2:9")],
            vec![one.clone(), answer("10.180.2.1:80", "192.168.0.2:9")],
            vec![one.clone(), two.clone(), Outcome::TimedOut],
        ] {
            assert!(check("pod", both.clone(), bad.clone()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_silence_that_nothing_contradicts_is_late() {
        let both = json!({"backends": ["10.180.0.1:80", "10.180.2.1:80"], "snat": false});
        let one = answer("10.180.0.1:80", "10.0.0.2:9");
        let is_late = |expect: &Value, outcomes: Vec<Outcome>| {
            late::is_late(&check("pod", expect.clone(), outcomes).expect_err("an attempt has failed"))
        };
        assert!(is_late(&both, vec![one.clone(), Outcome::TimedOut]));
        let elsewhere = answer("10.180.3.1:80", "10.0.0.2:9");
        for contradiction in [elsewhere, Outcome::Refused, Outcome::Dropped, Outcome::Failed("reset".into())]
        {
            assert!(!is_late(&both, vec![Outcome::TimedOut, contradiction.clone()]), "{contradiction}");
        }
        assert!(!is_late(&both, vec![one.clone()]), "a target that was never reached");
        let reject = json!({"verdict": "reject"});
        assert!(!is_late(&reject, vec![Outcome::TimedOut]), "it was dropped");
        let sticky = json!({"backends": ["10.180.0.1:80", "10.180.2.1:80"], "snat": false, "sticky": true});
        assert!(is_late(&sticky, vec![Outcome::TimedOut]));
        let other = answer("10.180.2.1:80", "10.0.0.2:9");
        assert!(!is_late(&sticky, vec![one, other, Outcome::TimedOut]));
        let pass = json!({"verdict": "pass"});
        assert!(is_late(&json!({"oneOf": [both, pass]}), vec![Outcome::TimedOut]));
        let mixed = json!({"oneOf": [both, reject]});
        let error = check("pod", mixed, vec![Outcome::TimedOut]).expect_err("an attempt has failed");
        assert!(!format!("{error:#}").contains("late: "), "{error:#}");
    }

    #[test]
    fn masquerade_only_on_hairpin() {
        let expect = json!({"backends": ["10.0.0.2:80", "10.180.2.1:80"], "snat": "hairpin-only"});
        let own = answer("10.0.0.2:80", "192.168.0.2:9");
        assert!(
            check("pod", expect.clone(), vec![own.clone(), answer("10.180.2.1:80", "10.0.0.2:9")]).is_ok()
        );
        assert!(check("pod", expect.clone(), vec![own, answer("10.180.2.1:80", "192.168.0.2:9")]).is_err());
    }

    #[test]
    fn verdicts() {
        let verdict = |name: &str| json!({"verdict": name});
        assert!(check("pod", verdict("pass"), vec![answer("172.30.0.41:80", "10.0.0.2:9")]).is_ok());
        assert!(check("pod", verdict("pass"), vec![answer("10.180.0.1:80", "10.0.0.2:9")]).is_err());
        assert!(check("pod", verdict("reject"), vec![Outcome::Refused]).is_ok());
        assert!(check("pod", verdict("reject"), vec![Outcome::TimedOut]).is_err());
        assert!(check("pod", verdict("drop"), vec![Outcome::TimedOut, Outcome::Dropped]).is_ok());
        let one_of = json!({"oneOf": [verdict("drop"), verdict("reject")]});
        assert!(check("pod", one_of.clone(), vec![Outcome::Refused]).is_ok());
        assert!(check("pod", one_of, vec![Outcome::Refused, Outcome::TimedOut]).is_err());
    }
}
