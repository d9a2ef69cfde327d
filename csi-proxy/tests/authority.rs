//! Callers that send another authority than `localhost`, on raw HTTP/2, since client libraries would not send these
//! bytes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Script, Stage, framed, raw_call};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Waits for the driver, and has a constant answer afterwards.
const CAPABILITIES: &str = "/csi.v1.Identity/GetPluginCapabilities";

/// The encoded `:authority` of a first call and of later ones.
type Fields = (Vec<u8>, Vec<u8>);

/// An authority that is indexed by both ends from the first call on.
fn kept(value: &[u8]) -> Fields {
    ([&[0x41, value.len() as u8], value].concat(), vec![0xbe])
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags, 0, 0, 0, stream]);
    frame.extend_from_slice(payload);
    frame
}

/// A call in the order of grpc-go: method, scheme, path, authority, the rest.
fn call(stream: u8, authority: &[u8]) -> Vec<u8> {
    let literal = |index: &[u8], value: &str| [index, &[value.len() as u8], value.as_bytes()].concat();
    let block = [
        b"\x83\x86".to_vec(),
        literal(b"\x04", CAPABILITIES),
        authority.to_vec(),
        // content-type is entry 31 of the static table: 15 and 16 more.
        literal(b"\x0f\x10", "application/grpc"),
        literal(b"\0\x02te", "trailers"),
    ];
    let body = framed(&[]);
    [frame(1, 4, stream, &block.concat()), frame(0, 1, stream, &body)].concat()
}

/// Reads until a stream has ended, and returns its data. `None` if the stream was reset.
async fn answer(socket: &mut UnixStream, stream: u8) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        socket.read_exact(&mut payload).await.ok()?;
        match (head[3], head[8]) {
            (0, of) if of == stream => data.extend_from_slice(&payload),
            (3, of) if of == stream => return None,
            // Trailers.
            (1, of) if of == stream && head[4] & 1 != 0 => return Some(data),
            (7, _) => return None,
            _ => {}
        }
    }
}

async fn connect(stage: &Stage) -> UnixStream {
    let mut socket = UnixStream::connect(stage.socket()).await.unwrap();
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &[])].concat();
    socket.write_all(&preface).await.unwrap();
    socket
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("nothing within 20 s")
}

/// Covers the path of the socket as `:authority`: raw or percent-encoded, with or without Huffman code, in the header
/// table or repeated with each call.
#[tokio::test]
async fn serves_callers_with_invalid_authority() {
    let stage = Stage::start(Script::default()).await;
    let expected = raw_call(&stage.socket(), CAPABILITIES, &[], framed(&[])).await.unwrap().body;
    let repeated = |value: &[u8]| {
        let field = [&[0x01, value.len() as u8], value].concat();
        (field.clone(), field)
    };
    let huffman = |code: &[u8]| ([&[0x41, 0x80 | code.len() as u8], code].concat(), vec![0xbe]);
    let long = format!("/var/lib/kubelet/plugins/{}/csi.sock", "d".repeat(63));
    let cases: [(&str, Fields); 15] = [
        ("localhost", kept(b"localhost")),
        ("grpcio for unix:///csi/csi.sock", kept(b"csi%2Fcsi.sock")),
        ("a path", kept(b"/csi/csi.sock")),
        ("a path with Huffman's code", huffman(b"\x60\x88\x33\x04\x41\x97\x41\xc9\xd7")),
        ("a percent-encoded path", kept(b"%2Fcsi%2Fcsi.sock")),
        ("the same with Huffman's code", huffman(b"\x54\x58\x48\x83\x2a\x2c\x24\x41\x97\x41\xc9\xd7")),
        ("localhost with Huffman's code", huffman(b"\xa0\xe4\x1d\x13\x9d\x09")),
        ("a long path", kept(long.as_bytes())),
        ("a URL", kept(b"unix:///csi/csi.sock")),
        ("one slash", kept(b"/")),
        ("a path that is repeated", repeated(b"/csi/csi.sock")),
        ("nothing, as an empty text", kept(b"")),
        ("nothing, repeated", repeated(b"")),
        ("nothing, of the static table", (vec![0x81], vec![0x81])),
        ("no authority", (Vec::new(), Vec::new())),
    ];
    for (what, (first, later)) in cases {
        let mut socket = connect(&stage).await;
        socket.write_all(&call(1, &first)).await.unwrap();
        assert_eq!(in_time(answer(&mut socket, 1)).await.as_ref(), Some(&expected), "{what}");
        for stream in [3, 5] {
            socket.write_all(&call(stream, &later)).await.unwrap();
            assert_eq!(in_time(answer(&mut socket, stream)).await.as_ref(), Some(&expected), "{what}: later");
        }
    }
}

#[tokio::test]
async fn serves_connection_received_byte_by_byte() {
    let stage = Stage::start(Script::default()).await;
    let mut socket = connect(&stage).await;
    for byte in call(1, &kept(b"/csi/csi.sock").0) {
        socket.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(in_time(answer(&mut socket, 1)).await.is_some());
}
