//! What a row is to its connection.

use crate::maps::conntrack::Role;

impl Role {
    /// True for the one row per connection that lists it.
    #[inline(always)]
    pub fn is_primary(self) -> bool {
        self.0 == Role::DNAT.0 || self.0 == Role::HOST.0 || self.0 == Role::DSR.0 || self.0 == Role::DIRECT.0
    }

    /// True for a row that replies meet.
    #[inline(always)]
    pub fn is_reply(self) -> bool {
        self.0 == Role::REV_SNAT.0
            || self.0 == Role::REV_DNAT.0
            || self.0 == Role::REV_HOST.0
            || self.0 == Role::REV_DIRECT.0
    }

    /// True for a row that is its connection's only one: its replies take another way.
    #[inline(always)]
    pub fn is_alone(self) -> bool {
        self.0 == Role::DSR.0 || self.0 == Role::LEAVE.0 || self.0 == Role::PASS.0
    }

    /// Of the row that undoes what a row of this role does, [`NONE`](Self::NONE) if there is none.
    #[inline(always)]
    pub fn pair(self) -> Role {
        match self {
            Role::DNAT => Role::REV_DNAT,
            Role::REV_DNAT => Role::DNAT,
            Role::SNAT => Role::REV_SNAT,
            Role::REV_SNAT => Role::SNAT,
            Role::HOST => Role::REV_HOST,
            Role::REV_HOST => Role::HOST,
            Role::DIRECT => Role::REV_DIRECT,
            Role::REV_DIRECT => Role::DIRECT,
            _ => Role::NONE,
        }
    }
}
