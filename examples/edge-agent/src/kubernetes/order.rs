//! The order of this node's statuses, which hubs compare: a hub that the node has left must not write an older one.
//!
//! The state directory keeps a random instance and the number of starts, so the order holds over restarts. A directory that
//! was restored from a copy counts from an earlier start; it takes a new instance once a hub says so.

use super::super::store::{Document, TableError};
use edge_csi_common::kubernetes::message::{StatusNumber, StatusResult};
use edge_csi_common::kubernetes::new_instance;

/// The order of the statuses of this start.
pub(super) struct StatusOrder {
    document: Document,
    instance: u64,
    start: u64,
    /// Whether an earlier status may still be written by a hub.
    unanswered: bool,
}

impl StatusOrder {
    /// Counts this start. Blocks.
    ///
    /// # Errors
    /// If the disk cannot be read or written.
    pub(super) fn open(document: Document) -> Result<Self, TableError> {
        let lost =
            "the number of starts is damaged and quarantined; the statuses of this node get a new instance";
        let (instance, start) = document.load(lost, decode)?.unwrap_or_else(|| (new_instance(), 0));
        let start = start.saturating_add(1);
        document.save(&encode(instance, start))?;
        // The last status before this start may have had no answer.
        Ok(Self { document, instance, start, unanswered: true })
    }

    /// Records a hub's answer to the last status. Takes a new instance if no status is later than this one: then --state-dir was
    /// restored from a copy.
    pub(super) async fn answered(&mut self, result: &StatusResult) {
        if result.failure.is_empty() {
            self.written();
        } else if result.superseded
            && let Err(error) = self.renew().await
        {
            tracing::error!("--state-dir: cannot write the instance of the statuses: {error}");
        }
    }

    /// Takes a new instance, which has no order with the earlier ones.
    ///
    /// # Errors
    /// If the disk cannot be written: the instance then stays.
    async fn renew(&mut self) -> Result<(), TableError> {
        let (instance, start) = (new_instance(), 1);
        self.document.save_from(move || encode(instance, start)).await?;
        (self.instance, self.start, self.unanswered) = (instance, start, true);
        Ok(())
    }

    /// The place of a status with this number in the order.
    pub(super) const fn number(&self, number: u64) -> StatusNumber {
        let Self { instance, start, unanswered, .. } = *self;
        StatusNumber { instance, start, number, unanswered }
    }

    /// Records that a hub may have got a status, and has not answered yet.
    pub(super) const fn lost(&mut self) {
        self.unanswered = true;
    }

    /// Records that the last status was written, so that no hub writes an earlier one.
    const fn written(&mut self) {
        self.unanswered = false;
    }
}

fn encode(instance: u64, start: u64) -> Vec<u8> {
    [instance.to_be_bytes(), start.to_be_bytes()].concat()
}

fn decode(bytes: &[u8]) -> Result<(u64, u64), String> {
    let number = |bytes: &[u8]| Some(u64::from_be_bytes(bytes.try_into().ok()?));
    let numbers = bytes.split_at_checked(8).and_then(|(one, other)| Some((number(one)?, number(other)?)));
    numbers.ok_or_else(|| format!("expected 16 bytes, found {}", bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::super::super::store::AgentStore;
    use super::*;

    #[tokio::test]
    async fn each_start_comes_after_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let document = AgentStore::open(directory.path()).unwrap().starts;
        let first = StatusOrder::open(document.clone()).unwrap();
        let mut second = StatusOrder::open(document.clone()).unwrap();
        let (one, other) = (first.number(9), second.number(1));
        assert_eq!((one.instance, one.start, one.number), (other.instance, 1, 9));
        assert_eq!((other.start, other.number, other.unanswered), (2, 1, true));
        second.written();
        assert!(!second.number(2).unanswered);
        second.lost();
        assert!(second.number(3).unanswered);

        second.renew().await.unwrap();
        let renewed = StatusOrder::open(document.clone()).unwrap();
        assert_eq!((renewed.instance, renewed.start), (second.instance, 2));
        assert_ne!(renewed.instance, first.instance);

        document.save(b"torn").unwrap();
        let damaged = StatusOrder::open(document).unwrap();
        assert_eq!((damaged.start, damaged.instance != renewed.instance), (1, true));
    }
}
