//! `strftime` for chat templates.

/// A wall-clock time, local to whoever asks; no time zone is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DateTime {
    /// Year of the Gregorian calendar.
    pub year: i32,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
    /// 0 to 23.
    pub hour: u32,
    /// 0 to 59.
    pub minute: u32,
    /// 0 to 60.
    pub second: u32,
}

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

impl DateTime {
    /// Days from Sunday, by Zeller's congruence shifted to a March year.
    fn weekday(&self) -> usize {
        let shifted = self.month < 3;
        let year = i64::from(self.year) - i64::from(shifted);
        let month = (i64::from(self.month) + 9) % 12;
        let days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
        let sum = 365 * year + days + (153 * month + 2) / 5 + i64::from(self.day) + 2;
        usize::try_from(sum.rem_euclid(7)).unwrap_or(0)
    }

    fn day_of_year(&self) -> u32 {
        const BEFORE: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        BEFORE[self.month_index()] + self.day + u32::from(leap && self.month > 2)
    }

    fn month_index(&self) -> usize {
        (self.month.clamp(1, 12) - 1) as usize
    }

    fn hour_of_half_day(&self) -> u32 {
        (self.hour + 11) % 12 + 1
    }

    /// The time by the directives of C's `strftime` in the C locale; `%-d` and the like drop leading zeros.
    ///
    /// # Errors
    /// The directive that is not known.
    pub(crate) fn format(&self, format: &str) -> Result<String, String> {
        let mut text = String::new();
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                text.push(c);
                continue;
            }
            match rest.next() {
                Some('-') => {
                    let field = self.directive(rest.next())?;
                    let trimmed = field.trim_start_matches(['0', ' ']);
                    text.push_str(if trimmed.is_empty() { "0" } else { trimmed });
                }
                directive => text.push_str(&self.directive(directive)?),
            }
        }
        Ok(text)
    }

    fn directive(&self, directive: Option<char>) -> Result<String, String> {
        let Some(directive) = directive else {
            return Ok("%".into());
        };
        Ok(match directive {
            'a' => DAYS[self.weekday()][..3].into(),
            'A' => DAYS[self.weekday()].into(),
            'b' | 'h' => MONTHS[self.month_index()][..3].into(),
            'B' => MONTHS[self.month_index()].into(),
            'c' => self.format("%a %b %e %H:%M:%S %Y")?,
            'd' => format!("{:02}", self.day),
            'D' | 'x' => self.format("%m/%d/%y")?,
            'e' => format!("{:2}", self.day),
            'f' => "000000".into(),
            'F' => self.format("%Y-%m-%d")?,
            'H' => format!("{:02}", self.hour),
            'I' => format!("{:02}", self.hour_of_half_day()),
            'j' => format!("{:03}", self.day_of_year()),
            'm' => format!("{:02}", self.month),
            'M' => format!("{:02}", self.minute),
            'n' => "\n".into(),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.into(),
            'R' => self.format("%H:%M")?,
            'S' => format!("{:02}", self.second),
            't' => "\t".into(),
            'T' | 'X' => self.format("%H:%M:%S")?,
            'w' => self.weekday().to_string(),
            'y' => format!("{:02}", self.year.rem_euclid(100)),
            'Y' => self.year.to_string(),
            'z' | 'Z' => String::new(),
            '%' => "%".into(),
            other => return Err(format!("%{other}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(year: i32, month: u32, day: u32) -> DateTime {
        DateTime {
            year,
            month,
            day,
            hour: 0,
            minute: 5,
            second: 9,
        }
    }

    #[test]
    fn known_days() {
        assert_eq!(
            at(2026, 1, 2).format("%A %-d. %B %Y, %j").unwrap(),
            "Friday 2. January 2026, 002"
        );
        assert_eq!(at(2000, 2, 29).format("%a %e %b %y %j").unwrap(), "Tue 29 Feb 00 060");
        assert_eq!(at(2024, 12, 31).format("%F %a %j").unwrap(), "2024-12-31 Tue 366");
        assert_eq!(
            at(1970, 1, 1).format("%c|%I%p|%-H%%").unwrap(),
            "Thu Jan  1 00:05:09 1970|12AM|0%"
        );
    }

    #[test]
    fn unknown_directives_are_named() {
        assert_eq!(at(2026, 1, 2).format("%Q"), Err("%Q".into()));
        assert_eq!(at(2026, 1, 2).format("100%").unwrap(), "100%");
    }
}
