use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;

use super::*;
use crate::code::Code;

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)
}

fn finished() -> Stage {
    let outcome = Outcome::from_driver(Code::OK, "fine").with_details(vec![1, 2]);
    Stage::Finished(Answer::new(Some(Bytes::from_static(b"answer")), outcome).unwrap())
}

fn identity() -> Identity {
    let driver = DriverName::new("csi-hostpath").unwrap();
    let subjects = ["v", "w"].map(|id| Subject::Volume(id.into())).to_vec();
    Identity::new(driver, Method::CreateVolumeGroupSnapshot, subjects, Digest::from_bytes([7; 32])).unwrap()
}

#[test]
fn what_is_sealed_comes_back_at_every_stage() {
    for stage in [Stage::Accepted, Stage::Started, finished()] {
        let operation = OperationId::new(u64::MAX);
        let bytes = seal(operation, &identity(), &stage, now());
        let later = now() + Duration::from_secs(5);
        let found = open(operation, &bytes, later).unwrap();
        assert_eq!(found, Restored::new(operation, identity(), stage, Duration::from_secs(5)));
        let earlier = open(operation, &bytes, UNIX_EPOCH).unwrap();
        assert_eq!(earlier.age, Duration::ZERO, "the clock went back");
    }
}

#[test]
fn every_truncation_and_every_turned_bit_is_noticed_and_so_is_another_row() {
    let operation = OperationId::new(3);
    let bytes = seal(operation, &identity(), &finished(), now());
    for length in 0..bytes.len() {
        assert!(open(operation, &bytes[..length], now()).is_err(), "{length}");
    }
    for bit in 0..bytes.len() * 8 {
        let mut turned = bytes.clone();
        turned[bit / 8] ^= 1 << (bit % 8);
        assert!(open(operation, &turned, now()).is_err(), "bit {bit}");
    }
    assert!(matches!(open(OperationId::new(4), &bytes, now()), Err(Defect::Checksum { .. })));
    let longer = [bytes, vec![0]].concat();
    assert!(matches!(open(operation, &longer, now()), Err(Defect::Checksum { .. })));
}

#[test]
fn a_newer_version_is_named_as_such() {
    let operation = OperationId::new(3);
    let mut bytes = seal(operation, &identity(), &Stage::Started, now());
    bytes[4] = 2;
    assert_eq!(open(operation, &bytes, now()), Err(Defect::Version { found: 2 }));
    assert_eq!(open(operation, b"{\"json\": true}", now()), Err(Defect::NoRecord));
}

#[test]
fn a_sound_record_of_something_unknown_is_refused_by_its_field() {
    let sound = Record {
        driver: "csi-hostpath".to_owned(),
        method: Method::DeleteVolume.path().to_owned(),
        subjects: vec![SubjectRecord { kind: 2, id: "v".to_owned() }],
        digest: vec![0; 32],
        stage: 1,
        written: 0,
        message: None,
        closing: Bytes::new(),
    };
    let opened = |record: &Record| {
        let bytes = sealed::seal(MAGIC, VERSION, 1, &record.encode_to_vec());
        open(OperationId::new(1), &bytes, now())
    };
    assert!(opened(&sound).is_ok());
    let fault = |field| Err(Defect::Field { field });
    assert_eq!(opened(&Record { driver: String::new(), ..sound.clone() }), fault("driver"));
    assert_eq!(opened(&Record { method: "/csi.v9.X/Y".to_owned(), ..sound.clone() }), fault("method"));
    assert_eq!(opened(&Record { digest: vec![0; 31], ..sound.clone() }), fault("digest"));
    assert_eq!(opened(&Record { stage: 4, ..sound.clone() }), fault("stage"));
    assert_eq!(opened(&Record { stage: 3, ..sound.clone() }), fault("closing"));
    assert_eq!(opened(&Record { subjects: Vec::new(), ..sound.clone() }), fault("subjects"));
    let odd = vec![SubjectRecord { kind: 9, id: "v".to_owned() }];
    assert_eq!(opened(&Record { subjects: odd, ..sound }), fault("subjects"));
}

proptest! {
    #[test]
    fn any_bytes_are_bearable(noise in prop::collection::vec(any::<u8>(), 0..100), row: u64) {
        let operation = OperationId::new(row);
        prop_assert!(open(operation, &noise, now()).is_err());
        let bytes = sealed::seal(MAGIC, VERSION, operation.number(), &noise);
        let _ = open(operation, &bytes, now());
    }
}
