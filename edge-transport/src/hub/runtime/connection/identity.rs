//! Ends the sessions of identities that are not valid any more.

use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::SystemTime;

use super::{Connection, TokenCheckFuture, check_timeout};
use crate::frame_io::now;
use crate::link::Credentials;
use crate::name::PeerId;
use crate::session::CloseReason;

impl Connection {
    /// Ends the session of an admitted peer whose certificate has expired, or whose identity is denied.
    pub(super) fn check_identity(&mut self) {
        let checks = self.shared.identity_checks.load(Ordering::Acquire);
        let is_due = self.expires.is_some_and(|end| now() >= end) || checks != self.identity_checks;
        if !is_due || self.closed.is_some() {
            return;
        }
        let Some(peer) = self.peer.clone() else { return };
        self.identity_checks = checks;
        if let Some(reason) = self.revoked(&peer) {
            let decision = self.unauthenticated(reason);
            return self.link_event(decision);
        }
        let again = self.verified.clone().map(|token| token.verify_again(check_timeout(&self.shared)));
        self.token_recheck = again.map(|again| Box::pin(again) as TokenCheckFuture);
    }

    /// Returns why the peer's identity is not valid any more, if so, and schedules the next check for the certificate's end.
    pub(super) fn revoked(&mut self, peer: &PeerId) -> Option<CloseReason> {
        let (credentials, time) = (self.io.link().credentials(), SystemTime::now());
        let reason = self.shared.authentication.revoked(credentials, peer, time);
        if let Credentials::Certificate(own) = credentials {
            let left = own.expires.and_then(|end| end.duration_since(time).ok());
            self.expires = left.and_then(|left| now().checked_add(left));
        }
        reason
    }

    /// Continues a repeated verification of the token.
    pub(super) fn poll_recheck(&mut self, cx: &mut Context<'_>) {
        if let Some(recheck) = &mut self.token_recheck
            && let Poll::Ready(answer) = recheck.as_mut().poll(cx)
        {
            self.token_recheck = None;
            if let Err(reason) = answer {
                let decision = self.unauthenticated(reason);
                self.link_event(decision);
            }
        }
    }
}
