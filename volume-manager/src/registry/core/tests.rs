//! The registry in virtual time: listings and answers in, actions out.

use std::time::Duration;

use csi_proto::pluginregistration::v1::PluginInfo;

use super::{Action, Attempt, Event, Generation, Registry, SocketFile, SocketName};
use crate::registry::{DeregistrationReason, DriverEvent, Refusal};

const ZERO: Duration = Duration::ZERO;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn name(text: &str) -> SocketName {
    SocketName::new(text).expect("a socket name")
}

fn listing(sockets: &[(&str, u64)]) -> Event {
    let file =
        |&(text, inode)| SocketFile { name: name(text), generation: Generation { inode, modified_nanos: 0 } };
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

/// The calls among the actions: whether it is GetInfo, on which socket, and its name.
fn calls(actions: &[Action]) -> Vec<(bool, String, Attempt)> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Inspect { attempt, socket } => Some((true, socket.to_string(), *attempt)),
            Action::Notify { attempt, socket, .. } => Some((false, socket.to_string(), *attempt)),
            Action::Ignored { .. } | Action::Abandon(_) | Action::Tell(_) => None,
        })
        .collect()
}

fn only_call(actions: &[Action]) -> Attempt {
    let calls = calls(actions);
    assert_eq!(calls.len(), 1, "{actions:?}");
    calls[0].2
}

fn told(actions: &[Action]) -> Vec<String> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Tell(DriverEvent::Registered { name, endpoint, .. }) => {
                Some(format!("{name} at {endpoint}"))
            }
            Action::Tell(DriverEvent::Deregistered { name, reason }) => Some(format!("{name}: {reason:?}")),
            _ => None,
        })
        .collect()
}

/// A registry with one registered driver, whose registrar knows.
fn registered(socket: &str, driver: &str) -> Registry {
    let mut registry = Registry::new("/reg");
    let attempt = only_call(&registry.step(listing(&[(socket, 1)]), ZERO));
    let actions = registry.step(Event::Inspected { attempt, info: Some(info(driver)) }, ZERO);
    assert_eq!(told(&actions), [format!("{driver} at unix:///plugins/{driver}/csi.sock")]);
    let attempt = only_call(&actions);
    assert_eq!(registry.step(Event::Notified { attempt, delivered: true }, ZERO), []);
    registry
}

#[test]
fn a_driver_is_announced_before_its_registrar_is_told_and_then_left_alone() {
    let mut registry = Registry::new("/reg");
    let attempt = only_call(&registry.step(listing(&[("a-reg.sock", 1)]), ZERO));
    let actions = registry.step(Event::Inspected { attempt, info: Some(info("a")) }, ZERO);
    assert!(matches!(&actions[..], [Action::Tell(_), Action::Notify { verdict: Ok(()), .. }]), "{actions:?}");
    let attempt = only_call(&actions);
    assert_eq!(registry.step(Event::Notified { attempt, delivered: true }, ZERO), []);
    for hour in 1..48 {
        assert_eq!(registry.step(listing(&[("a-reg.sock", 1)]), seconds(3600 * hour)), []);
    }
}

#[test]
fn a_removed_socket_ends_the_registration_and_a_new_one_begins_another() {
    let mut registry = registered("a-reg.sock", "a");
    let actions = registry.step(listing(&[]), seconds(1));
    let reason = DeregistrationReason::SocketRemoved;
    let name = "a".parse().expect("a driver name");
    assert_eq!(actions, [Action::Tell(DriverEvent::Deregistered { name, reason })]);
    assert_eq!(registry.step(listing(&[]), seconds(2)), []);

    let attempt = only_call(&registry.step(listing(&[("a-reg.sock", 1)]), seconds(3)));
    let actions = registry.step(Event::Inspected { attempt, info: Some(info("a")) }, seconds(3));
    assert_eq!(told(&actions).len(), 1);
}

#[test]
fn a_replaced_socket_is_a_new_generation_even_with_the_same_inode() {
    for (inode, modified_nanos) in [(2, 0), (1, 5)] {
        let mut registry = registered("a-reg.sock", "a");
        let generation = Generation { inode, modified_nanos };
        let files = vec![SocketFile { name: name("a-reg.sock"), generation }];
        let actions = registry.step(Event::Listed(files), seconds(1));
        assert_eq!(told(&actions), ["a: SocketReplaced"]);
        assert_eq!(calls(&actions).len(), 1, "the new one is asked at once: {actions:?}");
    }
}

#[test]
fn the_call_of_a_socket_that_went_is_abandoned_and_its_end_ignored() {
    let mut registry = Registry::new("/reg");
    let old = only_call(&registry.step(listing(&[("a-reg.sock", 1)]), ZERO));
    let actions = registry.step(listing(&[("a-reg.sock", 2)]), seconds(1));
    assert_eq!(actions[0], Action::Abandon(old));
    let new = only_call(&actions);
    assert_eq!(registry.step(Event::Inspected { attempt: old, info: Some(info("old")) }, seconds(1)), []);
    let actions = registry.step(Event::Inspected { attempt: new, info: Some(info("new")) }, seconds(1));
    assert_eq!(told(&actions), ["new at unix:///plugins/new/csi.sock"]);
}

#[test]
fn a_registrar_without_an_answer_is_asked_again_ever_less_often_but_at_least_each_minute() {
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
fn one_registrar_that_hangs_holds_up_no_other() {
    let mut registry = Registry::new("/reg");
    let both = [("hangs-reg.sock", 1), ("works-reg.sock", 2)];
    let actions = registry.step(listing(&both), ZERO);
    let asked = calls(&actions);
    assert_eq!(asked.len(), 2);
    let actions = registry.step(Event::Inspected { attempt: asked[1].2, info: Some(info("works")) }, ZERO);
    assert_eq!(told(&actions).len(), 1);
    // Nobody asks twice while the first call lasts.
    assert_eq!(registry.step(listing(&both), seconds(900)), []);
}

#[test]
fn every_fault_of_a_plugin_is_refused_with_its_field_and_asked_again() {
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
        let [Action::Notify { attempt, verdict: Err(refusal), .. }] = &actions[..] else {
            panic!("{expected}: {actions:?}")
        };
        assert!(crate::excerpt::chain(refusal).starts_with(expected), "{expected}: {refusal}");
        let attempt = *attempt;
        assert_eq!(registry.step(listing(&sockets), seconds(90)), [], "the registrar is still being told");
        let _ = registry.step(Event::Notified { attempt, delivered: true }, seconds(90));
        assert_eq!(calls(&registry.step(listing(&sockets), seconds(180))).len(), 1, "{expected}");
    }
}

#[test]
fn a_plugin_of_another_type_is_told_nothing_and_left_alone_until_its_socket_is_replaced() {
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
fn a_refusal_quotes_no_more_than_a_line_of_what_it_refuses() {
    let info = PluginInfo { supported_versions: vec!["v".repeat(60_000)], ..info("a") };
    let mut registry = Registry::new("/reg");
    let attempt = only_call(&registry.step(listing(&[("a-reg.sock", 1)]), ZERO));
    let actions = registry.step(Event::Inspected { attempt, info: Some(info) }, ZERO);
    let [Action::Notify { verdict: Err(refusal), .. }] = &actions[..] else { panic!("{actions:?}") };
    assert!(refusal.to_string().len() < 200, "{refusal}");
}

#[test]
fn a_name_belongs_to_the_first_who_holds_it_and_is_free_when_that_one_goes() {
    let mut registry = registered("first-reg.sock", "a");
    let both = [("first-reg.sock", 1), ("second-reg.sock", 2)];
    let attempt = only_call(&registry.step(listing(&both), seconds(1)));
    let actions = registry.step(Event::Inspected { attempt, info: Some(info("a")) }, seconds(1));
    let [Action::Notify { attempt, verdict: Err(Refusal::DuplicateName { name, holder }), .. }] =
        &actions[..]
    else {
        panic!("{actions:?}")
    };
    assert_eq!((name.as_ref(), holder.to_string().as_str()), ("a", "first-reg.sock"));
    let _ = registry.step(Event::Notified { attempt: *attempt, delivered: true }, seconds(1));

    let actions = registry.step(listing(&[("second-reg.sock", 2)]), seconds(2));
    assert_eq!(told(&actions), ["a: SocketRemoved"]);
    let attempt = only_call(&actions);
    let actions = registry.step(Event::Inspected { attempt, info: Some(info("a")) }, seconds(2));
    assert_eq!(told(&actions).len(), 1);
}

#[test]
fn a_driver_stays_registered_while_its_registrar_cannot_be_told_and_the_telling_goes_on() {
    let mut registry = Registry::new("/reg");
    let sockets = [("a-reg.sock", 1)];
    let attempt = only_call(&registry.step(listing(&sockets), ZERO));
    let mut actions = registry.step(Event::Inspected { attempt, info: Some(info("a")) }, ZERO);
    for round in 1..10 {
        let attempt = only_call(&actions);
        assert_eq!(registry.step(Event::Notified { attempt, delivered: false }, seconds(60 * round)), []);
        actions = registry.step(listing(&sockets), seconds(60 * (round + 1)));
        assert!(matches!(&actions[..], [Action::Notify { verdict: Ok(()), .. }]), "{actions:?}");
    }
}

#[test]
fn an_empty_endpoint_is_the_registration_socket_itself() {
    let mut registry = Registry::new("/reg");
    let attempt = only_call(&registry.step(listing(&[("a-reg.sock", 1)]), ZERO));
    let info = PluginInfo { endpoint: String::new(), ..info("a") };
    let actions = registry.step(Event::Inspected { attempt, info: Some(info) }, ZERO);
    assert_eq!(told(&actions), ["a at unix:///reg/a-reg.sock"]);
}

#[test]
fn one_supported_version_among_others_is_enough() {
    for version in ["1.0.0", "v1.13", "1"] {
        let mut registry = Registry::new("/reg");
        let attempt = only_call(&registry.step(listing(&[("a-reg.sock", 1)]), ZERO));
        let listed = ["0.3.0", "2.0.0", version, "junk"].map(String::from).to_vec();
        let info = PluginInfo { supported_versions: listed, ..info("a") };
        let actions = registry.step(Event::Inspected { attempt, info: Some(info) }, ZERO);
        assert_eq!(told(&actions).len(), 1, "{version}: {actions:?}");
    }
}

#[test]
fn no_more_than_64_sockets_are_looked_after_and_the_rest_get_their_turn() {
    let mut registry = Registry::new("/reg");
    let names: Vec<_> = (0..70).map(|index| format!("{index:02}-reg.sock")).collect();
    let sockets: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let actions = registry.step(listing(&sockets), ZERO);
    assert_eq!((calls(&actions).len(), registry.untracked()), (64, 6));
    // A new one that sorts first pushes nobody out.
    let more: Vec<_> = [("00-a", 1)].iter().chain(&sockets).copied().collect();
    assert_eq!((registry.step(listing(&more), ZERO), registry.untracked()), (vec![], 7));
    let actions = registry.step(listing(&sockets[10..]), ZERO);
    assert_eq!((calls(&actions).len(), registry.untracked()), (6, 0));
}

#[test]
fn names_that_begin_with_a_dot_are_no_sockets_yet() {
    for bad in ["", ".", ".a-reg.sock", "..", "a/b"] {
        assert_eq!(SocketName::new(bad), None, "{bad}");
    }
    assert!(SocketName::new("a.-reg.sock").is_some());
}
