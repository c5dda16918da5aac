//! Pages of mapped files that a program has used: a wake reads them ahead.

use serde::{Deserialize, Serialize};

use super::{Bytes, frugal};
use crate::{FormatError, PAGE};

/// Pages of all files in an image at most, 64 MiB: reading more ahead would take longer than the program waits for what it needs.
pub const MOST_USED_PAGES: u32 = (64 << 20) / PAGE as u32;

/// The pages of one mapped file that the programs have touched since their processes were built, and neighbours that the kernel has mapped with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedPages {
    /// As in its [`super::PathState`].
    #[serde(deserialize_with = "frugal::list")]
    pub path: Bytes,
    /// First page in the file and number of pages, ascending, with gaps between them.
    #[serde(deserialize_with = "frugal::list")]
    pub runs: Vec<(u32, u32)>,
}

/// Refuses empty, overlapping or adjacent runs, and more than [`MOST_USED_PAGES`].
pub(super) fn check(files: &[UsedPages]) -> Result<(), FormatError> {
    const WRONG: FormatError = FormatError::Invalid("used pages of a file");
    let mut left = MOST_USED_PAGES;
    for file in files {
        if file.runs.is_empty() {
            return Err(WRONG);
        }
        let mut next = 0_u32;
        for (first, pages) in &file.runs {
            let end = first.checked_add(*pages).filter(|_| *pages > 0 && *first >= next).ok_or(WRONG)?;
            left = left.checked_sub(*pages).ok_or(WRONG)?;
            next = end.saturating_add(1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_ascend_with_gaps_and_are_bounded() {
        let of = |runs: &[(u32, u32)]| UsedPages { path: b"/lib/a.so".to_vec(), runs: runs.to_vec() };
        assert_eq!(check(&[of(&[(0, 1), (2, 5)]), of(&[(3, 3)])]), Ok(()));
        assert_eq!(check(&[of(&[(9, MOST_USED_PAGES)])]), Ok(()));
        for wrong in
            [&[(0, 0)][..], &[(0, 2), (2, 1)], &[(4, 1), (1, 1)], &[(u32::MAX, 1)], &[(0, MOST_USED_PAGES + 1)]]
        {
            assert!(check(&[of(wrong)]).is_err(), "{wrong:?}");
        }
        assert!(check(&[of(&[(0, MOST_USED_PAGES)]), of(&[(0, 1)])]).is_err());
    }
}
