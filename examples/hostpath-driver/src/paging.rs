//! Paged lists. A token names the last returned entry, so it stays valid when that entry is deleted.

use super::error::CallError;
use super::identifier::ResourceId;

/// Maximum number of entries of one page for any request: a gRPC client accepts 4 MiB by default.
pub const MAX_PAGE: usize = 1000;

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The entries.
    pub entries: Vec<T>,
    /// The token of the next page, empty on the last one.
    pub next_token: String,
}

/// Returns a page of entries that are sorted by id.
///
/// # Errors
/// Returns [`CallError::Token`] for a token that this driver cannot have created, [`CallError::Invalid`] for a negative
/// `max_entries`.
pub fn page<'a, R: 'a, T>(
    rows: impl Iterator<Item = (&'a ResourceId, &'a R)>,
    max_entries: i32,
    starting_token: &str,
    show: impl Fn(&R) -> T,
) -> Result<Page<T>, CallError> {
    let asked = usize::try_from(max_entries)
        .map_err(|_| CallError::invalid("max_entries", max_entries, "0 or more"))?;
    let size = if asked == 0 { MAX_PAGE } else { asked.min(MAX_PAGE) };
    let after = match starting_token {
        "" => None,
        token => Some(parse_token(token).ok_or_else(|| CallError::Token(token.to_owned()))?),
    };
    let mut rest = rows.filter(|(id, _)| after.as_ref().is_none_or(|after| *id > after)).peekable();
    let mut entries = Vec::new();
    let mut last = None;
    while entries.len() < size
        && let Some((id, row)) = rest.next()
    {
        entries.push(show(row));
        last = Some(id);
    }
    let next_token =
        last.filter(|_| rest.peek().is_some()).map(|id| format!("{TOKEN_PREFIX}{id}")).unwrap_or_default();
    Ok(Page { entries, next_token })
}

const TOKEN_PREFIX: &str = "after:";

fn parse_token(token: &str) -> Option<ResourceId> {
    ResourceId::parse(token.strip_prefix(TOKEN_PREFIX)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn rows(ids: &[&str]) -> BTreeMap<ResourceId, String> {
        ids.iter().map(|id| (ResourceId::parse(id).unwrap(), (*id).to_owned())).collect()
    }

    fn take(rows: &BTreeMap<ResourceId, String>, max: i32, token: &str) -> Result<Page<String>, CallError> {
        page(rows.iter(), max, token, String::clone)
    }

    #[test]
    fn paging_continues_after_a_deleted_entry() {
        let mut all = rows(&["a", "b", "c", "d"]);
        let first = take(&all, 2, "").unwrap();
        assert_eq!(
            (first.entries.as_slice(), first.next_token.as_str()),
            (&["a".to_owned(), "b".to_owned()][..], "after:b")
        );
        all.remove(&ResourceId::parse("b").unwrap());
        let second = take(&all, 2, &first.next_token).unwrap();
        assert_eq!((second.entries.join(","), second.next_token.as_str()), ("c,d".to_owned(), ""));
        assert_eq!(take(&all, 0, "").unwrap().entries.len(), 3);
    }

    #[test]
    fn foreign_token_is_aborted() {
        for token in ["invalid-token", "after:", "after:../x", "3"] {
            assert_eq!(take(&rows(&["a"]), 0, token).unwrap_err().code(), tonic::Code::Aborted, "{token}");
        }
        assert_eq!(take(&rows(&["a"]), -1, "").unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
