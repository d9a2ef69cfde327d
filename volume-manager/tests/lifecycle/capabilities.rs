//! Drivers that restart with other capabilities, and changes of the attach mode.

use volume_manager::advanced::lifecycle::{
    Call, DriverCapabilities, Event, Outcome, Policy, Volume, WaitReason, outcome_of,
};
use volume_manager::driver::Attach;
use volume_manager::node::{Failure, Rpc};

use crate::cases::of;
use crate::script::{PUBLISH, STAGE, STAGES, Script, UNPUBLISH, UNSTAGE};

/// A driver may restart without a capability that earlier calls used. The result of those calls is torn down and not
/// forgotten.
#[test]
fn what_a_driver_cannot_do_any_more_is_still_taken_down() {
    use Rpc::{ControllerPublishVolume as ATTACHES, ControllerUnpublishVolume as DETACHES};
    let all = DriverCapabilities { publish_unpublish: true, ..STAGES };
    let none = DriverCapabilities::default();
    for restarted in [false, true] {
        let mut script = Script::new(Attach::Here, all);
        script.want("a").all_goes_well();
        assert_eq!(script.methods(), [ATTACHES, STAGE, PUBLISH]);
        script.send(Event::DriverRestarted(none));
        if restarted {
            script.restarts(false);
        }
        assert_eq!(
            (script.methods(), script.volume.wait_reason()),
            (vec![], WaitReason::Nothing),
            "it keeps running"
        );
        script.release("a").all_goes_well();
        assert_eq!(script.methods(), [UNPUBLISH, UNSTAGE, DETACHES]);
        assert!(script.is_forgotten());
        // A consumer after the last release is published with the present capabilities.
        script.want("b").all_goes_well();
        assert_eq!(script.methods(), [PUBLISH]);
    }
    // A running attach or stage is not continued, and may have been executed.
    let mut script = Script::new(Attach::Here, all);
    script.want("a").ends(Outcome::Failed(Failure::Final)).send(Event::DriverRestarted(none)).all_goes_well();
    assert_eq!(script.methods(), [ATTACHES, DETACHES, PUBLISH]);
    let mut script = Script::staging();
    script.want("a").ends(Outcome::Failed(Failure::Final)).send(Event::DriverRestarted(none)).all_goes_well();
    assert_eq!(script.methods(), [STAGE, UNSTAGE, PUBLISH]);
}

/// A volume that this node attached is detached by this node, even if the policy or the CSIDriver object no longer
/// requires an attach.
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

/// New capabilities do not affect published consumers; the volume is staged after the last consumer is released.
#[test]
fn nothing_is_staged_under_a_live_consumer() {
    let mut script = Script::new(Attach::NotRequired, DriverCapabilities::default());
    script.want("a").all_goes_well();
    script.send(Event::DriverRestarted(STAGES)).want("b").all_goes_well();
    assert_eq!(script.called(), [(PUBLISH, of("a")), (PUBLISH, of("b"))]);
    script.release("a").release("b").all_goes_well();
    script.want("c").all_goes_well();
    assert_eq!(script.methods(), [UNPUBLISH, UNPUBLISH, STAGE, PUBLISH]);
}

/// A reconnected driver may be the same process: calls that may still be running are awaited, and the new capabilities
/// apply.
#[test]
fn a_driver_that_is_only_reconnected_may_still_be_at_a_call() {
    let mut script = Script::staging();
    script.want("a").ends(outcome_of(STAGE, Some(12))).send(Event::Reconnected(STAGES)).resumes();
    assert_eq!(script.methods(), [STAGE, STAGE], "a new version may do what the old one did not");
    script
        .ends(Outcome::Failed(Failure::Uncertain))
        .release("a")
        .send(Event::Reconnected(DriverCapabilities::default()));
    assert_eq!(script.volume.uncertain_call(), Some(&Call::of_volume(STAGE)));
    script.all_goes_well();
    assert_eq!(script.methods(), [STAGE, UNSTAGE]);
}
