//! Policies: which peers may call which.
//!
//! A hub checks its [`Policy`] once for each call. The default is [`ClientsOnly`]: proxies may call nodes, and nodes may not
//! call. A peer declares itself a node by the services in its hello. Where nodes are not trusted, name the allowed callers and
//! targets with [`Rules`]. The hub has authenticated all names.

use std::fmt;
use std::str::FromStr;

use crate::name::{InvalidName, PeerId, ServiceName};

/// The peer that makes a call.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Requester<'a> {
    /// The peer's name, which the hub has authenticated.
    pub peer: &'a PeerId,
    /// The services that the peer provides, according to its hello.
    pub services: &'a [ServiceName],
}

/// Decides whether a call is allowed. Called once per call, with names that the hub has authenticated. Must not block.
pub trait Policy: Send + Sync {
    /// Whether `requester` may call `service` of `target`.
    fn may_call(&self, requester: &Requester<'_>, target: &PeerId, service: &ServiceName) -> bool;

    /// Whether `requester` may watch the connected peers ([presence](crate::presence)). A watcher sees only peers that
    /// it may call. Policies should return `false` for peers that may not call any other. The default implementation
    /// returns `true`.
    fn may_watch(&self, requester: &Requester<'_>) -> bool {
        let _ = requester;
        true
    }
}

/// Allows every authenticated peer to call every other.
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::exhaustive_structs, reason = "a policy without fields")]
pub struct AllowAll;

impl Policy for AllowAll {
    fn may_call(&self, _: &Requester<'_>, _: &PeerId, _: &ServiceName) -> bool {
        true
    }
}

/// Allows only peers without services to call. A peer that provides services is a node, and nodes may not call. A
/// hub uses this policy by default. This policy separates well-behaved nodes only, because a compromised node can
/// omit its services from its hello. Where this matters, name the callers with [`Rules`].
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::exhaustive_structs, reason = "a policy without fields")]
pub struct ClientsOnly;

impl Policy for ClientsOnly {
    fn may_call(&self, requester: &Requester<'_>, _: &PeerId, _: &ServiceName) -> bool {
        requester.services.is_empty()
    }

    fn may_watch(&self, requester: &Requester<'_>) -> bool {
        requester.services.is_empty()
    }
}

/// Allows only nodes to call: peers that provide services, as in [`ClientsOnly`]. Use this policy only for a
/// [service of the hub itself](super::HubBuilder::service) that answers each node about that node, because the hub
/// does not verify which services a peer provides.
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::exhaustive_structs, reason = "a policy without fields")]
pub struct NodesOnly;

impl Policy for NodesOnly {
    fn may_call(&self, requester: &Requester<'_>, _: &PeerId, _: &ServiceName) -> bool {
        !requester.services.is_empty()
    }

    fn may_watch(&self, requester: &Requester<'_>) -> bool {
        !requester.services.is_empty()
    }
}

/// The names that a side of a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// `*`: every name.
    Any,
    /// `edge-*`: names with this prefix.
    Prefix(PeerId),
    /// `proxy`: this name and the names below it.
    Subtree(PeerId),
}

impl Pattern {
    fn matches(&self, name: &PeerId) -> bool {
        match self {
            Self::Any => true,
            Self::Prefix(start) => name.as_str().starts_with(start.as_str()),
            Self::Subtree(above) => above.covers(name),
        }
    }
}

impl FromStr for Pattern {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        match text.strip_suffix('*') {
            Some("") => Ok(Self::Any),
            Some(start) => PeerId::new(start).map(Self::Prefix),
            None => PeerId::new(text).map(Self::Subtree),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Prefix(start) => write!(f, "{start}*"),
            Self::Subtree(name) => name.fmt(f),
        }
    }
}

/// Why a text is not a valid [`Rule`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRule {
    /// The text has no `=`.
    #[error("{found:?} has no `=`; expected FROM=TO, for example csi-proxy=edge-*")]
    NoEquals {
        /// The text, truncated to 100 characters.
        found: String,
    },
    /// A side is not a valid pattern.
    #[error("{side} {found:?}: {cause}; expected a name, a prefix followed by `*`, or `*`")]
    Pattern {
        /// `FROM` or `TO`.
        side: &'static str,
        /// The text of the side, truncated to 100 characters.
        found: String,
        /// What is wrong with the name.
        cause: InvalidName,
    },
}

/// Allows some peers to call some others. Written as `FROM=TO`. Each side is a name, which includes the names below it
/// (`csi-proxy` includes `csi-proxy/replica-2`), a prefix followed by `*` (`edge-*`), or `*` for all names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    from: Pattern,
    to: Pattern,
}

impl FromStr for Rule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let shown = |text: &str| text.chars().take(100).collect::<String>();
        let (from, to) = text.split_once('=').ok_or_else(|| InvalidRule::NoEquals { found: shown(text) })?;
        let names = |side, text: &str| {
            text.parse().map_err(|cause| InvalidRule::Pattern { side, found: shown(text), cause })
        };
        Ok(Self { from: names("FROM", from)?, to: names("TO", to)? })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.from, self.to)
    }
}

/// Allows a call if one of the rules does. Without rules no call is allowed.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    rules: Vec<Rule>,
}

impl Rules {
    /// Creates a policy that allows a call if one of these rules does.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self { rules: rules.into_iter().collect() }
    }

    /// Creates a policy that allows only these names, and names below them, to call. These callers may call every peer.
    pub fn callers(names: impl IntoIterator<Item = PeerId>) -> Self {
        Self::new(names.into_iter().map(|name| Rule { from: Pattern::Subtree(name), to: Pattern::Any }))
    }
}

impl Policy for Rules {
    fn may_call(&self, requester: &Requester<'_>, target: &PeerId, _: &ServiceName) -> bool {
        self.rules.iter().any(|rule| rule.from.matches(requester.peer) && rule.to.matches(target))
    }

    fn may_watch(&self, requester: &Requester<'_>) -> bool {
        self.rules.iter().any(|rule| rule.from.matches(requester.peer))
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
    fn clients_only_rejects_peers_with_services() {
        assert!(may(&ClientsOnly, "proxy", &[]));
        assert!(!may(&ClientsOnly, "edge-1", &["csi"]));
    }

    #[test]
    fn nodes_only_rejects_peers_without_services() {
        assert!(may(&NodesOnly, "edge-1", &["csi"]));
        assert!(!may(&NodesOnly, "proxy", &[]));
    }

    #[test]
    fn named_callers_include_names_below_them() {
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
    fn peers_that_may_not_call_may_not_watch() {
        let callers = Rules::callers([PeerId::new("proxy").unwrap()]);
        let rules = Rules::new(["proxy=edge-*".parse().unwrap()]);
        let policies: [&dyn Policy; 3] = [&ClientsOnly, &callers, &rules];
        let (csi, none) = ([ServiceName::new("csi").unwrap()], []);
        for policy in policies {
            for (name, services, expected) in [("proxy/1", &none[..], true), ("edge-1", &csi[..], false)] {
                let peer = PeerId::new(name).unwrap();
                assert_eq!(policy.may_watch(&Requester { peer: &peer, services }), expected, "{name}");
            }
        }
    }

    #[test]
    fn rules_match_both_sides() {
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
        assert!(!may(&Rules::default(), "proxy", &[]), "no rules");
    }

    #[test]
    fn rules_parse_and_errors_say_what_is_expected() {
        for text in ["csi-proxy=edge-*", "*=*", "a/b=c"] {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        }
        for (text, expected) in [
            ("csi-proxy", "expected FROM=TO"),
            ("=edge-1", "FROM \"\": peer id is empty"),
            ("a=", "TO \"\": peer id is empty"),
            ("a*b=c", "FROM \"a*b\": peer id contains '*'"),
            ("a=b=c", "TO \"b=c\": peer id contains '='"),
            ("a b=c", "expected a name"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
