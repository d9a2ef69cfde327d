//! Decides which peers are admitted.

use std::collections::BTreeMap;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use super::dequeue::Unwritten;
use super::identity_peers::MAX_PEERS_PER_NODE;
use super::{Core, Session, SessionKey};
use crate::fair_queue::FairQueue;
use crate::hub::identity::{Identity, Sender};
use crate::hub::{Presence, Requester};
use crate::session::{CloseReason, Remote, UsedNumbers};

impl Core {
    /// Checks whether a peer may be admitted now. While a session of the peer is open, only a newer session of the
    /// same instance is admitted; any other is refused and counted. Another instance has the open session checked: if it is
    /// dead, it ends by its liveness timeout.
    fn check_admission(&mut self, remote: &Remote, identity: &Identity) -> Result<(), CloseReason> {
        if let Some(reason) = &self.draining {
            return Err(CloseReason::Drained { reason: reason.clone() });
        }
        let known = self.by_name.get(&remote.peer).and_then(|key| self.sessions.get(key));
        let max = self.settings.max_peers;
        if known.is_none() && self.remote_peers() >= max && !self.is_local(&remote.peer) {
            return Err(CloseReason::Overloaded { resource: "the number of peers", max });
        }
        if known.is_none_or(|known| known.identity != *identity) {
            let max = self.max_peers_of_identity(remote);
            if self.identity_peers.count(identity) >= max {
                let resource = "the number of peers with one certificate or token";
                return Err(CloseReason::Overloaded { resource, max });
            }
        }
        let Some(current) = known.filter(|known| known.closed.is_none()).map(|known| known.id) else {
            return Ok(());
        };
        let (peer, found) = (remote.peer.clone(), remote.session);
        let refused = if found.instance != current.instance {
            self.challenge(&peer);
            CloseReason::OtherInstance { peer, found, current }
        } else if found.number <= current.number {
            CloseReason::OlderSession { peer, found, current }
        } else {
            return Ok(());
        };
        self.stats.fenced += 1;
        Err(refused)
    }

    /// Maximum number of peers that one identity may have, which depends on whether the peer may call others.
    fn max_peers_of_identity(&self, remote: &Remote) -> usize {
        if self.is_local(&remote.peer) {
            usize::MAX
        } else if self.is_caller(remote) {
            self.settings.max_peers_per_caller
        } else {
            MAX_PEERS_PER_NODE
        }
    }

    /// Whether the peer may call others; all other peers are nodes.
    pub(crate) fn is_caller(&self, remote: &Remote) -> bool {
        self.policy.may_watch(&Requester { peer: &remote.peer, services: &remote.services })
    }

    /// Admits a peer whose name has been authenticated as itself, not by a name above. Closes the older session of
    /// the same instance.
    ///
    /// # Errors
    /// [`CloseReason::OlderSession`] or [`CloseReason::OtherInstance`] if another session of the peer takes
    /// precedence, [`CloseReason::Overloaded`] if the hub is full, [`CloseReason::Drained`] if it accepts no new
    /// peers.
    pub fn admit(&mut self, remote: &Remote) -> Result<SessionKey, CloseReason> {
        self.admit_as(remote, Identity::Name(remote.peer.clone()))
    }

    /// Admits a peer whose name this identity has proven. [`CloseReason::Overloaded`] also if the identity has too
    /// many peers.
    pub(crate) fn admit_as(
        &mut self,
        remote: &Remote,
        identity: Identity,
    ) -> Result<SessionKey, CloseReason> {
        self.check_admission(remote, &identity)?;
        if let Some(old_key) = self.by_name.get(&remote.peer).copied() {
            self.stats.fenced += 1;
            if let Some(old) = self.sessions.get(&old_key)
                && old.id.instance != remote.session.instance
            {
                // The end of the old session, which is closing, is reported only if the instance differs: a newer
                // session of the same instance implies the end.
                let (peer, session, drained) = (old.peer.clone(), old.id, old.is_draining());
                self.presence.push_back(Presence::Down { peer, session, drained });
            }
            self.close(old_key, CloseReason::Replaced { peer: remote.peer.clone(), by: remote.session });
        }
        self.next_key += 1;
        let key = SessionKey(self.next_key);
        let session = Session {
            peer: remote.peer.clone(),
            sender: Sender(self.sender_key.hash_one(&identity)),
            refused: Sender(self.sender_key.hash_one((&identity, "refused"))),
            answered: Sender(self.sender_key.hash_one((&identity, "answered"))),
            identity: identity.clone(),
            id: remote.session,
            services: Arc::clone(&remote.services),
            max_frame: remote.max_frame,
            drains: false,
            leaving: None,
            closed: None,
            outbox: FairQueue::default(),
            control_bytes: 0,
            unwritten: Unwritten::default(),
            calls: BTreeMap::new(),
            used: UsedNumbers::default(),
            inbound: BTreeMap::new(),
            waiting_calls: 0,
            is_challenged: false,
            last_number: 0,
            next_lane: 0,
        };
        if !self.is_local(&remote.peer) {
            self.presence.push_back(Presence::Up(session.info()));
        }
        self.sessions.insert(key, session);
        self.identity_peers.add(identity);
        if let Some(old_key) = self.by_name.insert(remote.peer.clone(), key)
            && let Some(old) = self.sessions.get(&old_key)
        {
            self.identity_peers.remove(&old.identity);
        }
        Ok(key)
    }
}
