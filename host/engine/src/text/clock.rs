//! The date for templates that ask for it: Python's `strftime`, for a time passed as an argument.

use std::time::{SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;

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
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let now = OffsetDateTime::from_unix_timestamp(seconds).map_err(|error| error.to_string())?;
    let (year, month, day) = (now.year(), u8::from(now.month()), now.day());
    let (hour, minute, second) = now.to_hms();
    let (month_name, weekday) = (now.month().to_string(), now.weekday().to_string());
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
        let number = |value: i32, width: usize| match plain {
            true => value.to_string(),
            false => format!("{value:0width$}"),
        };
        let twelve = (hour + 11) % 12 + 1;
        let piece = match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month.into(), 2),
            Some('d') => number(day.into(), 2),
            Some('e') => format!("{day:2}"),
            Some('j') => number(now.ordinal().into(), 3),
            Some('H') => number(hour.into(), 2),
            Some('I') => number(twelve.into(), 2),
            Some('M') => number(minute.into(), 2),
            Some('S') => number(second.into(), 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.clone(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => weekday.clone(),
            Some('a') => weekday[..3].to_owned(),
            Some('F') => format!("{year:04}-{month:02}-{day:02}"),
            Some('D') => format!("{month:02}/{day:02}/{:02}", year % 100),
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
