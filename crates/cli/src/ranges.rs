//! Lists of numbers and ranges as they are typed: `0,4-7,12`.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A number, or all from one to another: `4` or `4-7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range(pub RangeInclusive<usize>);

/// What is wrong with a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Something else.
    #[error("{0:?} is no number and no range such as 4-7")]
    NotARange(String),
    /// Nothing is in it.
    #[error("nothing is in the range {0}-{1}")]
    Empty(usize, usize),
    /// More than there is.
    #[error("{number} is beyond the last, {last}")]
    Beyond {
        /// The number.
        number: usize,
        /// The last that is possible.
        last: usize,
    },
}

impl FromStr for Range {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Range, RangeError> {
        let number = |digits: &str| digits.parse().map_err(|_| RangeError::NotARange(text.to_owned()));
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        if first > last {
            return Err(RangeError::Empty(first, last));
        }
        Ok(Range(first..=last))
    }
}

/// The numbers of ranges, rising, each once; all numbers if there is no range. Each has to be below `count`.
pub fn numbers_below(count: usize, ranges: &[Range]) -> Result<Vec<usize>, RangeError> {
    let last = count.saturating_sub(1);
    if ranges.is_empty() {
        return Ok((0..count).collect());
    }
    if let Some(&number) = ranges.iter().map(|Range(range)| range.end()).find(|end| **end >= count) {
        return Err(RangeError::Beyond { number, last });
    }
    let mut numbers: Vec<usize> = ranges.iter().flat_map(|Range(range)| range.clone()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// Numbers with commas between.
pub fn join(numbers: &[impl Display]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_or_refused() {
        assert_eq!("4".parse(), Ok(Range(4..=4)));
        assert_eq!("4-7".parse(), Ok(Range(4..=7)));
        assert_eq!("7-4".parse::<Range>(), Err(RangeError::Empty(7, 4)));
        for wrong in ["", "-", "4-", "-4", "a", "1-2-3", "1.5", "99999999999999999999"] {
            assert_eq!(wrong.parse::<Range>(), Err(RangeError::NotARange(wrong.into())));
        }
    }

    #[test]
    fn numbers_rise_and_are_below_the_count() {
        let ranges = [Range(4..=5), Range(0..=0), Range(5..=6)];
        assert_eq!(numbers_below(7, &ranges), Ok(vec![0, 4, 5, 6]));
        assert_eq!(
            numbers_below(6, &ranges),
            Err(RangeError::Beyond { number: 6, last: 5 })
        );
        assert_eq!(numbers_below(3, &[]), Ok(vec![0, 1, 2]));
        assert_eq!(join(&[1, 2]), "1,2");
    }
}
