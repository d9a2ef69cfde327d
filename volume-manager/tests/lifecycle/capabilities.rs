//! Drivers that come back with other capabilities, and floors that change.

use volume_manager::lifecycle::{
    Attach, Call, DriverCapabilities, Event, Failure, Outcome, Policy, Rpc, Volume, Waits, outcome_of,
};

use crate::cases::of;
use crate::script::{PUBLISH, STAGE, STAGES, Script, UNPUBLISH, UNSTAGE};

/// A driver that comes back with less may have been asked for more before. That is taken down, and not forgotten.
#[test]
fn what_a_driver_cannot_do_any_more_is_still_taken_down() {
    use Rpc::{ControllerPublishVolume as ATTACHES, ControllerUnpublishVolume as DETACHES};
    let all = DriverCapabilities { publish_unpublish: true, ..STAGES };
    let none = DriverCapabilities::default();
    for restarted in [false, true] {
        let mut script = Script::new(Attach::Here, all);
        script.want("a").all_goes_well();
        assert_eq!(script.methods(), [ATTACHES, STAGE, PUBLISH]);
        script.send(Event::NewGeneration(none));
        if restarted {
            script.restarts(false);
        }
        assert_eq!((script.methods(), script.volume.waits()), (vec![], Waits::ForNothing), "it lives on");
        script.release("a").all_goes_well();
        assert_eq!(script.methods(), [UNPUBLISH, UNSTAGE, DETACHES]);
        assert!(script.is_forgotten());
        // Whoever comes after the last one went is published as the driver can do it now.
        script.want("b").all_goes_well();
        assert_eq!(script.methods(), [PUBLISH]);
    }
    // An attach or a stage on its way does not go on, and may have been made.
    let mut script = Script::new(Attach::Here, all);
    script.want("a").ends(Outcome::Failed(Failure::Final)).send(Event::NewGeneration(none)).all_goes_well();
    assert_eq!(script.methods(), [ATTACHES, DETACHES, PUBLISH]);
    let mut script = Script::staging();
    script.want("a").ends(Outcome::Failed(Failure::Final)).send(Event::NewGeneration(none)).all_goes_well();
    assert_eq!(script.methods(), [STAGE, UNSTAGE, PUBLISH]);
}

/// What our side attached is detached by it, though the policy or the driver's object says that no attach is needed now.
#[test]
fn an_attach_outlives_the_floor_that_it_was_made_for() {
    use Rpc::{ControllerPublishVolume as ATTACHES, ControllerUnpublishVolume as DETACHES};
    for attach in [Attach::NotRequired, Attach::Awaited] {
        let mut script = Script::new(Attach::Here, DriverCapabilities { publish_unpublish: true, ..STAGES });
        script.want("a").all_goes_well();
        let (snapshot, capabilities) = (script.volume.snapshot().clone(), script.volume.capabilities());
        assert!(snapshot.attached_here);
        script.volume = Volume::restored(snapshot, attach, capabilities, Policy::default());
        script.send(Event::Proceed).release("a").all_goes_well();
        assert_eq!(script.methods(), [ATTACHES, STAGE, PUBLISH, UNPUBLISH, UNSTAGE, DETACHES], "{attach:?}");
        assert!(script.is_forgotten());
    }
}

/// Who lives in a volume is left alone by what its driver learns; it is staged when nobody lives there any more.
#[test]
fn nothing_is_staged_under_a_live_consumer() {
    let mut script = Script::new(Attach::NotRequired, DriverCapabilities::default());
    script.want("a").all_goes_well();
    script.send(Event::NewGeneration(STAGES)).want("b").all_goes_well();
    assert_eq!(script.called(), [(PUBLISH, of("a")), (PUBLISH, of("b"))]);
    script.release("a").release("b").all_goes_well();
    script.want("c").all_goes_well();
    assert_eq!(script.methods(), [UNPUBLISH, UNPUBLISH, STAGE, PUBLISH]);
}

/// The connection is new, the process need not be: what may run is waited for, and what the driver says now counts.
#[test]
fn a_driver_that_is_only_reconnected_may_still_be_at_a_call() {
    let mut script = Script::staging();
    script.want("a").ends(outcome_of(STAGE, Some(12))).send(Event::Reconnected(STAGES)).resumes();
    assert_eq!(script.methods(), [STAGE, STAGE], "a new version may do what the old one did not");
    script
        .ends(Outcome::Failed(Failure::Uncertain))
        .release("a")
        .send(Event::Reconnected(DriverCapabilities::default()));
    assert_eq!(script.volume.suspect(), Some(&Call::of_volume(STAGE)));
    script.all_goes_well();
    assert_eq!(script.methods(), [STAGE, UNSTAGE]);
}
