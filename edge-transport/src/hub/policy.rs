//! Policies: which peers may call which.
//!
//! A hub checks its [`Policy`] once for each call. The default is [`Rules::clients_only`]: proxies may call nodes, and nodes may
//! not call. A peer declares itself a node by the services in its hello. Where nodes are not trusted, name the allowed callers
//! and targets in [`Rules`]. The hub has authenticated all names.

use std::fmt;
use std::str::FromStr;

use crate::name::{InvalidName, PeerId, ServiceName, covered_by};

/// The peer that makes a call.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Requester<'a> {
    /// The peer's name, which the hub has authenticated.
    pub peer: &'a PeerId,
    /// The services that the peer provides, according to its hello.
    pub services: &'a [ServiceName],
}

impl<'a> Requester<'a> {
    /// Creates a requester, for policies in programs and tests of their own.
    #[must_use]
    pub const fn new(peer: &'a PeerId, services: &'a [ServiceName]) -> Self {
        Self { peer, services }
    }
}

/// Decides whether a call is allowed. The functions are called once for each call and each watcher, with names that the hub has
/// authenticated, in no order, by the tasks of all links, under the lock of the routing table: they must not block or call the
/// hub.
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

/// The names that a part of a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// `*`: every name, or, as the target of a rule, every name that is not a caller's.
    Any,
    /// `edge-*`: names with this prefix.
    Prefix(Box<str>),
    /// `proxy`: this name and the names below it.
    Subtree(Box<str>),
}

impl Pattern {
    /// Parses a pattern whose name `check` accepts.
    fn parse<N>(text: &str, check: fn(&str) -> Result<N, InvalidName>) -> Result<Self, InvalidName> {
        match text.strip_suffix('*') {
            Some("") => Ok(Self::Any),
            Some(start) => check(start).map(|_| Self::Prefix(start.into())),
            None => check(text).map(|_| Self::Subtree(text.into())),
        }
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Prefix(start) => name.starts_with(&**start),
            Self::Subtree(above) => {
                name.starts_with(&**above) && covered_by(name).any(|covering| covering == &**above)
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Prefix(start) => write!(f, "{start}*"),
            Self::Subtree(name) => f.write_str(name),
        }
    }
}

/// The peers that a rule allows to call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Callers {
    Named(Pattern),
    /// Peers without services.
    Clients,
    /// Peers with services.
    Nodes,
}

impl Callers {
    fn include(&self, requester: &Requester<'_>) -> bool {
        match self {
            Self::Named(names) => names.matches(requester.peer.as_str()),
            Self::Clients => requester.services.is_empty(),
            Self::Nodes => !requester.services.is_empty(),
        }
    }
}

impl fmt::Display for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(names) => names.fmt(f),
            Self::Clients => f.write_str("clients"),
            Self::Nodes => f.write_str("nodes"),
        }
    }
}

/// Why a text is not a valid rule of [`Rules`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRule {
    /// The text has no `=`.
    #[error("{found:?} has no `=`; expected FROM=TO, for example csi-proxy=edge-*")]
    NoEquals {
        /// The text, truncated to 100 characters.
        found: String,
    },
    /// A part is not a valid pattern.
    #[error("{side} {found:?}: {cause}; expected a name, a prefix followed by `*`, or `*`")]
    Pattern {
        /// `FROM`, `TO` or `SERVICE`.
        side: &'static str,
        /// The text of the part, truncated to 100 characters.
        found: String,
        /// What is wrong with the name.
        cause: InvalidName,
    },
}

/// Allows some peers to call some services of some others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    from: Callers,
    to: Pattern,
    service: Pattern,
}

impl Rule {
    /// Allows these callers to call every service of every peer.
    const fn of(from: Callers) -> Self {
        Self { from, to: Pattern::Any, service: Pattern::Any }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.from, self.to)?;
        if self.service == Pattern::Any { Ok(()) } else { write!(f, ":{}", self.service) }
    }
}

/// Allows a call if one of its rules does. Without rules no call is allowed.
///
/// A rule is parsed from `FROM=TO`. Each side is a name, which includes the names below it (`csi-proxy` includes
/// `csi-proxy/replica-2`), a prefix followed by `*` (`edge-*`), or `*`: as `FROM` for all names, as `TO` for all that no rule has
/// as `FROM` by name or prefix. A caller that offers services is therefore no node for the rules of others. The rule allows calls
/// of every service, unless [`with_service`](Self::with_service) restricts it.
///
/// ```
/// use edge_transport::hub::Rules;
///
/// let one: Rules = "csi-proxy=edge-*".parse()?;
/// let policy = Rules::new([one.with_service("csi")?, "operator=*".parse()?]);
/// # Ok::<(), edge_transport::hub::InvalidRule>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
}

impl Rules {
    /// Allows a call if one of these does.
    pub fn new(rules: impl IntoIterator<Item = Self>) -> Self {
        Self { rules: rules.into_iter().flat_map(|one| one.rules).collect() }
    }

    /// Allows only these names, and names below them, to call. These callers may call every peer but each other.
    pub fn callers(names: impl IntoIterator<Item = PeerId>) -> Self {
        let named = |name: PeerId| Rule::of(Callers::Named(Pattern::Subtree(name.as_str().into())));
        Self { rules: names.into_iter().map(named).collect() }
    }

    /// Allows every authenticated peer to call every other.
    #[must_use]
    pub fn allow_all() -> Self {
        Self { rules: vec![Rule::of(Callers::Named(Pattern::Any))] }
    }

    /// Allows only peers without services to call. A peer that provides services is a node, and nodes may not call. A hub uses
    /// this policy by default. This policy separates well-behaved nodes only, because a compromised node can omit its services
    /// from its hello. Where this matters, name the callers.
    #[must_use]
    pub fn clients_only() -> Self {
        Self { rules: vec![Rule::of(Callers::Clients)] }
    }

    /// Allows only nodes to call: peers that provide services, as in [`clients_only`](Self::clients_only). Use this policy only
    /// for a [service of the hub itself](super::HubBuilder::service) that answers each node about that node, because the hub
    /// does not verify which services a peer provides.
    #[must_use]
    pub fn nodes_only() -> Self {
        Self { rules: vec![Rule::of(Callers::Nodes)] }
    }

    /// Restricts the rules to these services: a name, which includes the names below it (`csi` includes `csi/a.driver`), a
    /// prefix followed by `*`, or `*` for all services.
    ///
    /// # Errors
    /// [`InvalidRule::Pattern`] if the text is none of these.
    pub fn with_service(mut self, service: &str) -> Result<Self, InvalidRule> {
        let pattern = Pattern::parse(service, |name| ServiceName::new(name))
            .map_err(|cause| InvalidRule::Pattern { side: "SERVICE", found: excerpt(service), cause })?;
        for rule in &mut self.rules {
            rule.service = pattern.clone();
        }
        Ok(self)
    }
}

/// Returns the text, truncated to 100 characters.
fn excerpt(text: &str) -> String {
    text.chars().take(100).collect()
}

/// Parses one rule, `FROM=TO`.
impl FromStr for Rules {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let (from, to) =
            text.split_once('=').ok_or_else(|| InvalidRule::NoEquals { found: excerpt(text) })?;
        let names = |side, text: &str| {
            Pattern::parse(text, |name| PeerId::new(name)).map_err(|cause| InvalidRule::Pattern {
                side,
                found: excerpt(text),
                cause,
            })
        };
        let from = Callers::Named(names("FROM", from)?);
        Ok(Self { rules: vec![Rule { from, to: names("TO", to)?, service: Pattern::Any }] })
    }
}

/// Prints the rules with a space between them.
impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, rule) in self.rules.iter().enumerate() {
            let space = if at > 0 { " " } else { "" };
            write!(f, "{space}{rule}")?;
        }
        Ok(())
    }
}

impl Rules {
    /// Whether a rule has this peer as a caller, by its name or a prefix of it.
    fn names_caller(&self, peer: &PeerId) -> bool {
        self.rules.iter().any(|rule| match &rule.from {
            Callers::Named(names) => *names != Pattern::Any && names.matches(peer.as_str()),
            Callers::Clients | Callers::Nodes => false,
        })
    }
}

impl Policy for Rules {
    fn may_call(&self, requester: &Requester<'_>, target: &PeerId, service: &ServiceName) -> bool {
        self.rules.iter().any(|rule| {
            rule.from.include(requester)
                && rule.to.matches(target.as_str())
                && rule.service.matches(service.as_str())
                && (rule.to != Pattern::Any || !self.names_caller(target))
        })
    }

    fn may_watch(&self, requester: &Requester<'_>) -> bool {
        self.rules.iter().any(|rule| rule.from.include(requester))
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
        assert!(may(&Rules::clients_only(), "proxy", &[]));
        assert!(!may(&Rules::clients_only(), "edge-1", &["csi"]));
    }

    #[test]
    fn nodes_only_rejects_peers_without_services() {
        assert!(may(&Rules::nodes_only(), "edge-1", &["csi"]));
        assert!(!may(&Rules::nodes_only(), "proxy", &[]));
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
        let policies = [Rules::clients_only(), callers, rules];
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

    /// A caller that declares itself a node does not get the calls of others, which may have secrets.
    #[test]
    fn callers_are_not_among_all_nodes() {
        let rules = ["hub/a.driver=*", "proxy-b=edge-b-*", "sweep-*=edge-*", "*=status"];
        let rules = Rules::new(rules.map(|rule| rule.parse().unwrap()));
        let from = PeerId::new("hub/a.driver/1").unwrap();
        for (to, expected) in [
            ("edge-1", true),
            ("proxy-b", false),
            ("proxy-b/1", false),
            ("sweep-1", false),
            ("hub/a.driver", false),
        ] {
            let requester = Requester { peer: &from, services: &[] };
            let to = PeerId::new(to).unwrap();
            let may = rules.may_call(&requester, &to, &ServiceName::new("csi/a.driver").unwrap());
            assert_eq!(may, expected, "{to}");
        }
    }

    /// A rule for one driver allows neither another driver, nor all drivers together, nor another service.
    #[test]
    fn rules_match_the_service() {
        let rule = |service: &str| "proxy=edge-*".parse::<Rules>().unwrap().with_service(service).unwrap();
        let (proxy, node) = (PeerId::new("proxy/1").unwrap(), PeerId::new("edge-1").unwrap());
        let requester = Requester { peer: &proxy, services: &[] };
        for (rule, service, expected) in [
            (rule("csi/a.driver"), "csi/a.driver", true),
            (rule("csi/a.driver"), "csi/b.driver", false),
            (rule("csi/a.driver"), "csi/a.driver2", false),
            (rule("csi/a.driver"), "csi", false),
            (rule("csi/a.driver"), "volumes", false),
            (rule("csi/a*"), "csi/a.driver", true),
            (rule("csi/*"), "csi", false),
            (rule("csi"), "csi/b.driver", true),
            (rule("*"), "volumes", true),
        ] {
            let service = ServiceName::new(service).unwrap();
            let text = rule.to_string();
            assert_eq!(rule.may_call(&requester, &node, &service), expected, "{text} {service}");
        }
        assert_eq!(rule("csi/a.driver").to_string(), "proxy=edge-*:csi/a.driver");
        assert!(
            "a=b".parse::<Rules>().unwrap().with_service("").unwrap_err().to_string().contains("SERVICE")
        );
    }

    #[test]
    fn rules_parse_and_errors_say_what_is_expected() {
        for text in ["csi-proxy=edge-*", "*=*", "a/b=c"] {
            assert_eq!(text.parse::<Rules>().unwrap().to_string(), text);
        }
        for (text, expected) in [
            ("csi-proxy", "expected FROM=TO"),
            ("=edge-1", "FROM \"\": peer id is empty"),
            ("a=", "TO \"\": peer id is empty"),
            ("a*b=c", "FROM \"a*b\": peer id contains '*'"),
            ("a=b=c", "TO \"b=c\": peer id contains '='"),
            ("a b=c", "expected a name"),
        ] {
            let error = text.parse::<Rules>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
