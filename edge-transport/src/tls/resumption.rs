//! The sessions that clients can resume, so that a link that is lost often costs fewer bytes.
//!
//! A client that resumes presents no certificate and is not verified again. Therefore a session can be resumed only while all
//! that has verified it stays in use: each configuration has sessions of its own, and new revocation lists end them. At each
//! connection, the end that dials checks that the certificate of the other has not expired. A hub checks that too, its deny
//! list and its revocation lists.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};

use super::verifier::{ReloadedLists, generation};

/// Maximum number of sessions of a configuration that can be resumed. The oldest makes room for a new one.
const MAX_SESSIONS: usize = 1024;

/// Maximum number of bytes of such a session, mostly the client's certificate chain. A larger one is not kept.
const MAX_SESSION_BYTES: usize = 2048;

/// The sessions of an accepting end. Each can be resumed once.
#[derive(Debug)]
pub(super) struct Sessions {
    lists: Option<ReloadedLists>,
    /// The sessions that were begun under a generation of the lists.
    latest: Mutex<(u64, Arc<ServerSessionMemoryCache>)>,
}

impl Sessions {
    pub(super) fn new(lists: Option<ReloadedLists>) -> Self {
        let latest = Mutex::new((generation(lists.as_ref()), ServerSessionMemoryCache::new(MAX_SESSIONS)));
        Self { lists, latest }
    }

    fn latest(&self) -> Arc<ServerSessionMemoryCache> {
        let generation = generation(self.lists.as_ref());
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.0 != generation {
            *latest = (generation, ServerSessionMemoryCache::new(MAX_SESSIONS));
        }
        Arc::clone(&latest.1)
    }
}

impl StoresServerSessions for Sessions {
    fn put(&self, ticket: Vec<u8>, session: Vec<u8>) -> bool {
        session.len() <= MAX_SESSION_BYTES && self.latest().put(ticket, session)
    }

    fn get(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.latest().get(ticket)
    }

    fn take(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.latest().take(ticket)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_resumed_once_and_a_large_one_never() {
        let sessions = Sessions::new(None);
        assert!(sessions.put(vec![1], vec![0; MAX_SESSION_BYTES]));
        assert_eq!(sessions.take(&[1]).map(|session| session.len()), Some(MAX_SESSION_BYTES));
        assert_eq!(sessions.take(&[1]), None);
        assert!(!sessions.put(vec![1], vec![0; MAX_SESSION_BYTES + 1]));
        assert_eq!(sessions.take(&[1]), None);
    }
}
