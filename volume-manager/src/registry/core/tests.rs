//! Tests of the registry core in virtual time.

use std::time::Duration;

use csi_proto::pluginregistration::v1::PluginInfo;

use super::{Action, Attempt, Event, Registry, SocketFile, SocketIdentity, SocketName};
use crate::registry::plugin::RejectReason;
use crate::registry::{DeregistrationReason, DriverEvent};

const ZERO: Duration = Duration::ZERO;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn name(text: &str) -> SocketName {
    SocketName::new(text).expect("a socket name")
}

fn listing(sockets: &[(&str, u64)]) -> Event {
    let file = |&(text, inode)| SocketFile {
        name: name(text),
        identity: SocketIdentity { inode, modified_nanos: 0 },
    };
    Event::Listed(sockets.iter().map(file).collect())
}

fn info(driver: &str) -> PluginInfo {
    PluginInfo {
        r#type: "CSIPlugin".into(),
        name: driver.into(),
        endpoint: format!("/plugins/{driver}/csi.sock"),
        supported_versions: vec!["1.0.0".into()],
    }
}

/// The calls among the actions: whether it is GetInfo, its socket, and its id.
fn calls(actions: &[Action]) -> Vec<(bool, String, Attempt)> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Inspect { attempt, socket } => Some((true, socket.to_string(), *attempt)),
            Action::Notify { attempt, socket, .. } => Some((false, socket.to_string(), *attempt)),
            Action::Ignored { .. } | Action::Abandon(_) | Action::Emit(_) => None,
        })
        .collect()
}

fn only_call(actions: &[Action]) -> Attempt {
    let calls = calls(actions);
    assert_eq!(calls.len(), 1, "{actions:?}");
    calls[0].2
}

fn emitted(actions: &[Action]) -> Vec<String> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Emit(DriverEvent::Registered { name, endpoint, .. }) => {
                Some(format!("{name} at {endpoint}"))
            }
            Action::Emit(DriverEvent::Deregistered { name, reason }) => Some(format!("{name}: {reason:?}")),
            _ => None,
        })
        .collect()
}

/// A registry with one registered driver, whose registrar was notified.
fn registered(socket: &str, driver: &str) -> Registry {
    let mut registry = Registry::new("/reg");
    let attempt = only_call(&registry.step(listing(&[(socket, 1)]), ZERO));
    let actions = registry.step(Event::Inspected { attempt, info: Some(info(driver)) }, ZERO);
    assert_eq!(emitted(&actions), [format!("{driver} at unix:///plugins/{driver}/csi.sock")]);
    let attempt = only_call(&actions);
    assert_eq!(registry.step(Event::Notified { attempt, delivered: true }, ZERO), []);
    registry
}

#[test]
fn emits_the_driver_before_notifying_its_registrar_once() {
    let mut registry = Registry::new("/reg");
    let attempt = only_call(&registry.step(listing(&[("a-reg.sock", 1)]), ZERO));
    let actions = registry.step(Event::Inspected { attempt, info: Some(info("a")) }, ZERO);
    assert!(matches!(&actions[..], [Action::Emit(_), Action::Notify { result: Ok(()), .. }]), "{actions:?}");
    let attempt = only_call(&actions);
    assert_eq!(registry.step(Event::Notified { attempt, delivered: true }, ZERO), []);
    for hour in 1..48 {
        assert_eq!(registry.step(listing(&[("a-reg.sock", 1)]), seconds(3600 * hour)), []);
    }
}

#[test]
fn removed_socket_deregisters_and_a_new_one_registers_again() {
    let mut registry = registered("a-reg.sock", "a");
    let actions = registry.step(listing(&[]), seconds(1));
    let reason = DeregistrationReason::SocketRemoved;
    let name = "a".parse().expect("a driver name");
    assert_eq!(actions, [Action::Emit(DriverEvent::Deregistered { name, reason })]);
    assert_eq!(registry.step(listing(&[]), seconds(2)), []);

    let attempt = only_call(&registry.step(listing(&[("a-reg.sock", 1)]), seconds(3)));
    let actions = registry.step(Event::Inspected { attempt, info: Some(info("a")) }, seconds(3));
    assert_eq!(emitted(&actions).len(), 1);
}

#[test]
fn replaced_socket_registers_again_even_with_the_same_inode() {
    for (inode, modified_nanos) in [(2, 0), (1, 5)] {
        let mut registry = registered("a-reg.sock", "a");
        let identity = SocketIdentity { inode, modified_nanos };
        let files = vec![SocketFile { name: name("a-reg.sock"), identity }];
        let actions = registry.step(Event::Listed(files), seconds(1));
        assert_eq!(emitted(&actions), ["a: SocketReplaced"]);
        assert_eq!(calls(&actions).len(), 1, "GetInfo of the new one starts at once: {actions:?}");
    }
}

#[test]
fn call_of_a_removed_socket_is_abandoned_and_ignored() {
    let mut registry = Registry::new("/reg");
    let old = only_call(&registry.step(listing(&[("a-reg.sock", 1)]), ZERO));
    let actions = registry.step(listing(&[("a-reg.sock", 2)]), seconds(1));
    assert_eq!(actions[0], Action::Abandon(old));
    let new = only_call(&actions);
    assert_eq!(registry.step(Event::Inspected { attempt: old, info: Some(info("old")) }, seconds(1)), []);
    let actions = registry.step(Event::Inspected { attempt: new, info: Some(info("new")) }, seconds(1));
    assert_eq!(emitted(&actions), ["new at unix:///plugins/new/csi.sock"]);
}

#[test]
fn failed_get_info_is_retried_with_bounded_backoff() {
    let mut registry = Registry::new("/reg");
    let mut asked = Vec::new();
    for half_second in 0..1200 {
        let now = Duration::from_millis(500 * half_second);
        let actions = registry.step(listing(&[("stale-reg.sock", 1)]), now);
        if let Some((_, _, attempt)) = calls(&actions).first() {
            asked.push(now.as_millis());
            assert_eq!(registry.step(Event::Inspected { attempt: *attempt, info: None }, now), []);
        }
    }
    let expected = [0, 500, 1500, 3500, 7500, 15_500, 31_500, 63_500, 123_500, 183_500];
    assert_eq!(asked[..10], expected);
    assert!(asked.windows(2).all(|pair| pair[1] - pair[0] <= 60_000), "{asked:?}");
}

#[test]
fn hanging_registrar_does_not_delay_others() {
    let mut registry = Registry::new("/reg");
    let both = [("hangs-reg.sock", 1), ("works-reg.sock", 2)];
    let actions = registry.step(listing(&both), ZERO);
    let asked = calls(&actions);
    assert_eq!(asked.len(), 2);
    let actions = registry.step(Event::Inspected { attempt: asked[1].2, info: Some(info("works")) }, ZERO);
    assert_eq!(emitted(&actions).len(), 1);
    // A running call is not repeated.
    assert_eq!(registry.step(listing(&both), seconds(900)), []);
}

#[test]
fn rejects_invalid_fields_by_name_and_retries() {
    let long = format!("unix:///{}", "x".repeat(107));
    let with = |change: &dyn Fn(&mut PluginInfo)| {
        let mut info = info("good");
        change(&mut info);
        info
    };
    let versions = |list: &[&str]| {
        let list: Vec<_> = list.iter().map(ToString::to_string).collect();
        with(&|info| info.supported_versions.clone_from(&list))
    };
    for (expected, plugin) in [
        ("name is not valid: ", with(&|info| info.name.clear())),
        ("name is not valid: ", with(&|info| info.name = "a/../b".into())),
        ("name is not valid: ", with(&|info| info.name = "a".repeat(64))),
        ("supported_versions is []", versions(&[])),
        ("supported_versions is [\"2.0.0\", \"0.3.0\"]", versions(&["2.0.0", "0.3.0"])),
        ("supported_versions is [\"one\", \"+1.0\", \"1.\"]", versions(&["one", "+1.0", "1."])),
        ("supported_versions has 17 entries; at most 16", versions(&["1.0.0"; 17])),
        ("endpoint is not valid: \"csi.sock\" is not", with(&|info| info.endpoint = "csi.sock".into())),
        (
            "endpoint is not valid: \"tcp://host:1\" is not",
            with(&|info| info.endpoint = "tcp://host:1".into()),
        ),
        ("endpoint is not valid: \"rel\" is not", with(&|info| info.endpoint = "unix://rel".into())),
        ("endpoint is not valid: the path has 108 bytes; ", with(&|info| info.endpoint.clone_from(&long))),
    ] {
        let mut registry = Registry::new("/reg");
        let sockets = [("x-reg.sock", 1)];
        let attempt = only_call(&registry.step(listing(&sockets), ZERO));
        let actions = registry.step(Event::Inspected { attempt, info: Some(plugin) }, ZERO);
        let [Action::Notify { attempt, result: Err(reason), .. }] = &actions[..] else {
            panic!("{expected}: {actions:?}")
        };
        assert!(crate::excerpt::chain(reason).starts_with(expected), "{expected}: {reason}");
        let attempt = *attempt;
        assert_eq!(
            registry.step(listing(&sockets), seconds(90)),
            [],
            "the rejection is still being reported"
        );
        let _ = registry.step(Event::Notified { attempt, delivered: true }, seconds(90));
        assert_eq!(calls(&registry.step(listing(&sockets), seconds(180))).len(), 1, "{expected}");
    }
}

#[test]
fn ignores_other_plugin_types_until_their_socket_is_replaced() {
    for kind in ["DevicePlugin", "DRAPlugin", "", &"T".repeat(60_000)] {
        let mut registry = Registry::new("/reg");
        let attempt = only_call(&registry.step(listing(&[("x-reg.sock", 1)]), ZERO));
        let info = PluginInfo { r#type: kind.into(), ..info("a") };
        let actions = registry.step(Event::Inspected { attempt, info: Some(info) }, ZERO);
        let [Action::Ignored { found, .. }] = &actions[..] else { panic!("{kind}: {actions:?}") };
        assert!(kind.starts_with(found.trim_end_matches('…')) && found.chars().count() <= 65, "{found}");
        for minute in 1..90 {
            assert_eq!(registry.step(listing(&[("x-reg.sock", 1)]), seconds(60 * minute)), [], "{kind}");
        }
        assert_eq!(calls(&registry.step(listing(&[("x-reg.sock", 2)]), seconds(9000))).len(), 1, "{kind}");
    }
}

#[test]
fn reject_reason_quotes_at_most_one_line() {
    let info = PluginInfo { supported_versions: vec!["v".repeat(60_000)], ..info("a") };
    let mut registry = Registry::new("/reg");
    let attempt = only_call(&registry.step(listing(&[("a-reg.sock", 1)]), ZERO));
    let actions = registry.step(Event::Inspected { attempt, info: Some(info) }, ZERO);
    let [Action::Notify { result: Err(reason), .. }] = &actions[..] else { panic!("{actions:?}") };
    assert!(reason.to_string().len() < 200, "{reason}");
}

#[test]
fn name_belongs_to_its_first_socket_until_that_is_removed() {
    let mut registry = registered("first-reg.sock", "a");
    let both = [("first-reg.sock", 1), ("second-reg.sock", 2)];
    let attempt = only_call(&registry.step(listing(&both), seconds(1)));
    let actions = registry.step(Event::Inspected { attempt, info: Some(info("a")) }, seconds(1));
    let [Action::Notify { attempt, result: Err(RejectReason::DuplicateName { name, holder }), .. }] =
        &actions[..]
    else {
        panic!("{actions:?}")
    };
    assert_eq!((name.as_ref(), holder.to_string().as_str()), ("a", "first-reg.sock"));
    let _ = registry.step(Event::Notified { attempt: *attempt, delivered: true }, seconds(1));

    let actions = registry.step(listing(&[("second-reg.sock", 2)]), seconds(2));
    assert_eq!(emitted(&actions), ["a: SocketRemoved"]);
    let attempt = only_call(&actions);
    let actions = registry.step(Event::Inspected { attempt, info: Some(info("a")) }, seconds(2));
    assert_eq!(emitted(&actions).len(), 1);
}

#[test]
fn driver_stays_registered_while_notification_is_retried() {
    let mut registry = Registry::new("/reg");
    let sockets = [("a-reg.sock", 1)];
    let attempt = only_call(&registry.step(listing(&sockets), ZERO));
    let mut actions = registry.step(Event::Inspected { attempt, info: Some(info("a")) }, ZERO);
    for round in 1..10 {
        let attempt = only_call(&actions);
        assert_eq!(registry.step(Event::Notified { attempt, delivered: false }, seconds(60 * round)), []);
        actions = registry.step(listing(&sockets), seconds(60 * (round + 1)));
        assert!(matches!(&actions[..], [Action::Notify { result: Ok(()), .. }]), "{actions:?}");
    }
}

#[test]
fn empty_endpoint_is_the_registration_socket() {
    let mut registry = Registry::new("/reg");
    let attempt = only_call(&registry.step(listing(&[("a-reg.sock", 1)]), ZERO));
    let info = PluginInfo { endpoint: String::new(), ..info("a") };
    let actions = registry.step(Event::Inspected { attempt, info: Some(info) }, ZERO);
    assert_eq!(emitted(&actions), ["a at unix:///reg/a-reg.sock"]);
}

#[test]
fn one_supported_version_is_sufficient() {
    for version in ["1.0.0", "v1.13", "1"] {
        let mut registry = Registry::new("/reg");
        let attempt = only_call(&registry.step(listing(&[("a-reg.sock", 1)]), ZERO));
        let listed = ["0.3.0", "2.0.0", version, "junk"].map(String::from).to_vec();
        let info = PluginInfo { supported_versions: listed, ..info("a") };
        let actions = registry.step(Event::Inspected { attempt, info: Some(info) }, ZERO);
        assert_eq!(emitted(&actions).len(), 1, "{version}: {actions:?}");
    }
}

#[test]
fn tracks_at_most_64_sockets_and_the_rest_later() {
    let mut registry = Registry::new("/reg");
    let names: Vec<_> = (0..70).map(|index| format!("{index:02}-reg.sock")).collect();
    let sockets: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let actions = registry.step(listing(&sockets), ZERO);
    assert_eq!((calls(&actions).len(), registry.untracked()), (64, 6));
    // A new socket that sorts first does not displace a tracked one.
    let more: Vec<_> = [("00-a", 1)].iter().chain(&sockets).copied().collect();
    assert_eq!((registry.step(listing(&more), ZERO), registry.untracked()), (vec![], 7));
    let actions = registry.step(listing(&sockets[10..]), ZERO);
    assert_eq!((calls(&actions).len(), registry.untracked()), (6, 0));
}

#[test]
fn names_with_a_leading_dot_are_ignored() {
    for bad in ["", ".", ".a-reg.sock", "..", "a/b"] {
        assert_eq!(SocketName::new(bad), None, "{bad}");
    }
    assert!(SocketName::new("a.-reg.sock").is_some());
}
