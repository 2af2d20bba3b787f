//! The packet inside another, to be read before it is taken out.

use core::marker::PhantomData;

use proxy_common::packet::{Bytes, headers::Header};

use super::Packet;
use crate::stage::network::Network;

/// What follows an outer IP header of family `A` without options or extensions.
pub struct Inner<'a, P, A> {
    outer: &'a P,
    family: PhantomData<A>,
}

impl<'a, P: Packet, A: Network> Inner<'a, P, A> {
    #[inline(always)]
    pub fn of(outer: &'a P) -> Self {
        Self { outer, family: PhantomData }
    }
}

impl<P: Packet, A: Network> Bytes for Inner<'_, P, A> {
    const L2_LEN: usize = P::L2_LEN + A::HEADER_LEN as usize;

    #[inline(always)]
    fn len(&self) -> u32 {
        self.outer.len()
    }

    #[inline(always)]
    fn is_gso(&self) -> bool {
        self.outer.is_gso()
    }

    #[inline(always)]
    fn read<T: Header>(&self, offset: usize) -> Option<T> {
        self.outer.read(offset)
    }
}
