//! The probe process: reads requests, carries them out one at a time, replies.

use super::{
    Exchange, Outcome, calls,
    dial::{self, Kept},
    forward,
    load::Loads,
    protocol::{Reply, Request},
    serve::{self, Arrivals},
    share, steps, udp,
};
use crate::lines;
use anyhow::Result;
use std::{collections::HashMap, mem, net::UdpSocket, sync::PoisonError, time::Duration};

/// Works until standard input ends.
pub fn work() -> Result<()> {
    let arrivals = Arrivals::default();
    let mut kept = HashMap::new();
    let mut sockets = HashMap::new();
    let mut loads = Loads::default();
    lines::carry_out(|line| {
        carry_out(line, &arrivals, (&mut kept, &mut sockets), &mut loads)
            .unwrap_or_else(|error| Reply::Failed(format!("{error:#}")))
    })
}

fn carry_out(
    line: &str,
    arrivals: &Arrivals,
    (kept, sockets): (&mut HashMap<String, Kept>, &mut HashMap<String, UdpSocket>),
    loads: &mut Loads,
) -> Result<Reply> {
    Ok(match serde_json::from_str(line)? {
        Request::Serve(request) => {
            serve::start(&request, arrivals)?;
            Reply::Done
        }
        Request::Forward(request) => {
            forward::start(request, arrivals)?;
            Reply::Done
        }
        Request::Calls(request) => {
            calls::call(&request)?;
            Reply::Done
        }
        Request::Datagrams(request) => Reply::Outcomes(udp::by_address(&request, sockets)?),
        Request::Share(request) => Reply::Outcomes(share::share(&request)?),
        Request::Steps(request) => Reply::Outcomes(steps::walk(&request, kept)?),
        Request::Dial(request) => Reply::Outcomes(dial::dial(&request, kept)?),
        Request::Exchange(request) => Reply::Outcomes(vec![exchange(&request, kept)]),
        Request::Load(traffic) => {
            loads.start(traffic)?;
            Reply::Done
        }
        Request::LoadCounts => Reply::Counts(loads.counts()),
        Request::EndLoad => Reply::Counts(loads.end()),
        Request::Arrivals => {
            Reply::Arrivals(mem::take(&mut *arrivals.lock().unwrap_or_else(PoisonError::into_inner)))
        }
    })
}

fn exchange(request: &Exchange, kept: &mut HashMap<String, Kept>) -> Outcome {
    match kept.get_mut(&request.keep) {
        Some(kept) => kept.exchange(request.bulk, Duration::from_millis(request.timeout_ms)),
        None => Outcome::Failed(format!("no connection is kept as {}", request.keep)),
    }
}
