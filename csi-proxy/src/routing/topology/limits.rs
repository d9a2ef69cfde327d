//! What one node may use of the time and the memory of a call to several nodes.

use std::time::Duration;

use crate::routing::placements::DEFAULT_MAX_ROWS_OF_NODE;

/// The timeout of a node for a page of a list, for its capacity, and for all questions of a search. The recorded volumes
/// of a node that lists later are listed, its last capacity counts, and it may have the subject of the search.
pub(super) const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum size of a page of one node in bytes. A larger one is invalid.
pub(super) const MAX_NODE_PAGE: usize = 2 << 20;

/// The maximum size of an entry of a list in bytes. The spec allows about 5 KiB for a volume; a longer one is omitted, so that
/// little memory is used to check it.
pub(super) const MAX_ENTRY: usize = 64 << 10;

/// The maximum size of the token for the next page of one node in bytes. The spec allows 128; a page with a longer one is
/// invalid.
pub(super) const MAX_TOKEN: usize = 4096;

/// The maximum number of entries of one node in a list, in all its pages. An empty page counts as one entry. The list
/// continues with the next node.
pub(super) const MAX_LISTED: u32 = 2 * DEFAULT_MAX_ROWS_OF_NODE as u32;

/// The maximum time of one node for all its pages in a list. The recorded volumes of a node that needs more are listed
/// after its last page.
pub(super) const MAX_LIST_TIME: Duration = Duration::from_secs(60);

/// The least time that a page of a list counts as, so that a node has at most 1,200 of them.
pub(super) const MIN_PAGE_TIME: Duration = Duration::from_millis(50);

/// The maximum number of pages that a search reads from a node without another question than a list.
pub(super) const MAX_SEARCHED_PAGES: usize = 100;

/// The maximum size of these pages together in bytes, 80,000 usual volumes. To read more would delay other calls.
pub(super) const MAX_SEARCHED: usize = 8 << 20;
