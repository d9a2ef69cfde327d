//! Who may call whom.
//!
//! A hub asks its [`Policy`] once for each call. Without another it keeps to [`NodesCallNobody`]: proxies may call nodes, and
//! nodes may call nobody. That a peer is a node it says itself, by offering services; where nodes are not trusted, say by name
//! who may call, and whom, with [`Rules`]. Names are what the hub has authenticated.

use std::fmt;
use std::str::FromStr;

use crate::name::{InvalidName, PeerId, ServiceName};

/// Who asks for a call.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Requester<'a> {
    /// Its name, which the hub has authenticated.
    pub peer: &'a PeerId,
    /// The services that it offers, as it says itself.
    pub services: &'a [ServiceName],
}

/// Decides whether a call may pass. Asked once per call, with names that the hub has authenticated; must not block.
pub trait Policy: Send + Sync {
    /// Whether `requester` may call `service` of `target`.
    fn may_call(&self, requester: &Requester<'_>, target: &PeerId, service: &ServiceName) -> bool;

    /// Whether `requester` may ask which peers there are ([presence](crate::presence)), of which it is told only those that it may
    /// call. No for those that may call nobody. Unless a policy says otherwise: yes.
    fn may_watch(&self, requester: &Requester<'_>) -> bool {
        let _ = requester;
        true
    }
}

/// Every authenticated peer may call every other.
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::exhaustive_structs, reason = "has nothing to add")]
pub struct AllowAll;

impl Policy for AllowAll {
    fn may_call(&self, _: &Requester<'_>, _: &PeerId, _: &ServiceName) -> bool {
        true
    }
}

/// A peer that offers services is a node, and nodes call nobody; whoever offers none may call. The default of a hub. Keeps nodes apart that behave; since a peer says itself what it
/// offers, a node that was taken over can leave that out: where this matters, name the callers with [`Rules`].
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::exhaustive_structs, reason = "has nothing to add")]
pub struct NodesCallNobody;

impl Policy for NodesCallNobody {
    fn may_call(&self, requester: &Requester<'_>, _: &PeerId, _: &ServiceName) -> bool {
        requester.services.is_empty()
    }

    fn may_watch(&self, requester: &Requester<'_>) -> bool {
        requester.services.is_empty()
    }
}

/// Only nodes may call: who offers services, as [`NodesCallNobody`] tells them. For a
/// [service of the hub itself](super::HubBuilder::service) that answers each node about itself: a peer says itself what it offers.
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::exhaustive_structs, reason = "has nothing to add")]
pub struct OnlyNodes;

impl Policy for OnlyNodes {
    fn may_call(&self, requester: &Requester<'_>, _: &PeerId, _: &ServiceName) -> bool {
        !requester.services.is_empty()
    }

    fn may_watch(&self, requester: &Requester<'_>) -> bool {
        !requester.services.is_empty()
    }
}

/// Which names a rule is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Names {
    /// `*`: every one.
    All,
    /// `edge-*`: those that begin so.
    Beginning(PeerId),
    /// `proxy`: this one, and what lies below it.
    Below(PeerId),
}

impl Names {
    fn hold(&self, name: &PeerId) -> bool {
        match self {
            Self::All => true,
            Self::Beginning(start) => name.as_str().starts_with(start.as_str()),
            Self::Below(above) => above.covers(name),
        }
    }
}

impl FromStr for Names {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        match text.strip_suffix('*') {
            Some("") => Ok(Self::All),
            Some(start) => PeerId::new(start).map(Self::Beginning),
            None => PeerId::new(text).map(Self::Below),
        }
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Beginning(start) => write!(f, "{start}*"),
            Self::Below(name) => name.fmt(f),
        }
    }
}

/// Why a text is no [`Rule`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRule {
    /// It has no two sides.
    #[error("{found:?} has no `=`; expected FROM=TO, for example csi-proxy=edge-*")]
    NoSides {
        /// The text, cut to 100 characters.
        found: String,
    },
    /// A side holds no names.
    #[error("{side} {found:?}: {cause}; expected a name, a name's beginning with a `*` behind it, or `*`")]
    Names {
        /// Which side.
        side: &'static str,
        /// The side, cut to 100 characters.
        found: String,
        /// What is wrong with it.
        cause: InvalidName,
    },
}

/// Some peers may call some others. Written as `FROM=TO`, where each side is a name, which stands for what lies below it as
/// well (`csi-proxy` for `csi-proxy/replica-2`); the beginning of names with a `*` behind it (`edge-*`); or `*`, everyone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    from: Names,
    to: Names,
}

impl FromStr for Rule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let shown = |text: &str| text.chars().take(100).collect::<String>();
        let (from, to) = text.split_once('=').ok_or_else(|| InvalidRule::NoSides { found: shown(text) })?;
        let names = |side, text: &str| {
            text.parse().map_err(|cause| InvalidRule::Names { side, found: shown(text), cause })
        };
        Ok(Self { from: names("FROM", from)?, to: names("TO", to)? })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.from, self.to)
    }
}

/// A call may pass if one of these rules lets it. Without a rule nobody may call.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    rules: Vec<Rule>,
}

impl Rules {
    /// Takes the rules; they are tried one after the other for each call.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self { rules: rules.into_iter().collect() }
    }

    /// Lets these names call everyone, and nobody else call.
    pub fn callers(names: impl IntoIterator<Item = PeerId>) -> Self {
        Self::new(names.into_iter().map(|name| Rule { from: Names::Below(name), to: Names::All }))
    }
}

impl Policy for Rules {
    fn may_call(&self, requester: &Requester<'_>, target: &PeerId, _: &ServiceName) -> bool {
        self.rules.iter().any(|rule| rule.from.hold(requester.peer) && rule.to.hold(target))
    }

    fn may_watch(&self, requester: &Requester<'_>) -> bool {
        self.rules.iter().any(|rule| rule.from.hold(requester.peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(policy: &dyn Policy, peer: &str, services: &[&str]) -> bool {
        let (peer, target) = (PeerId::new(peer).unwrap(), PeerId::new("edge-9").unwrap());
        let services: Vec<_> = services.iter().map(|name| ServiceName::new(name).unwrap()).collect();
        let service = ServiceName::new("csi").unwrap();
        policy.may_call(&Requester { peer: &peer, services: &services }, &target, &service)
    }

    #[test]
    fn who_offers_a_service_calls_nobody() {
        assert!(may(&NodesCallNobody, "proxy", &[]));
        assert!(!may(&NodesCallNobody, "edge-1", &["csi"]));
    }

    #[test]
    fn only_who_offers_a_service_is_a_node() {
        assert!(may(&OnlyNodes, "edge-1", &["csi"]));
        assert!(!may(&OnlyNodes, "proxy", &[]));
    }

    #[test]
    fn only_the_named_and_what_lies_below_them_may_call() {
        let callers = Rules::callers(["proxy", "spiffe://edge/a"].map(|name| PeerId::new(name).unwrap()));
        for (peer, expected) in [
            ("proxy", true),
            ("proxy/replica-2", true),
            ("proxy/a/b", true),
            ("proxy2", false),
            ("edge-1", false),
            ("edge-1/proxy", false),
            ("spiffe://edge/a", true),
            ("spiffe://edge/a/b", false),
        ] {
            assert_eq!(may(&callers, peer, &[]), expected, "{peer}");
        }
    }

    #[test]
    fn who_may_call_nobody_may_not_ask_who_is_there() {
        let callers = Rules::callers([PeerId::new("proxy").unwrap()]);
        let rules = Rules::new(["proxy=edge-*".parse().unwrap()]);
        let policies: [&dyn Policy; 3] = [&NodesCallNobody, &callers, &rules];
        let (csi, none) = ([ServiceName::new("csi").unwrap()], []);
        for policy in policies {
            for (name, services, expected) in [("proxy/1", &none[..], true), ("edge-1", &csi[..], false)] {
                let peer = PeerId::new(name).unwrap();
                assert_eq!(policy.may_watch(&Requester { peer: &peer, services }), expected, "{name}");
            }
        }
    }

    #[test]
    fn a_rule_names_both_sides() {
        let rules = ["csi-proxy=edge-*", "operator=*", "*=status", "spiffe://edge/a=edge-1"];
        let rules = Rules::new(rules.map(|rule| rule.parse().unwrap()));
        for (from, to, expected) in [
            ("csi-proxy", "edge-1", true),
            ("csi-proxy/replica-2", "edge-17", true),
            ("csi-proxy", "edge", false),
            ("csi-proxy", "other", false),
            ("csi-proxy2", "edge-1", false),
            ("operator", "other", true),
            ("edge-1", "edge-2", false),
            ("edge-1", "status", true),
            ("edge-1", "status/a", true),
            ("edge-1", "csi-proxy", false),
            ("spiffe://edge/a", "edge-1", true),
            ("spiffe://edge/a/b", "edge-1", false),
        ] {
            let (from, to) = (PeerId::new(from).unwrap(), PeerId::new(to).unwrap());
            let requester = Requester { peer: &from, services: &[] };
            let may = rules.may_call(&requester, &to, &ServiceName::new("csi").unwrap());
            assert_eq!(may, expected, "{from} {to}");
        }
        assert!(!may(&Rules::default(), "proxy", &[]), "without a rule nobody");
    }

    #[test]
    fn a_rule_is_written_as_it_was_read_and_a_bad_one_says_what_is_expected() {
        for text in ["csi-proxy=edge-*", "*=*", "a/b=c"] {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        }
        for (text, expected) in [
            ("csi-proxy", "expected FROM=TO"),
            ("=edge-1", "FROM \"\": peer id is empty"),
            ("a=", "TO \"\": peer id is empty"),
            ("a*b=c", "FROM \"a*b\": peer id holds '*'"),
            ("a=b=c", "TO \"b=c\": peer id holds '='"),
            ("a b=c", "expected a name"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
