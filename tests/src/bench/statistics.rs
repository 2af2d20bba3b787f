//! Medians and their spread.

/// The value below which this share of `sorted` lies; 0 of nothing.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let place = share * sorted.len().saturating_sub(1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    match (sorted.get(below), sorted.get(above)) {
        (Some(low), Some(high)) => low + (high - low) * place.fract(),
        _ => 0.0,
    }
}

/// The values in their order; those that are no numbers are left out.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The middle of values in any order; 0 of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    percentile(&sorted(values), 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_values_lies_what_is_between_them() {
        let values = sorted([4.0, 1.0, f64::NAN, 3.0, 2.0]);
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!([0.0, 0.5, 1.0].map(|share| percentile(&values, share)), [1.0, 2.5, 4.0]);
        assert_eq!(median([7.0, 5.0, 100.0]), 7.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }
}
