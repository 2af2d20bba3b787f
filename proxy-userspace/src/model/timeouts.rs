//! After how much silence a connection is forgotten.

use std::time::Duration;

use proxy_common::maps::settings::TimeoutSecs;

/// After how much silence a connection is forgotten. The defaults are those of kube-proxy
/// where it sets them (`conntrack.tcpEstablishedTimeout`, `conntrack.tcpCloseWaitTimeout`),
/// else those of netfilter.
///
/// Both sides of a connection have closed when both have sent FIN: the last of their data may be on its way still, and
/// be lost. Netfilter gives it as much time (`nf_conntrack_tcp_timeout_last_ack`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP, both sides have acknowledged.
    pub tcp_established: Duration,
    /// TCP, not yet.
    pub tcp_opening: Duration,
    /// TCP, one side has closed.
    pub tcp_half_closed: Duration,
    /// TCP, both sides have closed. [`proxy_common::flow::Connection::timeout`] says what is kept for longer.
    pub tcp_closed: Duration,
    /// TCP, one side has reset.
    pub tcp_reset: Duration,
    /// UDP, a question and perhaps its answer.
    pub udp: Duration,
    /// UDP, more than that.
    pub udp_stream: Duration,
    /// SCTP; its heartbeats come every 30 seconds.
    pub sctp: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            tcp_established: Duration::from_secs(24 * 60 * 60),
            tcp_opening: Duration::from_secs(120),
            tcp_half_closed: Duration::from_secs(60 * 60),
            tcp_closed: Duration::from_secs(30),
            tcp_reset: Duration::from_secs(10),
            udp: Duration::from_secs(30),
            udp_stream: Duration::from_secs(120),
            sctp: Duration::from_secs(210),
        }
    }
}

/// Whole seconds, as the maps have them; what is left of one counts as one.
impl From<Timeouts> for TimeoutSecs {
    fn from(timeouts: Timeouts) -> Self {
        let whole = |time: Duration| time.as_secs() + u64::from(time.subsec_nanos() > 0);
        let secs = |time| u32::try_from(whole(time)).unwrap_or(u32::MAX);
        Self {
            tcp_established: secs(timeouts.tcp_established),
            tcp_opening: secs(timeouts.tcp_opening),
            tcp_half_closed: secs(timeouts.tcp_half_closed),
            tcp_closed: secs(timeouts.tcp_closed),
            tcp_reset: secs(timeouts.tcp_reset),
            udp: secs(timeouts.udp),
            udp_stream: secs(timeouts.udp_stream),
            sctp: secs(timeouts.sctp),
        }
    }
}

/// What an agent noted; the defaults where none did.
impl From<TimeoutSecs> for Timeouts {
    fn from(noted: TimeoutSecs) -> Self {
        if noted == TimeoutSecs::default() {
            return Self::default();
        }
        let time = |secs: u32| Duration::from_secs(secs.into());
        Self {
            tcp_established: time(noted.tcp_established),
            tcp_opening: time(noted.tcp_opening),
            tcp_half_closed: time(noted.tcp_half_closed),
            tcp_closed: time(noted.tcp_closed),
            tcp_reset: time(noted.tcp_reset),
            udp: time(noted.udp),
            udp_stream: time(noted.udp_stream),
            sctp: time(noted.sctp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_survive_and_what_nobody_noted_is_the_default() {
        let timeouts = Timeouts { udp: Duration::from_secs(7), ..Timeouts::default() };
        assert_eq!(Timeouts::from(TimeoutSecs::from(timeouts)), timeouts);
        assert_eq!(Timeouts::from(TimeoutSecs::default()), Timeouts::default());
        let short = Timeouts { tcp_reset: Duration::from_millis(1500), ..timeouts };
        assert_eq!(TimeoutSecs::from(short).tcp_reset, 2);
    }
}
