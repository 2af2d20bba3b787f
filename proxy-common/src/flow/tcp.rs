//! The state of a TCP connection, by the flags that its packets had (RFC 9293 §3.1, the low byte).

use crate::packet::headers::tcp_flags::{ACK, FIN, RST, SYN};

/// How far a TCP connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TcpState {
    /// The client asked.
    Opening,
    /// The backend answered.
    Answered,
    /// Both have acknowledged.
    Established,
    /// One side has closed.
    HalfClosed,
    /// Both sides have closed.
    Closed,
    /// One side broke it off.
    Reset,
}

impl TcpState {
    /// By what has been noted of each direction.
    #[inline(always)]
    pub fn of(forward: u8, reply: u8) -> Self {
        let (either, both) = (forward | reply, forward & reply);
        if either & RST != 0 {
            Self::Reset
        } else if both & FIN != 0 {
            Self::Closed
        } else if either & FIN != 0 {
            Self::HalfClosed
        } else if both & ACK != 0 {
            Self::Established
        } else if reply & SYN != 0 {
            Self::Answered
        } else {
            Self::Opening
        }
    }

    /// By what has been noted of the client alone, where the replies pass elsewhere. Its first
    /// acknowledgement says that the other answered. Its end counts as the end of both: the backend's is
    /// not seen, and what the client still sends finds the same backend by hashing.
    #[inline(always)]
    pub fn of_client(forward: u8) -> Self {
        Self::of(forward, forward & (FIN | ACK))
    }

    /// True before the client has acknowledged the answer.
    #[inline(always)]
    pub fn is_opening(self) -> bool {
        matches!(self, Self::Opening | Self::Answered)
    }

    /// True if no data will follow, in no direction.
    #[inline(always)]
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Closed | Self::Reset)
    }
}

/// What is noted of one direction after a packet with `flags`.
///
/// A side that has broken the connection off sends nothing but resets. One that goes on has not sent that
/// reset, or the other has not taken it (RFC 5961 §3): an attacker's guess ends no connection.
#[inline(always)]
pub fn noted(seen: u8, flags: u8) -> u8 {
    // Without a branch, of which the verifier would walk both sides.
    seen & !(RST & !flags) | flags
}

/// True for what has been noted of a side that has ended its connection.
#[inline(always)]
pub fn ends(seen: u8) -> bool {
    seen & (FIN | RST) != 0
}

#[cfg(test)]
mod tests;
