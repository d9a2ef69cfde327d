//! The two phases of an expansion, with one test for each hard case.

use volume_manager::advanced::lifecycle::{
    Call, Completed, DriverCapabilities, Effect, Event, Expansion, ExpansionPhase, Outcome, Policy,
    RejectReason, WaitReason, Waiter, outcome_of,
};
use volume_manager::driver::Attach;
use volume_manager::node::{Failure, Rpc};

use crate::cases::of;
use crate::script::{Finding, PUBLISH, STAGE, STAGES, Script, UNPUBLISH};

fn growing() -> Script {
    let capabilities = DriverCapabilities { controller_expand: true, node_expand: true, ..STAGES };
    let mut script = Script::new(Attach::NotRequired, capabilities);
    script.want("a").all_goes_well();
    script.calls.clear();
    script
}

const GROWN: Outcome = Outcome::Expanded { capacity_bytes: 20, node_expansion_required: true };

/// After a crash between the two phases the second phase follows.
#[test]
fn an_expansion_goes_on_from_its_half_after_a_crash_or_a_boot() {
    use Rpc::{ControllerExpandVolume, NodeExpandVolume};
    for boot in [false, true] {
        let mut script = growing();
        script.send(Event::Expand { required_bytes: 20 }).ends(GROWN);
        assert_eq!(script.methods(), [ControllerExpandVolume, NodeExpandVolume]);
        let owed = Expansion { required_bytes: 20, phase: ExpansionPhase::Node };
        assert_eq!(script.volume.snapshot().expansion, Some(owed));
        script.restarts(boot).all_goes_well();
        let expected = if boot { &[STAGE, PUBLISH, NodeExpandVolume][..] } else { &[NodeExpandVolume] };
        assert_eq!(script.methods(), expected);
        assert!(script.was_reported(&Completed::Expanded { capacity_bytes: 20 }));
        assert_eq!(script.volume.snapshot().expansion, None);
    }
}

/// A volume never shrinks, and a request for the current size makes no call.
#[test]
fn a_smaller_size_is_refused_and_an_equal_one_is_there() {
    let mut script = growing();
    script.send(Event::Expand { required_bytes: 15 }).ends(GROWN).all_goes_well();
    script.calls.clear();
    for required_bytes in [15, 20] {
        script.open.clear();
        script.send(Event::Expand { required_bytes });
        assert!(script.was_reported(&Completed::Expanded { capacity_bytes: 20 }), "{required_bytes}");
    }
    script.send(Event::Expand { required_bytes: 19 });
    let refusal = RejectReason::Shrink { required_bytes: 19, granted_bytes: 20 };
    assert_eq!(script.open.last(), Some(&Effect::Rejected(refusal)));
    assert_eq!(script.methods(), []);
}

/// In use, infeasible and uncertain.
#[test]
fn failed_expansion_is_retried_depending_on_its_code() {
    use Rpc::{ControllerExpandVolume, NodeExpandVolume};
    let failed =
        |rpc, failure| Effect::Failed { waiter: Waiter::Expansion, call: Call::of_volume(rpc), failure };
    // Infeasible: reported, abandoned, and the volume is unchanged.
    let mut script = growing();
    let before = script.volume.snapshot().clone();
    script.send(Event::Expand { required_bytes: 20 }).ends(outcome_of(ControllerExpandVolume, Some(11)));
    assert!(script.open.contains(&failed(ControllerExpandVolume, Failure::Infeasible)));
    assert_eq!(script.all_goes_well().methods(), [ControllerExpandVolume]);
    assert_eq!(script.volume.snapshot(), &before);
    // In use at the controller: reported and retried, because the use may end.
    script.send(Event::Expand { required_bytes: 20 }).ends(outcome_of(ControllerExpandVolume, Some(9)));
    assert!(script.open.contains(&failed(ControllerExpandVolume, Failure::Final)));
    script.resumes().ends(outcome_of(ControllerExpandVolume, None)).resumes().ends(GROWN);
    // In use at the node: not retried before a new request.
    script.ends(outcome_of(NodeExpandVolume, Some(9)));
    assert!(script.open.contains(&failed(NodeExpandVolume, Failure::NeverRetry)));
    script.resumes().send(Event::Proceed);
    assert_eq!(script.methods(), [vec![ControllerExpandVolume; 3], vec![NodeExpandVolume]].concat());
    assert_eq!(
        script.volume.wait_reason(),
        WaitReason::Request(NodeExpandVolume),
        "no other driver is waited for"
    );
    script.send(Event::Expand { required_bytes: 20 }).all_goes_well();
    assert_eq!(script.methods(), [NodeExpandVolume]);
    assert!(script.was_reported(&Completed::Expanded { capacity_bytes: 20 }));
}

/// A larger size that is requested during a call is reached after it.
#[test]
fn larger_size_during_a_call_is_reached_after_it() {
    use Rpc::{ControllerExpandVolume, NodeExpandVolume};
    for known in [0, 20] {
        let mut script = growing();
        let first = Outcome::Expanded { capacity_bytes: known, node_expansion_required: true };
        let then = Outcome::Expanded { capacity_bytes: 30, node_expansion_required: true };
        script.send(Event::Expand { required_bytes: 20 }).send(Event::Expand { required_bytes: 30 });
        script.ends(first).ends(then).all_goes_well();
        assert_eq!(script.methods(), [ControllerExpandVolume, ControllerExpandVolume, NodeExpandVolume]);
        assert_eq!(script.volume.snapshot().granted_bytes, 30);
        script
            .send(Event::Expand { required_bytes: 40 })
            .ends(Outcome::Ok)
            .send(Event::Expand { required_bytes: 50 });
        script.all_goes_well();
        let twice = [ControllerExpandVolume, NodeExpandVolume, ControllerExpandVolume, NodeExpandVolume];
        assert_eq!(script.methods(), twice);
        assert!(script.was_reported(&Completed::Expanded { capacity_bytes: 50 }));
    }
}

/// An unreachable controller does not affect consumers on the node.
#[test]
fn unavailable_controller_expand_delays_nothing() {
    use Rpc::{ControllerExpandVolume, NodeExpandVolume};
    let mut script = growing();
    script.send(Event::Expand { required_bytes: 20 }).ends(Outcome::Failed(Failure::Uncertain));
    script
        .want("b")
        .ends(Outcome::Ok)
        .shows(Finding::Agrees)
        .release("a")
        .ends(Outcome::Ok)
        .shows(Finding::Agrees);
    assert_eq!(script.called(), [(ControllerExpandVolume, None), (PUBLISH, of("b")), (UNPUBLISH, of("a"))]);
    assert!(script.volume.may_be_running(&Call::of_volume(ControllerExpandVolume)));
    script.restarts(true);
    script.ends(Outcome::Ok).shows(Finding::Agrees);
    assert_eq!(script.methods(), [STAGE, PUBLISH], "after a boot the consumer comes first");
    script.all_goes_well();
    assert_eq!(script.methods(), [ControllerExpandVolume, NodeExpandVolume]);
}

/// A node phase that never returns blocks the volume once, up to the policy's bound, and not repeatedly.
#[test]
fn the_count_of_unknown_ends_is_kept_over_the_bound() {
    let mut script = growing();
    script.send(Event::Expand { required_bytes: 20 }).ends(GROWN);
    for _ in 0..Policy::default().quiesce_attempts.unwrap() {
        script.resumes().ends(Outcome::Failed(Failure::Uncertain));
    }
    assert_eq!(script.volume.uncertain_call(), None);
    script.resumes().ends(Outcome::Failed(Failure::Uncertain));
    assert_eq!(script.volume.uncertain_call(), None, "it does not begin anew");
    script.calls.clear();
    script.want("b").all_goes_well();
    assert_eq!(script.methods()[0], PUBLISH);
}

/// The last consumer is released while the controller returns errors: the volume does not wait for the expansion.
#[test]
fn expansion_of_an_unused_volume_is_abandoned() {
    use Rpc::ControllerExpandVolume;
    let mut script = growing();
    script.send(Event::Expand { required_bytes: 20 }).ends(Outcome::Failed(Failure::Final)).release("a");
    for _ in 0..2 {
        script.ends(Outcome::Ok).shows(Finding::Agrees);
    }
    let (waiter, call) = (Waiter::Expansion, Call::of_volume(ControllerExpandVolume));
    assert!(script.open.contains(&Effect::Failed { waiter, call, failure: Failure::Abandoned }));
    assert!(script.is_forgotten());
}

/// The driver's reported size is compared with the requested size.
#[test]
fn ok_with_too_few_bytes_is_reported_and_retried() {
    use Rpc::ControllerExpandVolume;
    let mut script = growing();
    let small = Outcome::Expanded { capacity_bytes: 19, node_expansion_required: true };
    script.send(Event::Expand { required_bytes: 20 }).ends(small);
    let (waiter, call) = (Waiter::Expansion, Call::of_volume(ControllerExpandVolume));
    assert!(script.open.contains(&Effect::Failed { waiter, call: call.clone(), failure: Failure::TooSmall }));
    assert_eq!(
        (script.volume.wait_reason(), script.volume.uncertain_call()),
        (WaitReason::BackOff(call), None)
    );
}
