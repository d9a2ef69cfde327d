//! The hard cases, each as it was met in the field.

use volume_manager::lifecycle::{
    Attach, Base, Call, DriverCapabilities, Effect, Event, Failure, Lost, Mismatch, Outcome, Policy, Reached,
    Rpc, TargetState, Volume, VolumeState, Waiter, Waits, outcome_of,
};

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
        assert!(script.was_told(&Reached::Published(consumer("a"))), "figure {figure}");
        assert_eq!(script.release("a").all_goes_well().methods(), down, "figure {figure}, down");
        assert_eq!((script.volume.state(), script.volume.goal()), (bottom, bottom), "figure {figure}");
        assert!(script.was_told(&Reached::Released(consumer("a"))), "figure {figure}");
        assert!(script.is_forgotten(), "figure {figure}");
    }
}

#[test]
fn a_call_is_sent_only_after_its_intent_is_durable_and_not_at_all_while_the_store_fails() {
    let volume = Volume::new(Attach::NotRequired, STAGES, Policy::default());
    let (volume, effects) = step(&volume, Event::Want(consumer("a")));
    assert_eq!(effects, [Effect::Record]);
    assert_eq!(volume.snapshot().base, Base::NodeStage);
    let (volume, effects) = step(&volume, Event::Recorded(false));
    assert_eq!((effects, volume.waits()), (Vec::new(), Waits::ForStore));
    let (volume, effects) = step(&volume, Event::Want(consumer("b")));
    assert_eq!(effects, [], "a store that failed is asked again by nobody but its owner");
    let (volume, effects) = step(&volume, Event::Proceed);
    assert_eq!(effects, [Effect::Record]);
    let (volume, effects) = step(&volume, Event::Release(consumer("b")));
    assert_eq!(effects, [], "one record at a time");
    let (volume, effects) = step(&volume, Event::Recorded(true));
    assert_eq!(effects, [Effect::Record], "what changed meanwhile");
    let (volume, effects) = step(&volume, Event::Recorded(true));
    assert_eq!(effects.last(), Some(&Effect::Call(Call::of_volume(STAGE))));
    assert_eq!(volume.waits(), Waits::ForCall(Call::of_volume(STAGE)));
}

/// Anchors (f) 4: the driver is still at an unstage that timed out when the consumer comes back. Stage is not sent before
/// the unstage has ended well, so a late umount has nothing fresh to take away.
#[test]
fn a_consumer_that_returns_during_a_hung_unstage_is_staged_only_after_it_ended() {
    let mut script = Script::published(&["a"]);
    script.release("a").ends(Outcome::Ok).shows(Finding::Agrees);
    assert_eq!(script.methods(), [UNPUBLISH, UNSTAGE]);
    script.ends(Outcome::Failed(Failure::Uncertain)).want("a");
    assert_eq!(script.methods(), [], "the back-off runs");
    for _ in 0..20 {
        // The driver says ABORTED while it is at the first one.
        script.resumes().ends(outcome_of(UNSTAGE, Some(10)));
        assert_eq!(script.methods(), [UNSTAGE]);
    }
    script.all_goes_well();
    assert_eq!(script.methods(), [UNSTAGE, STAGE, PUBLISH]);
    assert!(script.was_told(&Reached::Published(consumer("a"))));
}

/// Anchors (f) 5: stage timed out and the consumer is gone. The machine finds out how the stage ended, and undoes it.
#[test]
fn a_stage_that_timed_out_is_quiesced_and_negated_when_nobody_wants_it_any_more() {
    let mut script = Script::staging();
    script.want("a").release("a").ends(Outcome::Failed(Failure::Uncertain));
    assert_eq!(script.volume.suspect(), Some(&Call::of_volume(STAGE)));
    script.resumes();
    assert_eq!(script.methods(), [STAGE, STAGE], "its end is found out by repeating it");
    script.ends(Outcome::Ok).all_goes_well();
    assert_eq!(script.methods(), [UNSTAGE]);
    assert!(script.is_forgotten());
}

/// Anchors (f) 5: a driver that never answers cannot stall a volume for ever.
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

/// Anchors (f) 5: the driver's process was replaced, so nothing of the old call runs.
#[test]
fn a_new_generation_of_the_driver_ends_quiescing() {
    let mut script = Script::staging();
    script
        .want("a")
        .release("a")
        .ends(Outcome::Failed(Failure::Uncertain))
        .send(Event::NewGeneration(STAGES));
    script.all_goes_well();
    assert_eq!(script.methods(), [STAGE, UNSTAGE]);
    // And if it is replaced while a call is under way, the end of that one is no riddle either.
    let mut script = Script::staging();
    script
        .want("a")
        .release("a")
        .send(Event::NewGeneration(STAGES))
        .ends(Outcome::Failed(Failure::Uncertain));
    assert_eq!(script.volume.suspect(), None);
    script.all_goes_well();
    assert_eq!(script.methods(), [STAGE, UNSTAGE]);
}

/// Anchors (f) 6: unstage answered with an error, but has unmounted; then a publish is wanted. Stage is called again.
#[test]
fn after_an_unstage_that_failed_a_publish_is_preceded_by_unstage_and_stage() {
    let mut script = Script::published(&["a"]);
    script.release("a").ends(Outcome::Ok).shows(Finding::Agrees).ends(Outcome::Failed(Failure::Final));
    script.want("a").all_goes_well();
    assert_eq!(script.methods(), [UNPUBLISH, UNSTAGE, UNSTAGE, STAGE, PUBLISH]);
}

/// Anchors (f) 7: two consumers, a restart, one stops, then the other: exactly one unstage, at the end.
#[test]
fn consumers_are_counted_over_restarts_and_redeployed_drivers() {
    for redeployed in [false, true] {
        let mut script = Script::published(&["a", "b"]);
        script.restarts(false);
        if redeployed {
            script.send(Event::NewGeneration(STAGES));
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

/// Anchors (f) 7: asking twice under one id is asking once.
#[test]
fn a_consumer_that_asks_twice_counts_once_and_is_told_twice() {
    let mut script = Script::published(&["a"]);
    script.open.clear();
    script.want("a");
    assert!(script.was_told(&Reached::Published(consumer("a"))));
    script.release("a").all_goes_well();
    assert_eq!(script.methods(), [UNPUBLISH, UNSTAGE]);
    script.open.clear();
    script.release("a");
    assert_eq!(
        script.open[0],
        Effect::Reached(Reached::Released(consumer("a"))),
        "nothing to release is released"
    );
}

/// Anchors (f) 8: UNIMPLEMENTED is not repeated, those who wait are told, and another driver may be asked.
#[test]
fn what_a_driver_does_not_do_is_asked_of_its_next_generation_only() {
    let mut script = Script::staging();
    script.want("a").ends(outcome_of(STAGE, Some(12)));
    let call = Call::of_volume(STAGE);
    let told = |name: &str| Effect::Failed {
        waiter: Waiter::Consumer(consumer(name)),
        call: call.clone(),
        failure: Failure::NeverRetry,
    };
    assert!(script.open.contains(&told("a")));
    assert!(!script.open.iter().any(|effect| matches!(effect, Effect::BackOff { .. })));
    script.resumes().send(Event::Proceed).want("b");
    assert!(script.open.contains(&told("b")), "who comes later is told as well");
    assert_eq!((script.methods(), script.volume.waits()), (vec![STAGE], Waits::ForDriver(STAGE)));
    script.send(Event::NewGeneration(STAGES)).all_goes_well();
    assert_eq!(script.methods(), [STAGE, PUBLISH, PUBLISH]);
}

/// Anchors (f) 8: NOT_FOUND on the way down is success if nothing is mounted, and none if something is.
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

/// Anchors (f) 8: an error that is final is told to who waits; the volume stays wanted and is tried again.
#[test]
fn a_final_error_is_told_and_tried_again_while_it_is_wanted() {
    let mut script = Script::staging();
    script.want("a").ends(outcome_of(STAGE, Some(13)));
    let call = Call::of_volume(STAGE);
    let waiter = Waiter::Consumer(consumer("a"));
    assert!(script.open.contains(&Effect::Failed { waiter, call: call.clone(), failure: Failure::Final }));
    let back_off = Effect::BackOff { call: call.clone(), failure: Failure::Final, attempt: 1 };
    assert_eq!(script.open.last(), Some(&back_off));
    assert_eq!(script.volume.waits(), Waits::ForBackOff(call.clone()));
    script.want("a");
    assert_eq!(script.methods(), [STAGE], "asking again does not shorten the wait");
    script.resumes().ends(Outcome::Failed(Failure::Final));
    assert_eq!(script.open.last(), Some(&Effect::BackOff { call, failure: Failure::Final, attempt: 2 }));
    script.all_goes_well();
    assert!(script.was_told(&Reached::Published(consumer("a"))));
    assert_eq!(script.volume.troubles().count(), 0);
}

/// Anchors (f) 9: OK without mounting.
#[test]
fn a_stage_or_publish_that_mounted_nothing_is_repeated() {
    let mut script = Script::staging();
    script.want("a").ends(Outcome::Ok).shows(Finding::MISSING).resumes();
    assert_eq!(script.methods(), [STAGE, STAGE]);
    script.ends(Outcome::Ok).shows(Finding::Agrees).ends(Outcome::Ok).shows(Finding::MISSING);
    assert!(!script.was_told(&Reached::Published(consumer("a"))));
    let call = Call::of_target(PUBLISH, consumer("a"));
    let failure = Failure::Contradicted(Mismatch::Missing);
    assert_eq!(script.open.last(), Some(&Effect::BackOff { call, failure, attempt: 1 }));
    script.all_goes_well();
    assert_eq!(script.methods(), [PUBLISH, PUBLISH]);
}

/// Anchors (f) 9: OK without unmounting.
#[test]
fn an_unpublish_or_unstage_that_left_its_mount_is_repeated() {
    let mut script = Script::published(&["a"]);
    script.release("a").ends(Outcome::Ok).shows(Finding::STILL_THERE);
    assert!(!script.was_told(&Reached::Released(consumer("a"))));
    script.resumes().ends(Outcome::Ok).shows(Finding::Agrees);
    assert!(script.was_told(&Reached::Released(consumer("a"))));
    script.ends(Outcome::Ok).shows(Finding::STILL_THERE).all_goes_well();
    assert_eq!(script.methods(), [UNPUBLISH, UNPUBLISH, UNSTAGE, UNSTAGE]);
}

/// Anchors (f) 9: another device, or mounted twice. It is undone first, and the retry has to wait: no hot loop.
#[test]
fn what_is_wrongly_mounted_is_undone_before_the_call_is_repeated_after_a_back_off() {
    let mut script = Script::staging();
    script.want("a").ends(Outcome::Ok).shows(Finding::WRONG);
    script.ends(Outcome::Ok).shows(Finding::Agrees);
    assert_eq!(script.methods(), [STAGE, UNSTAGE]);
    script.resumes().ends(Outcome::Ok).shows(Finding::Agrees).ends(Outcome::Ok).shows(Finding::WRONG);
    script.ends(Outcome::Ok).shows(Finding::Agrees);
    assert_eq!(script.methods(), [STAGE, PUBLISH, UNPUBLISH]);
    script.resumes().ends(Outcome::Ok).shows(Finding::WRONG).ends(Outcome::Ok).shows(Finding::Agrees);
    assert_eq!(script.methods(), [PUBLISH, UNPUBLISH]);
    let attempts: Vec<_> = script.volume.troubles().map(|trouble| trouble.attempts).collect();
    assert_eq!(attempts, [2], "the waits grow");
    script.all_goes_well();
    assert!(script.was_told(&Reached::Published(consumer("a"))));
}

/// Anchors (f) 9: an error after success. Whoever gives up after it leaves nothing behind.
#[test]
fn a_publish_that_failed_is_unpublished_when_it_is_not_wanted_any_more() {
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
fn one_targets_trouble_does_not_hold_up_another() {
    let mut script = Script::published(&["a"]);
    script
        .release("a")
        .ends(Outcome::Failed(Failure::Final))
        .want("b")
        .ends(Outcome::Ok)
        .shows(Finding::Agrees);
    assert_eq!(script.called(), [(UNPUBLISH, of("a")), (PUBLISH, of("b"))]);
    assert!(script.was_told(&Reached::Published(consumer("b"))));
    // But what may still run does: the driver gets one call at a time for a volume.
    let mut script = Script::published(&["a"]);
    script.release("a").ends(Outcome::Failed(Failure::Uncertain)).want("b");
    assert_eq!(script.called(), [(UNPUBLISH, of("a"))]);
    script.all_goes_well();
    assert_eq!(script.called(), [(UNPUBLISH, of("a")), (PUBLISH, of("b"))]);
}

#[test]
fn nothing_is_unstaged_that_somebody_else_uses() {
    let mut script = Script::published(&["a"]);
    script.release("a").ends(Outcome::Ok).shows(Finding::Agrees);
    for failure in [Failure::InUse, Failure::NotSent, Failure::InUse] {
        assert_eq!(script.volume.in_flight(), Some(&Call::of_volume(UNSTAGE)));
        script.ends(Outcome::Failed(failure));
        let base = script.volume.snapshot().base;
        assert_eq!(base, Base::VolReady, "the intent is undone, so who comes back needs no stage");
        assert_eq!(script.volume.troubles().map(|trouble| trouble.failure).collect::<Vec<_>>(), [failure]);
        script.resumes();
    }
    script.ends(Outcome::Failed(Failure::InUse));
    script.methods();
    script.want("a").all_goes_well();
    assert_eq!(script.methods(), [PUBLISH]);
    // What is not known to have ended is asked for again, however long somebody else uses it.
    script.release("a").ends(Outcome::Ok).shows(Finding::Agrees).ends(Outcome::Failed(Failure::Uncertain));
    script.resumes().ends(Outcome::Failed(Failure::InUse));
    assert_eq!(script.volume.suspect(), Some(&Call::of_volume(UNSTAGE)));
    assert_eq!(script.volume.snapshot().base, Base::NodeUnstage);
}

/// Anchors (f) 1: a boot takes all mounts; what is wanted is on disk, and comes back without anybody's help.
#[test]
fn after_a_boot_everything_that_is_wanted_is_staged_and_published_again() {
    let mut script = Script::published(&["a", "b"]);
    script.restarts(true);
    assert_eq!(script.volume.state(), VolumeState::NodeStage);
    script.all_goes_well();
    assert_eq!(script.called(), [(STAGE, None), (PUBLISH, of("a")), (PUBLISH, of("b"))]);
    // What is not wanted is still owed its unpublish and its unstage, which the driver may wait for.
    let mut script = Script::published(&["a", "b"]);
    script.release("a").restarts(true).all_goes_well();
    assert_eq!(
        script.called(),
        [(UNPUBLISH, of("a")), (UNPUBLISH, of("a")), (STAGE, None), (PUBLISH, of("b"))]
    );
}

/// Anchors (f) 15: a staging that is lost under live consumers is healed in the legal order.
#[test]
fn a_lost_staging_is_healed_by_unpublish_unstage_stage_publish() {
    let mut script = Script::published(&["a", "b"]);
    script.open.clear();
    script.send(Event::Lost(Lost::Staging)).all_goes_well();
    assert_eq!(script.methods(), [UNPUBLISH, UNPUBLISH, UNSTAGE, STAGE, PUBLISH, PUBLISH]);
    for name in ["a", "b"] {
        assert!(script.was_told(&Reached::Published(consumer(name))), "{name} is told that it is back");
    }
    script.send(Event::Lost(Lost::Target(consumer("b")))).all_goes_well();
    assert_eq!(script.called(), [(UNPUBLISH, of("b")), (PUBLISH, of("b"))]);
}

/// Anchors (f) 21: a republish with new secrets fails. The live mount and its record stay.
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
    assert_eq!((script.methods(), script.volume.waits()), (vec![], Waits::ForAttach));
    script.send(Event::Attached).all_goes_well();
    assert_eq!(script.methods(), [STAGE, PUBLISH]);
    script.restarts(true).all_goes_well();
    assert_eq!(script.methods(), [STAGE, PUBLISH], "a boot with the cloud away: the attach stands");
    script.send(Event::Detached).all_goes_well();
    assert_eq!(script.methods(), [UNPUBLISH, UNSTAGE]);
    assert_eq!((script.volume.state(), script.volume.waits()), (VolumeState::Created, Waits::ForAttach));
    script.send(Event::Attached).all_goes_well().release("a").all_goes_well();
    assert_eq!(script.methods(), [STAGE, PUBLISH, UNPUBLISH, UNSTAGE]);
    assert!(script.is_forgotten());
}

/// Anchors (f) 24: whatever is dropped, the record is one to go on from. Nothing is told before it is so, and nothing that
/// comes twice, late or for somebody else changes anything.
#[test]
fn ends_of_what_is_not_under_way_change_nothing() {
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

/// Something of the user's is at the target, so the publish is prevented each time. No driver is asked to take it away.
#[test]
fn what_was_never_sent_is_not_undone() {
    let mut script = Script::staging();
    script.want("a").ends(Outcome::Ok).shows(Finding::Agrees).ends(Outcome::Failed(Failure::NotSent));
    let call = Call::of_target(PUBLISH, consumer("a"));
    let waiter = Waiter::Consumer(consumer("a"));
    assert!(script.open.contains(&Effect::Failed { waiter, call: call.clone(), failure: Failure::NotSent }));
    assert_eq!(script.volume.snapshot().targets[&consumer("a")].state, TargetState::Absent);
    assert_eq!((script.volume.snapshot().calling.as_ref(), script.volume.suspect()), (None, None));
    assert_eq!(script.volume.waits(), Waits::ForBackOff(call));
    script.resumes().ends(Outcome::Failed(Failure::NotSent)).release("a");
    assert!(script.was_told(&Reached::Released(consumer("a"))));
    script.all_goes_well();
    assert_eq!(script.methods(), [STAGE, PUBLISH, PUBLISH, UNSTAGE]);
    // An earlier one was sent, so that something may be there.
    let mut script = Script::published(&["a"]);
    script
        .want("b")
        .ends(Outcome::Failed(Failure::Final))
        .resumes()
        .ends(Outcome::Failed(Failure::NotSent))
        .release("b")
        .all_goes_well();
    assert_eq!(script.called(), [(PUBLISH, of("b")), (PUBLISH, of("b")), (UNPUBLISH, of("b"))]);
    // Or it may still be running.
    let mut script = Script::published(&["a"]);
    script
        .want("b")
        .ends(Outcome::Failed(Failure::Uncertain))
        .resumes()
        .ends(Outcome::Failed(Failure::NotSent))
        .release("b");
    assert_eq!(script.volume.suspect(), Some(&Call::of_target(PUBLISH, consumer("b"))));
    // An attach and an unstage as well.
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

/// A consumer that goes while its publish is being recorded was never published.
#[test]
fn an_intent_that_is_obsolete_before_it_is_on_disk_is_taken_back() {
    let mut script = Script::published(&["a"]);
    let (volume, effects) = step(&script.volume, Event::Want(consumer("b")));
    assert_eq!(effects, [Effect::Record]);
    let (volume, effects) = step(&volume, Event::Release(consumer("b")));
    assert_eq!(effects, []);
    script.volume = volume;
    script.send(Event::Recorded(true));
    assert!(script.was_told(&Reached::Released(consumer("b"))));
    assert_eq!(script.methods(), []);
}

/// Whoever asks again to be rid of a volume is told again that this driver does not do it.
#[test]
fn every_release_is_answered_though_the_driver_never_unpublishes() {
    let mut script = Script::published(&["a"]);
    let call = Call::of_target(UNPUBLISH, consumer("a"));
    let waiter = Waiter::Consumer(consumer("a"));
    let told = Effect::Failed { waiter, call, failure: Failure::NeverRetry };
    script.release("a").ends(outcome_of(UNPUBLISH, Some(12)));
    assert_eq!(script.open.iter().filter(|effect| **effect == told).count(), 1);
    script.open.clear();
    script.release("a");
    assert_eq!(script.open, [told]);
    script.open.clear();
    script.send(Event::Proceed);
    assert_eq!(script.open, []);
}

/// Anchors (f) 21: the driver stacks a second mount with each republish. The live consumer keeps its volume.
#[test]
fn a_republish_that_stacks_a_mount_leaves_the_target_published() {
    let mut script = Script::published(&["a"]);
    let before = script.volume.snapshot().clone();
    for _ in 0..3 {
        script.send(Event::Republish(consumer("a"))).ends(Outcome::Ok).shows(Finding::WRONG).all_goes_well();
    }
    assert_eq!(script.methods(), [PUBLISH; 3]);
    assert_eq!(script.volume.snapshot(), &before);
    // One that shows nothing is lost, and who has it is told when it is back.
    script.open.clear();
    script.send(Event::Republish(consumer("a"))).ends(Outcome::Ok).shows(Finding::MISSING).all_goes_well();
    assert_eq!(script.methods(), [PUBLISH, UNPUBLISH, PUBLISH]);
    assert!(script.was_told(&Reached::Published(consumer("a"))));
}

/// Anchors (f) 21: whoever asks for what is published has it, whether its publish can be repeated or not.
#[test]
fn asking_for_a_volume_during_a_republish_that_fails_is_told_that_it_is_published() {
    let mut script = Script::published(&["a"]);
    script.open.clear();
    script.send(Event::Republish(consumer("a"))).want("a");
    assert!(script.was_told(&Reached::Published(consumer("a"))));
    script.ends(Outcome::Failed(Failure::Final));
    assert!(!script.open.iter().any(|effect| matches!(effect, Effect::Failed { .. })), "{:?}", script.open);
}
