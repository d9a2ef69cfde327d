//! Hard cases, each from a bug in the field.

use volume_manager::advanced::lifecycle::{
    Base, Call, Completed, DriverCapabilities, Effect, Event, LostMount, Outcome, Policy, TargetState,
    Volume, WaitReason, Waiter, outcome_of,
};
use volume_manager::driver::Attach;
use volume_manager::node::{Failure, Mismatch, Rpc, VolumeState};

use crate::script::{Finding, PUBLISH, STAGE, STAGES, Script, UNPUBLISH, UNSTAGE, consumer, step};

pub(crate) fn of(name: &str) -> Option<String> {
    Some(name.to_owned())
}

#[test]
fn volumes_pass_the_states_of_the_figures_up_and_down() {
    use Rpc::{ControllerPublishVolume as ATTACHES, ControllerUnpublishVolume as DETACHES};
    let (attach, stage) = ([false, true], [false, true]);
    for (figure, attach, publish_unpublish, stage_unstage, up, down) in [
        ("5 and 7", Attach::Here, attach[1], stage[0], &[ATTACHES, PUBLISH][..], &[UNPUBLISH, DETACHES][..]),
        (
            "6",
            Attach::Here,
            attach[1],
            stage[1],
            &[ATTACHES, STAGE, PUBLISH],
            &[UNPUBLISH, UNSTAGE, DETACHES],
        ),
        ("8", Attach::Here, attach[0], stage[0], &[PUBLISH], &[UNPUBLISH]),
        ("6 without attach", Attach::Here, attach[0], stage[1], &[STAGE, PUBLISH], &[UNPUBLISH, UNSTAGE]),
        ("5, attached elsewhere", Attach::NotRequired, attach[1], stage[0], &[PUBLISH], &[UNPUBLISH]),
        (
            "6, attached elsewhere",
            Attach::NotRequired,
            attach[1],
            stage[1],
            &[STAGE, PUBLISH],
            &[UNPUBLISH, UNSTAGE],
        ),
    ] {
        let capabilities =
            DriverCapabilities { publish_unpublish, stage_unstage, ..DriverCapabilities::default() };
        let mut script = Script::new(attach, capabilities);
        let bottom = script.volume.state();
        assert_eq!(script.want("a").all_goes_well().methods(), up, "figure {figure}, up");
        assert_eq!(
            (script.volume.state(), script.volume.goal()),
            (VolumeState::Published, VolumeState::Published)
        );
        assert!(script.was_reported(&Completed::Published(consumer("a"))), "figure {figure}");
        assert_eq!(script.release("a").all_goes_well().methods(), down, "figure {figure}, down");
        assert_eq!((script.volume.state(), script.volume.goal()), (bottom, bottom), "figure {figure}");
        assert!(script.was_reported(&Completed::Released(consumer("a"))), "figure {figure}");
        assert!(script.is_forgotten(), "figure {figure}");
    }
}

#[test]
fn sends_calls_only_after_a_durable_intent() {
    let volume = Volume::new(Attach::NotRequired, STAGES, Policy::default());
    let (volume, effects) = step(&volume, Event::Want(consumer("a")));
    assert_eq!(effects, [Effect::Record]);
    assert_eq!(volume.snapshot().base, Base::NodeStage);
    let (volume, effects) = step(&volume, Event::Recorded(false));
    assert_eq!((effects, volume.wait_reason()), (Vec::new(), WaitReason::Store));
    let (volume, effects) = step(&volume, Event::Want(consumer("b")));
    assert_eq!(effects, [], "only the owner of the store retries a failed commit");
    let (volume, effects) = step(&volume, Event::Proceed);
    assert_eq!(effects, [Effect::Record]);
    let (volume, effects) = step(&volume, Event::Release(consumer("b")));
    assert_eq!(effects, [], "one record at a time");
    let (volume, effects) = step(&volume, Event::Recorded(true));
    assert_eq!(effects, [Effect::Record], "what changed meanwhile");
    let (volume, effects) = step(&volume, Event::Recorded(true));
    assert_eq!(effects.last(), Some(&Effect::Call(Call::of_volume(STAGE))));
    assert_eq!(volume.wait_reason(), WaitReason::Call(Call::of_volume(STAGE)));
}

/// An unstage timed out and is still running when a consumer requests the volume. NodeStageVolume is not sent before
/// the unstage succeeds, so a late unmount cannot remove a new mount.
#[test]
fn new_consumer_waits_for_a_hung_unstage() {
    let mut script = Script::published(&["a"]);
    script.release("a").ends(Outcome::Ok).shows(Finding::Agrees);
    assert_eq!(script.methods(), [UNPUBLISH, UNSTAGE]);
    script.ends(Outcome::Failed(Failure::Uncertain)).want("a");
    assert_eq!(script.methods(), [], "the back-off runs");
    for _ in 0..20 {
        // The driver returns ABORTED while the first call is running.
        script.resumes().ends(outcome_of(UNSTAGE, Some(10)));
        assert_eq!(script.methods(), [UNSTAGE]);
    }
    script.all_goes_well();
    assert_eq!(script.methods(), [UNSTAGE, STAGE, PUBLISH]);
    assert!(script.was_reported(&Completed::Published(consumer("a"))));
}

/// A stage timed out and its consumer was released. The state machine repeats the stage until its outcome is known,
/// then undoes it.
#[test]
fn timed_out_stage_is_completed_and_undone() {
    let mut script = Script::staging();
    script.want("a").release("a").ends(Outcome::Failed(Failure::Uncertain));
    assert_eq!(script.volume.uncertain_call(), Some(&Call::of_volume(STAGE)));
    script.resumes();
    assert_eq!(script.methods(), [STAGE, STAGE], "its end is found out by repeating it");
    script.ends(Outcome::Ok).all_goes_well();
    assert_eq!(script.methods(), [UNSTAGE]);
    assert!(script.is_forgotten());
}

/// A driver that never responds cannot block a volume forever.
#[test]
fn quiescing_is_bounded_by_the_policy() {
    let mut script = Script::staging();
    script.want("a").release("a");
    for _ in 0..Policy::default().quiesce_attempts.unwrap() {
        assert_eq!(script.methods(), [STAGE]);
        script.ends(Outcome::Failed(Failure::Uncertain)).resumes();
    }
    script.all_goes_well();
    assert_eq!(script.methods(), [UNSTAGE]);
}

/// The driver restarted, so no earlier call is running.
#[test]
fn a_new_generation_of_the_driver_ends_quiescing() {
    let mut script = Script::staging();
    script
        .want("a")
        .release("a")
        .ends(Outcome::Failed(Failure::Uncertain))
        .send(Event::DriverRestarted(STAGES));
    script.all_goes_well();
    assert_eq!(script.methods(), [STAGE, UNSTAGE]);
    // If the driver restarts during a call, the outcome of that call is known too.
    let mut script = Script::staging();
    script
        .want("a")
        .release("a")
        .send(Event::DriverRestarted(STAGES))
        .ends(Outcome::Failed(Failure::Uncertain));
    assert_eq!(script.volume.uncertain_call(), None);
    script.all_goes_well();
    assert_eq!(script.methods(), [STAGE, UNSTAGE]);
}

/// NodeUnstageVolume unmounts and returns an error, then a publish is requested. The unstage is repeated before the
/// stage.
#[test]
fn publish_after_failed_unstage_unstages_and_stages_first() {
    let mut script = Script::published(&["a"]);
    script.release("a").ends(Outcome::Ok).shows(Finding::Agrees).ends(Outcome::Failed(Failure::Final));
    script.want("a").all_goes_well();
    assert_eq!(script.methods(), [UNPUBLISH, UNSTAGE, UNSTAGE, STAGE, PUBLISH]);
}

/// Two consumers are released one after the other, after a restart: exactly one unstage follows, at the end.
#[test]
fn consumers_are_counted_over_restarts_and_redeployed_drivers() {
    for redeployed in [false, true] {
        let mut script = Script::published(&["a", "b"]);
        script.restarts(false);
        if redeployed {
            script.send(Event::DriverRestarted(STAGES));
        }
        assert_eq!(script.methods(), [], "what is right is left alone");
        script.release("a").all_goes_well();
        assert_eq!(script.called(), [(UNPUBLISH, of("a"))]);
        assert_eq!(script.volume.state(), VolumeState::Published);
        script.restarts(false).release("b").all_goes_well();
        assert_eq!(script.called(), [(UNPUBLISH, of("b")), (UNSTAGE, None)]);
        assert!(script.is_forgotten());
    }
}

/// Repeated requests with one id count once.
#[test]
fn repeated_request_counts_once_and_is_answered_twice() {
    let mut script = Script::published(&["a"]);
    script.open.clear();
    script.want("a");
    assert!(script.was_reported(&Completed::Published(consumer("a"))));
    script.release("a").all_goes_well();
    assert_eq!(script.methods(), [UNPUBLISH, UNSTAGE]);
    script.open.clear();
    script.release("a");
    assert_eq!(
        script.open[0],
        Effect::Completed(Completed::Released(consumer("a"))),
        "nothing to release is released"
    );
}

/// UNIMPLEMENTED is not retried, waiters get the error, and another driver version may be called.
#[test]
fn unimplemented_call_is_retried_after_reconnect_only() {
    let mut script = Script::staging();
    script.want("a").ends(outcome_of(STAGE, Some(12)));
    let call = Call::of_volume(STAGE);
    let failed = |name: &str| Effect::Failed {
        waiter: Waiter::Consumer(consumer(name)),
        call: call.clone(),
        failure: Failure::NeverRetry,
    };
    assert!(script.open.contains(&failed("a")));
    assert!(!script.open.iter().any(|effect| matches!(effect, Effect::BackOff { .. })));
    script.resumes().send(Event::Proceed).want("b");
    assert!(script.open.contains(&failed("b")), "a later waiter gets the error too");
    assert_eq!(
        (script.methods(), script.volume.wait_reason()),
        (vec![STAGE], WaitReason::OtherDriver(STAGE))
    );
    script.send(Event::DriverRestarted(STAGES)).all_goes_well();
    assert_eq!(script.methods(), [STAGE, PUBLISH, PUBLISH]);
}

/// NOT_FOUND during teardown is success only if nothing is mounted.
#[test]
fn not_found_on_teardown_counts_if_the_mount_table_agrees() {
    let mut script = Script::published(&["a"]);
    script.release("a").ends(outcome_of(UNPUBLISH, Some(5))).shows(Finding::STILL_THERE).resumes();
    assert_eq!(script.methods(), [UNPUBLISH, UNPUBLISH]);
    script.ends(outcome_of(UNPUBLISH, Some(5))).shows(Finding::Agrees);
    script.ends(outcome_of(UNSTAGE, Some(5))).shows(Finding::Agrees);
    assert_eq!(script.methods(), [UNSTAGE]);
    assert!(script.is_forgotten());
}

/// A final error is returned to waiters; the volume remains desired and is retried.
#[test]
fn final_error_is_returned_and_retried_while_desired() {
    let mut script = Script::staging();
    script.want("a").ends(outcome_of(STAGE, Some(13)));
    let call = Call::of_volume(STAGE);
    let waiter = Waiter::Consumer(consumer("a"));
    assert!(script.open.contains(&Effect::Failed { waiter, call: call.clone(), failure: Failure::Final }));
    let back_off = Effect::BackOff { call: call.clone(), failure: Failure::Final, attempt: 1 };
    assert_eq!(script.open.last(), Some(&back_off));
    assert_eq!(script.volume.wait_reason(), WaitReason::BackOff(call.clone()));
    script.want("a");
    assert_eq!(script.methods(), [STAGE], "asking again does not shorten the wait");
    script.resumes().ends(Outcome::Failed(Failure::Final));
    assert_eq!(script.open.last(), Some(&Effect::BackOff { call, failure: Failure::Final, attempt: 2 }));
    script.all_goes_well();
    assert!(script.was_reported(&Completed::Published(consumer("a"))));
    assert_eq!(script.volume.failed_calls().count(), 0);
}

/// OK without mounting.
#[test]
fn a_stage_or_publish_that_mounted_nothing_is_repeated() {
    let mut script = Script::staging();
    script.want("a").ends(Outcome::Ok).shows(Finding::MISSING).resumes();
    assert_eq!(script.methods(), [STAGE, STAGE]);
    script.ends(Outcome::Ok).shows(Finding::Agrees).ends(Outcome::Ok).shows(Finding::MISSING);
    assert!(!script.was_reported(&Completed::Published(consumer("a"))));
    let call = Call::of_target(PUBLISH, consumer("a"));
    let failure = Failure::Contradicted(Mismatch::Missing);
    assert_eq!(script.open.last(), Some(&Effect::BackOff { call, failure, attempt: 1 }));
    script.all_goes_well();
    assert_eq!(script.methods(), [PUBLISH, PUBLISH]);
}

/// OK without unmounting.
#[test]
fn an_unpublish_or_unstage_that_left_its_mount_is_repeated() {
    let mut script = Script::published(&["a"]);
    script.release("a").ends(Outcome::Ok).shows(Finding::STILL_THERE);
    assert!(!script.was_reported(&Completed::Released(consumer("a"))));
    script.resumes().ends(Outcome::Ok).shows(Finding::Agrees);
    assert!(script.was_reported(&Completed::Released(consumer("a"))));
    script.ends(Outcome::Ok).shows(Finding::STILL_THERE).all_goes_well();
    assert_eq!(script.methods(), [UNPUBLISH, UNPUBLISH, UNSTAGE, UNSTAGE]);
}

/// Another device, or a device mounted twice, is undone first. The retry is in back-off, so there is no hot loop.
#[test]
fn wrong_mount_is_undone_before_the_retry() {
    let mut script = Script::staging();
    script.want("a").ends(Outcome::Ok).shows(Finding::WRONG);
    script.ends(Outcome::Ok).shows(Finding::Agrees);
    assert_eq!(script.methods(), [STAGE, UNSTAGE]);
    script.resumes().ends(Outcome::Ok).shows(Finding::Agrees).ends(Outcome::Ok).shows(Finding::WRONG);
    script.ends(Outcome::Ok).shows(Finding::Agrees);
    assert_eq!(script.methods(), [STAGE, PUBLISH, UNPUBLISH]);
    script.resumes().ends(Outcome::Ok).shows(Finding::WRONG).ends(Outcome::Ok).shows(Finding::Agrees);
    assert_eq!(script.methods(), [PUBLISH, UNPUBLISH]);
    let attempts: Vec<_> = script.volume.failed_calls().map(|failed| failed.attempts).collect();
    assert_eq!(attempts, [2], "the waits grow");
    script.all_goes_well();
    assert!(script.was_reported(&Completed::Published(consumer("a"))));
}

/// A publish takes effect and returns an error. A later release leaves nothing behind.
#[test]
fn failed_publish_is_unpublished_after_release() {
    let mut script = Script::staging();
    script
        .want("a")
        .ends(Outcome::Ok)
        .shows(Finding::Agrees)
        .ends(Outcome::Failed(Failure::Final))
        .release("a")
        .all_goes_well();
    assert_eq!(script.methods(), [STAGE, PUBLISH, UNPUBLISH, UNSTAGE]);
}

#[test]
fn failing_target_does_not_delay_another() {
    let mut script = Script::published(&["a"]);
    script
        .release("a")
        .ends(Outcome::Failed(Failure::Final))
        .want("b")
        .ends(Outcome::Ok)
        .shows(Finding::Agrees);
    assert_eq!(script.called(), [(UNPUBLISH, of("a")), (PUBLISH, of("b"))]);
    assert!(script.was_reported(&Completed::Published(consumer("b"))));
    // A call that may still be running does block: the driver gets one call at a time for a volume.
    let mut script = Script::published(&["a"]);
    script.release("a").ends(Outcome::Failed(Failure::Uncertain)).want("b");
    assert_eq!(script.called(), [(UNPUBLISH, of("a"))]);
    script.all_goes_well();
    assert_eq!(script.called(), [(UNPUBLISH, of("a")), (PUBLISH, of("b"))]);
}

#[test]
fn volume_in_foreign_use_is_not_unstaged() {
    let mut script = Script::published(&["a"]);
    script.release("a").ends(Outcome::Ok).shows(Finding::Agrees);
    for failure in [Failure::InUse, Failure::NotSent, Failure::InUse] {
        assert_eq!(script.volume.in_flight(), Some(&Call::of_volume(UNSTAGE)));
        script.ends(Outcome::Failed(failure));
        let base = script.volume.snapshot().base;
        assert_eq!(base, Base::VolReady, "the intent is undone, so a new consumer needs no stage");
        assert_eq!(script.volume.failed_calls().map(|failed| failed.failure).collect::<Vec<_>>(), [failure]);
        script.resumes();
    }
    script.ends(Outcome::Failed(Failure::InUse));
    script.methods();
    script.want("a").all_goes_well();
    assert_eq!(script.methods(), [PUBLISH]);
    // A call with an unknown outcome is repeated, however long the foreign use lasts.
    script.release("a").ends(Outcome::Ok).shows(Finding::Agrees).ends(Outcome::Failed(Failure::Uncertain));
    script.resumes().ends(Outcome::Failed(Failure::InUse));
    assert_eq!(script.volume.uncertain_call(), Some(&Call::of_volume(UNSTAGE)));
    assert_eq!(script.volume.snapshot().base, Base::NodeUnstage);
}

/// A reboot removes all mounts. The desired set is on disk, and the mounts are restored without a request.
#[test]
fn desired_volumes_are_restored_after_a_boot() {
    let mut script = Script::published(&["a", "b"]);
    script.restarts(true);
    assert_eq!(script.volume.state(), VolumeState::NodeStage);
    script.all_goes_well();
    assert_eq!(script.called(), [(STAGE, None), (PUBLISH, of("a")), (PUBLISH, of("b"))]);
    // Unwanted volumes still require an unpublish and an unstage, which the driver may depend on.
    let mut script = Script::published(&["a", "b"]);
    script.release("a").restarts(true).all_goes_well();
    assert_eq!(
        script.called(),
        [(UNPUBLISH, of("a")), (UNPUBLISH, of("a")), (STAGE, None), (PUBLISH, of("b"))]
    );
}

/// A staging mount that is lost below active consumers is restored in the permitted order.
#[test]
fn a_lost_staging_is_healed_by_unpublish_unstage_stage_publish() {
    let mut script = Script::published(&["a", "b"]);
    script.open.clear();
    script.send(Event::MountLost(LostMount::Staging)).all_goes_well();
    assert_eq!(script.methods(), [UNPUBLISH, UNPUBLISH, UNSTAGE, STAGE, PUBLISH, PUBLISH]);
    for name in ["a", "b"] {
        assert!(
            script.was_reported(&Completed::Published(consumer(name))),
            "{name} is notified of the restored mount"
        );
    }
    script.send(Event::MountLost(LostMount::Target(consumer("b")))).all_goes_well();
    assert_eq!(script.called(), [(UNPUBLISH, of("b")), (PUBLISH, of("b"))]);
}

/// If a republish with new secrets fails, the active mount and its record stay.
#[test]
fn a_republish_that_fails_leaves_the_target_published() {
    for (code, again) in [(Some(16), false), (Some(12), false), (Some(14), true), (None, true)] {
        let mut script = Script::published(&["a"]);
        let before = script.volume.snapshot().clone();
        script.send(Event::Republish(consumer("a"))).ends(outcome_of(PUBLISH, code));
        assert_eq!(script.volume.state(), VolumeState::Published);
        assert_eq!(script.volume.snapshot() == &before, !again, "{code:?}");
        script.all_goes_well();
        assert_eq!(script.volume.snapshot(), &before);
        let calls = if again { 2 } else { 1 };
        assert_eq!(script.methods(), vec![PUBLISH; calls], "{code:?}: nothing is ever unpublished");
    }
}

#[test]
fn an_awaited_attach_is_waited_for_and_never_called_for() {
    let capabilities = DriverCapabilities { publish_unpublish: true, ..STAGES };
    let mut script = Script::new(Attach::Awaited, capabilities);
    script.want("a");
    assert_eq!((script.methods(), script.volume.wait_reason()), (vec![], WaitReason::Attach));
    script.send(Event::Attached).all_goes_well();
    assert_eq!(script.methods(), [STAGE, PUBLISH]);
    script.restarts(true).all_goes_well();
    assert_eq!(
        script.methods(),
        [STAGE, PUBLISH],
        "a boot with the cloud away: the attach is still recorded"
    );
    script.send(Event::Detached).all_goes_well();
    assert_eq!(script.methods(), [UNPUBLISH, UNSTAGE]);
    assert_eq!(
        (script.volume.state(), script.volume.wait_reason()),
        (VolumeState::Created, WaitReason::Attach)
    );
    script.send(Event::Attached).all_goes_well().release("a").all_goes_well();
    assert_eq!(script.methods(), [STAGE, PUBLISH, UNPUBLISH, UNSTAGE]);
    assert!(script.is_forgotten());
}

/// The record is consistent whichever future is dropped. Nothing is reported early, and duplicate, late or misdirected
/// events change nothing.
#[test]
fn ends_of_unknown_calls_change_nothing() {
    let mut script = Script::published(&["a"]);
    script.release("a");
    let volume = script.volume.clone();
    for rpc in Rpc::ALL {
        for name in ["a", "b"] {
            let call = match rpc {
                PUBLISH | UNPUBLISH => Call::of_target(rpc, consumer(name)),
                _ => Call::of_volume(rpc),
            };
            if volume.in_flight() == Some(&call) {
                continue;
            }
            let failures = [Failure::Final, Failure::Uncertain, Failure::NeverRetry, Failure::InUse];
            for outcome in failures.map(Outcome::Failed).into_iter().chain([Outcome::Ok]) {
                let event = Event::Finished { call: call.clone(), outcome };
                assert_eq!(step(&volume, event), (volume.clone(), Vec::new()), "{call} {outcome:?}");
            }
            assert_eq!(step(&volume, Event::Resume(call)), (volume.clone(), Vec::new()));
        }
    }
    for durable in [true, false] {
        assert_eq!(step(&volume, Event::Recorded(durable)), (volume.clone(), Vec::new()));
    }
    assert_eq!(step(&volume, Event::Attached), (volume.clone(), Vec::new()));
    assert_eq!(step(&volume, Event::Republish(consumer("a"))), (volume.clone(), Vec::new()));
}

/// Foreign data is at the target, so each publish is prevented. No driver is requested to remove the data.
#[test]
fn what_was_never_sent_is_not_undone() {
    let mut script = Script::staging();
    script.want("a").ends(Outcome::Ok).shows(Finding::Agrees).ends(Outcome::Failed(Failure::NotSent));
    let call = Call::of_target(PUBLISH, consumer("a"));
    let waiter = Waiter::Consumer(consumer("a"));
    assert!(script.open.contains(&Effect::Failed { waiter, call: call.clone(), failure: Failure::NotSent }));
    assert_eq!(script.volume.snapshot().targets[&consumer("a")].state, TargetState::Absent);
    assert_eq!((script.volume.snapshot().calling.as_ref(), script.volume.uncertain_call()), (None, None));
    assert_eq!(script.volume.wait_reason(), WaitReason::BackOff(call));
    script.resumes().ends(Outcome::Failed(Failure::NotSent)).release("a");
    assert!(script.was_reported(&Completed::Released(consumer("a"))));
    script.all_goes_well();
    assert_eq!(script.methods(), [STAGE, PUBLISH, PUBLISH, UNSTAGE]);
    // An earlier publish was sent, so its mount may exist.
    let mut script = Script::published(&["a"]);
    script
        .want("b")
        .ends(Outcome::Failed(Failure::Final))
        .resumes()
        .ends(Outcome::Failed(Failure::NotSent))
        .release("b")
        .all_goes_well();
    assert_eq!(script.called(), [(PUBLISH, of("b")), (PUBLISH, of("b")), (UNPUBLISH, of("b"))]);
    // The earlier publish may still be running.
    let mut script = Script::published(&["a"]);
    script
        .want("b")
        .ends(Outcome::Failed(Failure::Uncertain))
        .resumes()
        .ends(Outcome::Failed(Failure::NotSent))
        .release("b");
    assert_eq!(script.volume.uncertain_call(), Some(&Call::of_target(PUBLISH, consumer("b"))));
    // The same applies to an attach and an unstage.
    let capabilities = DriverCapabilities { publish_unpublish: true, ..STAGES };
    let mut script = Script::new(Attach::Here, capabilities);
    script.want("a").ends(Outcome::Failed(Failure::NotSent)).release("a");
    assert!(script.is_forgotten());
    assert_eq!(script.methods(), [Rpc::ControllerPublishVolume]);
    let mut script = Script::published(&["a"]);
    script.release("a").ends(Outcome::Ok).shows(Finding::Agrees).ends(Outcome::Failed(Failure::NotSent));
    assert_eq!(script.volume.snapshot().base, Base::VolReady);
    script.want("a").all_goes_well();
    assert_eq!(script.methods(), [UNPUBLISH, UNSTAGE, PUBLISH], "it is still staged");
}

/// A consumer that is released while its publish is being recorded was never published.
#[test]
fn obsolete_intent_is_undone_before_its_call() {
    let mut script = Script::published(&["a"]);
    let (volume, effects) = step(&script.volume, Event::Want(consumer("b")));
    assert_eq!(effects, [Effect::Record]);
    let (volume, effects) = step(&volume, Event::Release(consumer("b")));
    assert_eq!(effects, []);
    script.volume = volume;
    script.send(Event::Recorded(true));
    assert!(script.was_reported(&Completed::Released(consumer("b"))));
    assert_eq!(script.methods(), []);
}

/// A repeated release returns the same final error.
#[test]
fn releases_are_answered_without_unpublish_support() {
    let mut script = Script::published(&["a"]);
    let call = Call::of_target(UNPUBLISH, consumer("a"));
    let waiter = Waiter::Consumer(consumer("a"));
    let failed = Effect::Failed { waiter, call, failure: Failure::NeverRetry };
    script.release("a").ends(outcome_of(UNPUBLISH, Some(12)));
    assert_eq!(script.open.iter().filter(|effect| **effect == failed).count(), 1);
    script.open.clear();
    script.release("a");
    assert_eq!(script.open, [failed]);
    script.open.clear();
    script.send(Event::Proceed);
    assert_eq!(script.open, []);
}

/// The driver stacks a second mount with each republish. The active consumer keeps its volume.
#[test]
fn a_republish_that_stacks_a_mount_leaves_the_target_published() {
    let mut script = Script::published(&["a"]);
    let before = script.volume.snapshot().clone();
    for _ in 0..3 {
        script.send(Event::Republish(consumer("a"))).ends(Outcome::Ok).shows(Finding::WRONG).all_goes_well();
    }
    assert_eq!(script.methods(), [PUBLISH; 3]);
    assert_eq!(script.volume.snapshot(), &before);
    // A missing mount is lost, and its consumer is notified when it is restored.
    script.open.clear();
    script.send(Event::Republish(consumer("a"))).ends(Outcome::Ok).shows(Finding::MISSING).all_goes_well();
    assert_eq!(script.methods(), [PUBLISH, UNPUBLISH, PUBLISH]);
    assert!(script.was_reported(&Completed::Published(consumer("a"))));
}

/// A request for a published target succeeds, even if its republish fails.
#[test]
fn request_during_a_failing_republish_succeeds() {
    let mut script = Script::published(&["a"]);
    script.open.clear();
    script.send(Event::Republish(consumer("a"))).want("a");
    assert!(script.was_reported(&Completed::Published(consumer("a"))));
    script.ends(Outcome::Failed(Failure::Final));
    assert!(!script.open.iter().any(|effect| matches!(effect, Effect::Failed { .. })), "{:?}", script.open);
}
