//! Source ports of masquerading, shared out between two generations.

/// Consecutive ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) count: u16,
}

impl Range {
    /// Its lower half; all of it if it cannot be divided.
    pub(super) fn lower_half(self) -> Self {
        Self { count: if self.count > 1 { self.count / 2 } else { self.count }, ..self }
    }

    /// The larger part of it that is not in `other`; all of it if there is no such part.
    pub(super) fn without(self, other: Self) -> Self {
        let (start, end) = (u32::from(self.first), self.end());
        let below = (start, end.min(u32::from(other.first)));
        let above = (start.max(other.end()), end);
        let size = |(start, end): (u32, u32)| end.saturating_sub(start);
        let larger = if size(above) >= size(below) { above } else { below };
        match (u16::try_from(larger.0), u16::try_from(size(larger))) {
            (Ok(first), Ok(count)) if count > 0 => Self { first, count },
            _ => self,
        }
    }

    fn end(self) -> u32 {
        u32::from(self.first) + u32::from(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u16, count: u16) -> Range {
        Range { first, count }
    }

    #[test]
    fn both_have_ports_of_their_own() {
        let all = range(61_000, 4_001);
        assert_eq!(all.lower_half(), range(61_000, 2_000));
        assert_eq!(all.without(all.lower_half()), range(63_000, 2_001));
        assert_eq!(range(1_000, 100).without(all), range(1_000, 100));
        assert_eq!(range(60_000, 2_000).without(range(61_500, 100)), range(60_000, 1_500));
        assert_eq!(range(60_000, 5_536).without(range(60_000, 10)), range(60_010, 5_526));
    }

    #[test]
    fn a_single_port_is_shared() {
        assert_eq!(range(5, 1).lower_half(), range(5, 1));
        assert_eq!(range(5, 1).without(range(5, 1)), range(5, 1));
    }
}
