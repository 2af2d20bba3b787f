//! What the kernel says about the segments a TCP socket has sent.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{io, net::TcpStream, os::fd::AsRawFd};

/// Words of `struct tcp_info` (linux/tcp.h), which only ever grows at its end.
const TOTAL_RETRANS: usize = 100 / 4;
const DSACK_DUPS: usize = 216 / 4;
const WORDS: usize = 64;

/// Segments that one end of a connection has sent more than once, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::probe) struct Segments {
    /// The receiver has not told that it has them twice: the first did not arrive.
    pub(in crate::probe) lost: u32,
    /// The receiver has them twice.
    pub(in crate::probe) spurious: u32,
}

impl Segments {
    pub(in crate::probe) fn of(stream: &TcpStream) -> Result<Self> {
        let mut words = [0u32; WORDS];
        let mut len = size_of_val(&words) as libc::socklen_t;
        // SAFETY: the buffer and its length live across the call, which writes no more than that.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                words.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error()).context("read TCP_INFO");
        }
        let (sent_again, spurious) = (words[TOTAL_RETRANS], words[DSACK_DUPS]);
        Ok(Self { lost: sent_again.saturating_sub(spurious), spurious })
    }

    pub(in crate::probe) fn and(self, other: Self) -> Self {
        Self { lost: self.lost + other.lost, spurious: self.spurious + other.spurious }
    }
}
