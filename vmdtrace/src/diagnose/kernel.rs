//! What a kernel's release says. Distributions carry changes back, so it is only
//! ever a reason to claim less.

/// Whether the release is this one or later; not so where it is not understood.
pub(super) fn is_at_least(release: &str, wanted: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|it| it.parse::<u32>().ok());
    next().zip(next()).is_some_and(|it| it >= wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        for (release, expected) in [
            ("5.15.0-25-generic", true),
            ("6.1.0-40-amd64", true),
            ("5.14.21", false),
            ("5.2", false),
            ("custom", false),
            ("", false),
            ("99999999999.1", false),
        ] {
            assert_eq!(is_at_least(release, (5, 15)), expected, "{release}");
        }
    }
}
