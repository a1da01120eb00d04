//! Parses the time in a line of a log: a number of seconds or milliseconds, or a date as in access logs.

/// Returns milliseconds since 1970 of a JSON value; `None` if it is not a supported time.
///
/// A number below 10¹¹ is in seconds, one below 10¹⁴ in milliseconds, one below 10¹⁷ in microseconds, and a greater one
/// in nanoseconds. A string has either a number or an RFC 3339 date, such as `2026-11-23T09:30:00.250Z`, possibly with an
/// offset; Python's `2026-11-23 09:30:00,250` and `+0100` are read as well.
pub(crate) fn milliseconds(value: &str) -> Option<u64> {
    let text = value.trim_matches('"');
    if let Ok(number) = text.parse::<f64>() {
        let milliseconds = match number {
            ..1e11 => number * 1e3,
            1e11..1e14 => number,
            1e14..1e17 => number / 1e3,
            _ => number / 1e6,
        };
        return (milliseconds.is_finite() && milliseconds >= 0.0).then_some(milliseconds as u64);
    }
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let [year, month, day] = numbers(date.split('-'))?;
    let end = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (clock, zone) = rest.split_at_checked(end)?;
    let (clock, fraction) = clock.split_once(['.', ',']).unwrap_or((clock, "0"));
    let [hour, minute, second] = numbers(clock.split(':'))?;
    let is_date = (1..=12).contains(&month) && (1..=31).contains(&day);
    let is_clock = hour < 24 && minute < 60 && second <= 60;
    if !is_date || !is_clock || !(1970..=9_999).contains(&year) {
        return None;
    }
    let fraction: f64 = format!("0.{fraction}").parse().ok()?;
    let seconds = ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    let offset = match zone.get(1..) {
        None | Some("") => 0,
        Some(offset) => {
            let (hours, minutes) = match offset.split_once(':') {
                Some(parts) => parts,
                None => offset.split_at_checked(2)?,
            };
            let minutes = if minutes.is_empty() { "0" } else { minutes };
            let [hours, minutes] = numbers([hours, minutes].into_iter())?;
            let minutes = hours * 60 + minutes;
            if zone.starts_with('-') {
                -minutes
            } else {
                minutes
            }
        }
    };
    let milliseconds = (seconds - offset * 60) * 1_000 + (fraction * 1e3) as i64;
    u64::try_from(milliseconds).ok()
}

/// Parses exactly `N` numbers; `None` if there are more or fewer.
fn numbers<'a, const N: usize>(words: impl Iterator<Item = &'a str>) -> Option<[i64; N]> {
    let is_number =
        |word: &str| (1..=4).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_digit());
    let words = words.map(|word| is_number(word).then(|| word.parse().ok()).flatten());
    let numbers: Vec<i64> = words.collect::<Option<_>>()?;
    numbers.try_into().ok()
}

/// Days from 1970 to a date of the Gregorian calendar (H. Hinnant, `days_from_civil`).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_milliseconds_and_dates_are_read() {
        let noon = Some(1_795_435_200_000);
        for value in [
            "1795435200",
            "1795435200.0",
            "1795435200000",
            "\"1795435200\"",
            "\"2026-11-23T12:00:00Z\"",
            "\"2026-11-23 13:00:00+01:00\"",
            "\"2026-11-23T09:30:00.000-02:30\"",
            "1795435200000000",
            "1795435200000000000",
            "\"2026-11-23T13:00:00+0100\"",
            "\"2026-11-23T13:00:00+01\"",
            "\"2026-11-23 12:00:00,000\"",
        ] {
            assert_eq!(milliseconds(value), noon, "{value}");
        }
        assert_eq!(
            milliseconds("\"2024-02-29T00:00:00.25Z\""),
            Some(1_709_164_800_250)
        );
    }

    #[test]
    fn what_is_no_time_is_none() {
        for value in [
            "null",
            "\"\"",
            "-1",
            "\"yesterday\"",
            "\"2026-13-01T00:00:00Z\"",
            "\"2026-11-23T25:00:00Z\"",
            "\"2026-11-23\"",
            "\"2026-11-23T12:00Z\"",
            "{}",
        ] {
            assert_eq!(milliseconds(value), None, "{value}");
        }
    }
}
