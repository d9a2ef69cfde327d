#[path = "../../../tests/common/log.rs"]
mod log;

use super::*;

#[test]
fn name_of_a_driver_forges_no_line() {
    let driver = DriverInfo::new("vendor".parse().unwrap(), Mode::Each { node_info: false }, None);
    let (log, _logging) = log::Log::start(tracing::Level::INFO);
    let found = "X\n2026 ERROR forged\r\x1b[31m\u{202e}".to_owned();
    driver.log(&"edge-1".parse().unwrap(), Notice::NameMismatch { found });
    let text = log.text();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(!text.contains(['\r', '\x1b', '\u{202e}']) && text.contains(r"X\n2026"), "{text}");
}
