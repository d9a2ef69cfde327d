//! Valid input for the targets, so that the corpora start with more than noise.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::csi::v1::CreateVolumeRequest;
use csi_proxy::advanced::call::{CallNumber, Fence, GivenUp};
use csi_proxy::{Call, CallId, Code, DriverName, Fault, MethodPath, NodeId, Outcome, Term};
use edge_transport::advanced::frame::{self, Frame, Hello, Kind, Part, Reply};
use edge_transport::{Request, SessionId};
use prost::Message as _;
use volume_manager::advanced::message::DesiredSet;
use volume_manager::advanced::store::envelope;
use volume_manager::store::{RecordKey, RecordKind};

use crate::script::{name, service, wire};

fn frames() -> Vec<Vec<u8>> {
    let id = 3;
    let mut hello = Hello::new(name("edge-1"), SessionId { instance: 7, number: 7 });
    hello.services = vec![service("csi")];
    hello.features = vec!["later".to_owned()];
    let mut request = Request::new(service("csi"), Bytes::from_static(b"body"));
    (request.remaining, request.credit) = (Some(Duration::from_secs(10)), 1000);
    let mut reply = Reply::new(1);
    reply.message = Some(Bytes::from_static(b"answer"));
    reply.end = Some(frame::End::Finished(Bytes::from_static(b"closing")));
    [
        Frame::link(Kind::Hello(hello)),
        Frame::link(Kind::Ping { nonce: 5 }),
        Frame::link(Kind::Drain { reason: "update".to_owned() }),
        Frame::call(None, Some(name("edge-1")), id, Part::Request(request)),
        Frame::call(Some(name("edge-1")), None, id, Part::Reply(reply)),
        Frame::call(None, None, id, Part::Credit { bytes: 500 }),
        Frame::call(None, None, id, Part::Cancel),
    ]
    .map(|frame| wire(frame).to_vec())
    .into()
}

fn envelopes() -> Vec<Vec<u8>> {
    let driver = DriverName::new("csi-hostpath").unwrap();
    let node = NodeId::new("edge-1").unwrap();
    let method = MethodPath::new("/csi.v1.Controller/CreateVolume").unwrap();
    let call = Call::new(CallId::from_bytes([7; 16]), node.clone(), driver, method, Bytes::new());
    let driver_says = Outcome::from_driver(Code::new(8), "no space").with_details(vec![1, 2]);
    let ours: Outcome = Fault::NodeOffline { node }.into();
    let n = |number| CallNumber::new(number).unwrap();
    let given_up = GivenUp::new([n(4)..=n(6), n(9)..=n(300)]).unwrap();
    let fenced = call.clone().with_fence(Fence::new(Term::FIRST, n(7), n(2), given_up).unwrap());
    vec![
        call.encode_header().into(),
        driver_says.encode().into(),
        ours.encode().into(),
        fenced.encode_header().into(),
    ]
}

fn records() -> Vec<Vec<u8>> {
    let key = RecordKey::new(RecordKind(1), "csi-hostpath/v").unwrap();
    vec![
        envelope::seal(&key, 3, b"payload"),
        envelope::seal(&key, u64::MAX, b""),
        DesiredSet::new(4, Vec::new()).encode(),
    ]
}

fn operations() -> Vec<Vec<u8>> {
    let create = CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        parameters: [("class".to_owned(), "fast".to_owned())].into(),
        secrets: [("token".to_owned(), "hidden".to_owned())].into(),
        ..Default::default()
    };
    vec![create.encode_to_vec()]
}

fn mount_tables() -> Vec<Vec<u8>> {
    let line = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n";
    let escaped = "37 36 0:5 / /a\\040b rw shared:2 propagate_from:1 - tmpfs none rw,size=4k\n";
    [line.to_owned(), escaped.to_owned(), format!("{line}{escaped}")].map(String::into_bytes).into()
}

fn registrations() -> Vec<Vec<u8>> {
    ["unix:///plugins/csi/csi.sock", "/plugins/csi.sock", "v1.0.0-beta.1", "1.0", "csi.example.com"]
        .map(|text| text.as_bytes().to_vec())
        .into()
}

/// Writes the examples into the corpora. After a change of a format, run `cargo test --lib -- --ignored`.
#[test]
#[ignore = "writes into the corpora"]
fn writes_the_examples_into_the_corpora() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, examples) in [
        ("frame", frames()),
        ("envelope", envelopes()),
        ("record", records()),
        ("mount_table", mount_tables()),
        ("operation", operations()),
        ("registration", registrations()),
    ] {
        let folder = folder.join(target);
        std::fs::create_dir_all(&folder).unwrap();
        for (index, bytes) in examples.iter().enumerate() {
            std::fs::write(folder.join(format!("example-{index}")), bytes).unwrap();
        }
    }
}
