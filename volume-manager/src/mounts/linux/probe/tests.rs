use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use proptest::prelude::*;

use super::*;

fn answers() -> Vec<Answer> {
    let mut answers = vec![
        Answer::Done,
        Answer::Mounted,
        Answer::NotEmpty { count: 3, first: OsStr::from_bytes(b"a b\n\xff").to_owned() },
        Answer::Errno(5),
    ];
    let device = DeviceNumber { major: 8, minor: 1 };
    for state in [
        PathState::Missing,
        PathState::Directory,
        PathState::RegularFile { size: 5 },
        PathState::BlockDevice(device),
        PathState::CharacterDevice(device),
        PathState::Symlink,
        PathState::Other,
        PathState::Dead { errno: 107 },
        PathState::Hung,
    ] {
        answers.push(Answer::State(Inspection::of(state)));
        answers.push(Answer::State(Inspection::mounted(state, MountId::new(9))));
    }
    answers
}

#[test]
fn answers_round_trip_within_other_output() {
    for answer in answers() {
        let line = answer.encode();
        assert_eq!(Answer::decode(line.as_bytes()).as_ref(), Some(&answer), "{line}");
        let noisy = format!("running 1 test\ntest x ... {line}ok\n");
        assert_eq!(Answer::decode(noisy.as_bytes()).as_ref(), Some(&answer), "{noisy}");
        let torn = &line.as_bytes()[..line.len() - 1];
        assert_eq!(Answer::decode(torn), None, "a truncated answer is invalid: {line}");
    }
}

proptest! {
    #[test]
    fn requests_round_trip_for_any_path(name in "[^/.\\p{Cc}]{1,64}") {
        let path = MountPath::new(format!("/{name}")).unwrap();
        for request in [
            Request::Inspect(path.clone()),
            Request::CreateDirectory(path.clone()),
            Request::Remove(SafeRemoval::new(&path).unwrap()),
        ] {
            let arguments = request.encode(Duration::from_millis(1234));
            prop_assert_eq!(&arguments[0], MARKER);
            let arguments: Vec<OsString> = arguments.into_iter().skip(1).map(OsString::from).collect();
            prop_assert_eq!(Request::decode(&arguments), Some((Duration::from_millis(1234), request)));
        }
    }
}

proptest! {
    #[test]
    fn decoding_never_panics(
        arguments in proptest::collection::vec("[a-z0-9/ ]{0,12}", 0..7),
        output in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
        let _ = Request::decode(&arguments);
        let _ = Answer::decode(&output);
    }
}

#[test]
fn serves_only_with_the_marker() {
    assert!(serve([]).is_none());
    assert!(serve(["publish".into(), MARKER.into()]).is_none());
    assert_eq!(format!("{:?}", serve([MARKER.into()])), format!("{:?}", Some(ExitCode::from(64))));
}
