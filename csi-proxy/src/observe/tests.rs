#[path = "../../tests/common/log.rs"]
pub(crate) mod log;

use bytes::Bytes;

use self::log::Log;
use super::*;
use csi_proto::Code;

fn logged(level: tracing::Level, act: impl FnOnce()) -> String {
    let (log, _logging) = Log::start(level);
    act();
    log.text()
}

fn call() -> Call {
    let (node, driver) = (NodeId::new("edge-1").unwrap(), DriverName::new("vendor").unwrap());
    let method = MethodPath::new("/csi.v1.Controller/CreateVolume").unwrap();
    Call::new(CallId::from_bytes([7; 16]), node, driver, method, Bytes::from_static(b"canary"))
}

#[test]
fn failed_call_is_logged_in_one_line() {
    let text = logged(tracing::Level::INFO, || {
        let fault = Fault::LinkLost { reason: "cut".to_owned() };
        let _ = Observation::start("endpoint", &call()).answered(Err(fault));
        let status = Outcome::from_driver(Code::NOT_FOUND, "no such volume").with_details("canary");
        let _ = Observation::start("endpoint", &call()).answered(Ok(Replies::outcome(status)));
        let _ = Observation::start("endpoint", &call()).answered(Ok(Replies::unary("canary", Outcome::ok())));
    });
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    for part in
        ["WARN", "07070707-0707-", "CreateVolume", "edge-1", "vendor", "UNAVAILABLE", "link_lost", "cut"]
    {
        assert!(lines[0].contains(part), "{part} is not in {text}");
    }
    for part in ["NOT_FOUND", "origin=\"driver\"", "14 bytes"] {
        assert!(lines[1].contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("no such volume"), "a driver may repeat a secret: {text}");
}

#[test]
fn text_of_another_host_forges_no_line() {
    let forged = "X\n2026 ERROR forged\r\x1b[31m\u{202e}";
    let text = logged(tracing::Level::INFO, || {
        let fault = Fault::LinkLost { reason: forged.to_owned() };
        let _ = Observation::start("endpoint", &call()).answered(Err(fault));
        let status = Outcome::from_endpoint(Code::INVALID_ARGUMENT, forged.repeat(1000));
        let _ = Observation::start("endpoint", &call()).answered(Ok(Replies::outcome(status)));
    });
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(!text.contains(['\r', '\x1b', '\u{202e}']) && text.contains(r"X\n2026"), "{text}");
    assert!(text.len() < 4000, "{} bytes", text.len());
}

#[test]
fn bodies_are_never_logged() {
    let text = logged(tracing::Level::TRACE, || {
        let _ = Observation::start("endpoint", &call()).answered(Ok(Replies::unary("canary", Outcome::ok())));
        let end = Reply::End(Outcome::from_driver(Code::ABORTED, "pending"));
        let parts = [Reply::Message(Bytes::from_static(b"canary")), end];
        let replies = Replies::stream(futures_util::stream::iter(parts));
        let answer = Observation::start("endpoint", &call()).answered(Ok(replies)).unwrap();
        let mut answer = answer;
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Some(_)) = Pin::new(&mut answer).poll_next(&mut cx) {}
    });
    assert_eq!(text.matches("07070707-0707-").count(), 4, "{text}");
    assert!(!text.contains("canary") && !text.contains("99, 97, 110"), "{text}");
}
