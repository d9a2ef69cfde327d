//! The rules of `--allow`: which peers may call which drivers on which nodes.

use std::fmt;
use std::str::FromStr;

use csi_proto::DriverName;
use csi_proto::name::InvalidDriverName;
use csi_proxy::CSI_SERVICE;
use edge_transport::hub::{InvalidRule, Rules};

/// A text is not a rule of `--allow`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAllowRule {
    /// The names of the peers, or of a service, break the rules of names.
    #[error(transparent)]
    Rule(#[from] InvalidRule),
    /// The part after the last `:` is not a driver.
    #[error(
        "DRIVER {found:?}: {cause}; expected a driver's name, a prefix followed by `*`, `*`, or @SERVICE"
    )]
    Driver {
        /// The part after the last `:`.
        found: String,
        /// What is wrong with the name.
        cause: InvalidDriverName,
    },
}

/// A rule, as `FROM=TO:DRIVER`: peers `FROM` may call the driver on the nodes `TO`.
///
/// `DRIVER` is a driver's name, a prefix followed by `*`, or `*` for every driver; `@SERVICE` allows another service of the
/// nodes, such as `@volumes`. Without it, `FROM` may call everything on these nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowRule {
    rule: Rules,
    text: String,
    is_restricted: bool,
}

impl AllowRule {
    /// Whether the rule names a driver or a service.
    #[must_use]
    pub const fn is_restricted(&self) -> bool {
        self.is_restricted
    }

    /// Returns the policy that allows a call if one of these rules does, and warns about those that name no driver.
    #[must_use]
    pub fn policy(rules: &[Self]) -> Rules {
        for rule in rules.iter().filter(|rule| !rule.is_restricted) {
            tracing::warn!(%rule, "--allow names no driver: its callers may call every driver and service; add :DRIVER");
        }
        Rules::new(rules.iter().map(|rule| rule.rule.clone()))
    }
}

impl FromStr for AllowRule {
    type Err = InvalidAllowRule;

    fn from_str(text: &str) -> Result<Self, InvalidAllowRule> {
        let to_start = text.find('=').map_or(0, |at| at + 1);
        // A URI as the name of a peer has a `:` too, with `//` after it.
        let driver = text[to_start..].rfind(':').map(|at| text.split_at(to_start + at));
        let (rule, service) = match driver.filter(|(_, tail)| !tail.starts_with("://")) {
            None => (text, None),
            Some((rule, tail)) => (rule, Some(service_pattern(&tail[1..])?)),
        };
        let mut rule: Rules = rule.parse()?;
        if let Some(service) = &service {
            rule = rule.with_service(service)?;
        }
        Ok(Self { rule, text: text.to_owned(), is_restricted: service.is_some() })
    }
}

impl fmt::Display for AllowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns the pattern of services for the part after the last `:`.
fn service_pattern(driver: &str) -> Result<String, InvalidAllowRule> {
    if let Some(service) = driver.strip_prefix('@') {
        return Ok(service.to_owned());
    }
    let name = driver.strip_suffix('*').unwrap_or(driver);
    // The last character of a prefix may be one with which no name ends.
    let checked =
        if driver == "*" { Ok(()) } else { DriverName::new(name.trim_end_matches(['.', '-'])).map(drop) };
    checked.map_err(|cause| InvalidAllowRule::Driver { found: driver.chars().take(100).collect(), cause })?;
    Ok(format!("{CSI_SERVICE}/{driver}"))
}

#[cfg(test)]
mod tests {
    use edge_transport::hub::{Policy, Requester};
    use edge_transport::{PeerId, ServiceName};

    use super::*;

    fn allows(rule: &str, from: &str, to: &str, service: &str) -> bool {
        let [from, to] = [from, to].map(|name| PeerId::new(name).unwrap());
        let rules = AllowRule::policy(&[rule.parse().unwrap()]);
        let service = ServiceName::new(service).unwrap();
        // `Requester` has no public constructor: a hub makes it.
        let requester = Requester::new(&from, &[]);
        rules.may_call(&requester, &to, &service)
    }

    /// A rule allows the driver that it names and nothing else.
    #[test]
    fn rule_allows_its_driver_only() {
        for (rule, service, expected) in [
            ("csi-proxy=edge-*:a.driver", "csi/a.driver", true),
            ("csi-proxy=edge-*:a.driver", "csi/b.driver", false),
            ("csi-proxy=edge-*:a.driver", "csi", false),
            ("csi-proxy=edge-*:a.driver", "volumes", false),
            ("csi-proxy=edge-*:a.*", "csi/a.driver", true),
            ("csi-proxy=edge-*:*", "csi/b.driver", true),
            ("csi-proxy=edge-*:*", "volumes", false),
            ("csi-proxy=edge-*:@volumes", "volumes", true),
            ("csi-proxy=edge-*:@volumes", "csi/a.driver", false),
            ("csi-proxy=edge-*", "volumes", true),
        ] {
            assert_eq!(allows(rule, "csi-proxy/1", "edge-1", service), expected, "{rule} {service}");
        }
        assert!(!allows("csi-proxy=edge-*:a.driver", "edge-1", "edge-2", "csi/a.driver"));
        assert!(allows("spiffe://x/a=spiffe://x/b", "spiffe://x/a", "spiffe://x/b", "csi/a.driver"));
        assert!(!allows("spiffe://x/a=spiffe://x/b:a.b", "spiffe://x/a", "spiffe://x/b", "csi/c"));
    }

    #[test]
    fn errors_name_the_part_and_the_forms() {
        for (text, expected) in [
            ("csi-proxy", "expected FROM=TO"),
            ("a=b:", "DRIVER \"\""),
            ("a=b:x y", "DRIVER \"x y\""),
            ("a=b:@", "SERVICE \"\""),
            ("a=b:csi/a.driver", "DRIVER \"csi/a.driver\""),
            ("=b:c", "FROM \"\""),
        ] {
            let error = text.parse::<AllowRule>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let rule: AllowRule = "a=b:c".parse().unwrap();
        assert_eq!((rule.to_string().as_str(), rule.is_restricted()), ("a=b:c", true));
    }
}
