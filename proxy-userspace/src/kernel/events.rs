//! The listener of `shunt trace`: what the programs tell, for as long as it lives.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use aya::maps::{Array, MapData, RingBuf};
use nix::{
    errno::Errno,
    net::if_::if_indextoname,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use proxy_common::maps::events::{Event, Trace};

use super::{error::KernelError, object, pins::Pins};
use crate::clock::monotonic_nanos;

/// How long the programs go on after the listener was last heard of. It may have been killed.
const LEASE: Duration = Duration::from_secs(3);

/// Tells the programs to tell, and hears them. They stop when it is dropped, or soon after its
/// process ends.
pub struct Listener {
    trace: Array<MapData, Trace>,
    events: RingBuf<MapData>,
    wanted: Trace,
}

impl Listener {
    /// Begins to listen to one event in `one_in`, of one service if `service` is not 0.
    ///
    /// # Errors
    /// When no agent has run here, or somebody else listens.
    pub fn start(pins: &Pins, one_in: u32, service: u32) -> Result<Self, KernelError> {
        let map_error = |name| move |source| KernelError::Map { name, source };
        let trace: Array<MapData, Trace> =
            object::pinned(pins, "trace")?.try_into().map_err(map_error("trace"))?;
        let held: Trace = trace.get(&0, 0).map_err(map_error("trace"))?;
        if held.until > now()? {
            return Err(system("listen to the programs", io::Error::other("somebody else listens already")));
        }
        let events: RingBuf<MapData> =
            object::pinned(pins, "events")?.try_into().map_err(map_error("events"))?;
        let mut listener = Self { trace, events, wanted: Trace { until: 0, one_in, service } };
        // What an earlier listener left unread.
        while listener.events.next().is_some() {}
        listener.renew()?;
        Ok(listener)
    }

    /// The next event; none if there was none for `patience`.
    ///
    /// # Errors
    /// When the kernel does not let it wait, or takes no renewal.
    pub fn next(&mut self, patience: Duration) -> Result<Option<Event>, KernelError> {
        self.renew()?;
        if let Some(event) = self.take() {
            return Ok(Some(event));
        }
        let timeout = PollTimeout::try_from(patience.min(LEASE / 2)).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.events.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(self.take()),
            Err(errno) => Err(system("wait for events", errno.into())),
        }
    }

    fn take(&mut self) -> Option<Event> {
        loop {
            let item = self.events.next()?;
            if item.len() >= size_of::<Event>() {
                // SAFETY: the bytes are there, and any bytes are an event.
                return Some(unsafe { std::ptr::read_unaligned(item.as_ptr().cast()) });
            }
        }
    }

    /// Renews the lease when a third of it is over.
    fn renew(&mut self) -> Result<(), KernelError> {
        let now = now()?;
        let lease = LEASE.as_nanos() as u64;
        if self.wanted.until > now + lease / 3 * 2 {
            return Ok(());
        }
        self.wanted.until = now + lease;
        self.trace.set(0, self.wanted, 0).map_err(|source| KernelError::Map { name: "trace", source })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The lease runs out anyway.
        let _ = self.trace.set(0, Trace::default(), 0);
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("events", &self.events.as_raw_fd()).finish_non_exhaustive()
    }
}

fn now() -> Result<u64, KernelError> {
    monotonic_nanos().map_err(|source| system("read the clock", source.into()))
}

fn system(what: &str, source: io::Error) -> KernelError {
    KernelError::System { what: what.to_owned(), source }
}

/// The name of an interface; none if there is no such any more.
pub fn interface_name(index: u32) -> Option<String> {
    if_indextoname(index).ok().map(|name| name.to_string_lossy().into_owned())
}
