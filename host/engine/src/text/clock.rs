//! The date for templates that ask for it: Python's `strftime`, for a time passed as an argument.

use std::time::{SystemTime, UNIX_EPOCH};

/// Formats `time`, in UTC, by `format`, as Python's `strftime` does. Supports those directives that depend only on the
/// C locale and UTC.
///
/// # Errors
/// Returns a message that names the first unsupported directive.
pub(super) fn strftime(time: SystemTime, format: &str) -> Result<String, String> {
    // A time before 1970 means that the clock was never set.
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let date = Date::of_day(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut directive = characters.next();
        // `%-d`: without padding.
        let plain = directive == Some('-');
        if plain {
            directive = characters.next();
        }
        let number = |value: u64, width: usize| match plain {
            true => value.to_string(),
            false => format!("{value:0width$}"),
        };
        let twelve = (hour + 11) % 12 + 1;
        let piece = match directive {
            Some('Y') => number(date.year, 4),
            Some('y') => number(date.year % 100, 2),
            Some('m') => number(date.month, 2),
            Some('d') => number(date.day, 2),
            Some('e') => format!("{:2}", date.day),
            Some('j') => number(date.day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(twelve, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => date.month_name().to_owned(),
            Some('b' | 'h') => date.month_name()[..3].to_owned(),
            Some('A') => date.weekday_name().to_owned(),
            Some('a') => date.weekday_name()[..3].to_owned(),
            Some('F') => format!("{:04}-{:02}-{:02}", date.year, date.month, date.day),
            Some('D') => format!("{:02}/{:02}/{:02}", date.month, date.day, date.year % 100),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('R') => format!("{hour:02}:{minute:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let other = other.map(String::from).unwrap_or_default();
                return Err(format!(
                    "strftime_now: the directive %{other} is not supported"
                ));
            }
        };
        text.push_str(&piece);
    }
    Ok(text)
}

struct Date {
    year: u64,
    /// Month, 1 to 12.
    month: u64,
    /// Day of the month, 1 to 31.
    day: u64,
    /// Day of the year, 1 to 366.
    day_of_year: u64,
    /// Day of the week; 0 is Sunday.
    weekday: u64,
}

impl Date {
    /// Returns the date `days` after 1 January 1970, in the Gregorian calendar. Counts in years that begin in March, so
    /// that the leap day comes last (H. Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`).
    fn of_day(days: u64) -> Self {
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 {
            march_month + 3
        } else {
            march_month - 9
        };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        let leap =
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let day_of_year = if month > 2 {
            day_of_year + 60 + u64::from(leap)
        } else {
            day_of_year - 305
        };
        Self {
            year,
            month,
            day,
            day_of_year,
            weekday: (days + 4) % 7,
        }
    }

    fn month_name(&self) -> &'static str {
        const NAMES: [&str; 12] = [
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
        NAMES[(self.month as usize - 1) % 12]
    }

    fn weekday_name(&self) -> &'static str {
        const NAMES: [&str; 7] = [
            "Sunday",
            "Monday",
            "Tuesday",
            "Wednesday",
            "Thursday",
            "Friday",
            "Saturday",
        ];
        NAMES[self.weekday as usize % 7]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_written_as_python_writes_them() {
        // Expected: `datetime.fromtimestamp(seconds, UTC).strftime(format)` of CPython 3.11.
        for (seconds, format, expected) in [
            (0, "%d %b %Y", "01 Jan 1970"),
            (1_722_384_000, "%d %b %Y", "31 Jul 2024"),
            (
                951_782_399,
                "%A %-d %B %Y, day %j",
                "Monday 28 February 2000, day 059",
            ),
            (951_868_799, "%F %T", "2000-02-29 23:59:59"),
            (951_868_800, "%a %e %b, %j", "Wed  1 Mar, 061"),
            (4_107_542_400, "%D %j", "03/01/00 060"),
            (
                1_735_689_599,
                "%Y-%m-%d %I:%M %p %j %Z%z",
                "2024-12-31 11:59 PM 366 UTC+0000",
            ),
            (1_735_689_600, "%y %-m %H %R 100 %%", "25 1 00 00:00 100 %"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(strftime(time, format).as_deref(), Ok(expected), "{seconds}");
        }
        assert_eq!(
            strftime(UNIX_EPOCH - Duration::from_secs(5), "%F").as_deref(),
            Ok("1970-01-01")
        );
        for format in ["%Q", "%", "%-"] {
            assert!(
                strftime(UNIX_EPOCH, format)
                    .unwrap_err()
                    .contains("is not supported")
            );
        }
    }
}
