//! Every gRPC code and a broken transport, for every call.

use volume_manager::advanced::lifecycle::{Outcome, outcome_of};
use volume_manager::node::{Failure, Rpc};

const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// One letter for each call in the order of [`Rpc::ALL`]: ControllerPublish, ControllerUnpublish, NodeStage, NodeUnstage,
/// NodePublish, NodeUnpublish, ControllerExpand, NodeExpand. O: OK, if the mount table agrees, F: final, I:
/// infeasible, U: uncertain, N: never retry.
const TABLE: [(&str, &str); 18] = [
    ("OK", "O O O O O O O O"),
    ("CANCELLED", "U U U U U U U U"),
    ("UNKNOWN", "F F F F F F F F"),
    ("INVALID_ARGUMENT", "F F F F F F I I"),
    ("DEADLINE_EXCEEDED", "U U U U U U U U"),
    ("NOT_FOUND", "F F F O F O I I"),
    ("ALREADY_EXISTS", "F F F F F F F F"),
    ("PERMISSION_DENIED", "F F F F F F F F"),
    ("RESOURCE_EXHAUSTED", "F U U U U U U U"),
    ("FAILED_PRECONDITION", "F F F F F F F N"),
    ("ABORTED", "U U U U U U U U"),
    ("OUT_OF_RANGE", "F F F F F F I I"),
    ("UNIMPLEMENTED", "N N N N N N N N"),
    ("INTERNAL", "F F F F F F F F"),
    ("UNAVAILABLE", "U U U U U U U U"),
    ("DATA_LOSS", "F F F F F F F F"),
    ("UNAUTHENTICATED", "F F F F F F F F"),
    ("broken transport", "U U U U U U U U"),
];

fn letter(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok | Outcome::Expanded { .. } => "O",
        Outcome::Failed(Failure::Final) => "F",
        Outcome::Failed(Failure::Infeasible) => "I",
        Outcome::Failed(Failure::Uncertain) => "U",
        Outcome::Failed(Failure::NeverRetry) => "N",
        Outcome::Failed(failure) => unreachable!("no code says {failure:?}"),
    }
}

/// Every code has the outcome of the table, for every call.
#[test]
fn every_code_has_its_class_for_every_call() {
    for (number, (name, expected)) in TABLE.into_iter().enumerate() {
        let code = CODES.iter().position(|known| *known == name);
        assert!(code.is_none_or(|code| code == number), "{name}");
        let code = code.map(|code| i32::try_from(code).unwrap());
        let found = Rpc::ALL.map(|rpc| letter(outcome_of(rpc, code))).join(" ");
        println!("{name:20} {found}");
        assert_eq!(found, expected, "{name}");
    }
}

/// A number that is not a gRPC code is uncertain.
#[test]
fn a_number_that_is_no_code_is_uncertain() {
    for code in [-1, 17, 99, i32::MAX, i32::MIN] {
        for rpc in Rpc::ALL {
            assert_eq!(outcome_of(rpc, Some(code)), Outcome::Failed(Failure::Uncertain), "{rpc} {code}");
        }
    }
}
