//! A change in parts that links can carry.

use prost::Message;

use super::view::Change;
use crate::kubernetes::message::Update;

/// What the fields of an update need beside its objects, and an object beside its own bytes.
const OVERHEAD: usize = 64;
const EACH: usize = 16;

/// One change as updates of about `most` bytes at most; the last is the complete one. There is always one.
pub(super) fn split(source: u64, revision: u64, whole: bool, change: Change, most: usize) -> Vec<Update> {
    let empty = || Update { source, revision, whole, complete: false, changed: Vec::new(), gone: Vec::new() };
    let mut parts = Vec::new();
    let (mut part, mut bytes) = (empty(), OVERHEAD);
    let mut room = |part: &mut Update, parts: &mut Vec<Update>, more: usize| {
        if bytes > OVERHEAD && bytes + more > most {
            parts.push(std::mem::replace(part, empty()));
            bytes = OVERHEAD;
        }
        bytes += more;
    };
    for told in change.changed {
        let object = told.object();
        room(&mut part, &mut parts, object.encoded_len() + EACH);
        part.changed.push(object);
    }
    for key in change.gone {
        room(&mut part, &mut parts, key.encoded_len() + EACH);
        part.gone.push(key);
    }
    part.complete = true;
    parts.push(part);
    parts
}
