//! Reports as lines of text, for the socket on which `edge-agent volumes` and `edge-agent explain` ask.
//!
//! | Line | Fields, each after a tab |
//! |---|---|
//! | `revision` | the number of the latest set |
//! | `volume` | driver, id, state, explanation |
//! | `consumer` | of the volume before: id, target, `wanted` or `going`, `published` or `absent` |
//! | `refused` | driver, id, consumer, reason |
//! | `unreadable` | record, reason |
//! | `error` | what is wrong with the question |
//! | `end` | nothing is missing |
//!
//! Control characters and backslashes are escaped as in Rust, so that no id can be taken for another line.

use std::fmt::Write;

use volume_manager::message::{ConsumerReport, Quarantined, Refused, VolumeReport, VolumeReports};

/// The reports as lines.
pub(in super::super) fn write_lines(reports: &VolumeReports) -> String {
    let mut text = String::new();
    line(&mut text, &["revision", &reports.revision.to_string()]);
    for volume in &reports.volumes {
        line(&mut text, &["volume", &volume.driver, &volume.volume_id, &volume.state, &volume.explanation]);
        for consumer in &volume.consumers {
            let wanted = if consumer.wanted { "wanted" } else { "going" };
            let published = if consumer.published { "published" } else { "absent" };
            line(&mut text, &["consumer", &consumer.id, &consumer.target_path, wanted, published]);
        }
    }
    for one in &reports.refused {
        line(&mut text, &["refused", &one.driver, &one.volume_id, &one.consumer, &one.reason]);
    }
    for one in &reports.quarantined {
        line(&mut text, &["unreadable", &one.record, &one.reason]);
    }
    line(&mut text, &["end"]);
    text
}

/// What is wrong with a question, as lines.
pub(super) fn error_lines(error: &str) -> String {
    let mut text = String::new();
    line(&mut text, &["error", error]);
    text
}

fn line(text: &mut String, fields: &[&str]) {
    for (at, field) in fields.iter().enumerate() {
        if at > 0 {
            text.push('\t');
        }
        for c in field.chars() {
            if c.is_control() || c == '\\' {
                // Writing to a string cannot fail.
                let _ = write!(text, "{}", c.escape_default());
            } else {
                text.push(c);
            }
        }
    }
    text.push('\n');
}

/// The reports of lines. Texts stay escaped: they are for a terminal.
///
/// # Errors
/// What was wrong with the question, or that the answer is cut off.
pub(in super::super) fn read_lines(text: &str) -> Result<VolumeReports, String> {
    let mut reports = VolumeReports::default();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let owned = str::to_owned;
        match fields[..] {
            ["revision", revision] => reports.revision = revision.parse().unwrap_or(0),
            ["volume", driver, id, state, explanation] => reports.volumes.push(VolumeReport {
                driver: owned(driver),
                volume_id: owned(id),
                state: owned(state),
                explanation: owned(explanation),
                consumers: Vec::new(),
            }),
            ["consumer", id, target, wanted, published] => {
                if let Some(volume) = reports.volumes.last_mut() {
                    volume.consumers.push(ConsumerReport {
                        id: owned(id),
                        target_path: owned(target),
                        wanted: wanted == "wanted",
                        published: published == "published",
                    });
                }
            }
            ["refused", driver, id, consumer, reason] => reports.refused.push(Refused {
                driver: owned(driver),
                volume_id: owned(id),
                consumer: owned(consumer),
                reason: owned(reason),
            }),
            ["unreadable", record, reason] => {
                reports.quarantined.push(Quarantined { record: owned(record), reason: owned(reason) });
            }
            ["error", error] => return Err(owned(error)),
            ["end"] => return Ok(reports),
            // Of a later version.
            _ => {}
        }
    }
    Err("the agent's answer is cut off; ask again".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(id: &str) -> VolumeReports {
        let consumer = |id: &str, wanted, published| ConsumerReport {
            id: id.into(),
            target_path: "/pods/1".into(),
            wanted,
            published,
        };
        VolumeReports {
            revision: 3,
            volumes: vec![VolumeReport {
                driver: "d.example".into(),
                volume_id: id.into(),
                state: "PUBLISHED".into(),
                explanation: "it is there.".into(),
                consumers: vec![
                    consumer("a", true, true),
                    consumer("b", false, true),
                    consumer("c", true, false),
                ],
            }],
            refused: vec![Refused {
                driver: "d.example".into(),
                volume_id: "v2".into(),
                consumer: "a".into(),
                reason: "taken".into(),
            }],
            quarantined: vec![Quarantined { record: "r".into(), reason: "bad".into() }],
        }
    }

    #[test]
    fn reports_come_back_from_their_lines_and_a_cut_answer_is_told() {
        let text = write_lines(&reports("v1"));
        assert_eq!(read_lines(&text), Ok(reports("v1")));
        for cut in 0..text.len() - "end\n".len() + 1 {
            assert!(read_lines(&text[..cut]).is_err(), "{cut}");
        }
        assert_eq!(read_lines(&error_lines("no\nsense")), Err("no\\nsense".to_owned()));
    }

    #[test]
    fn an_id_cannot_forge_a_line() {
        let text = write_lines(&reports("v1\nend\nrefused\ta\\n"));
        let read = read_lines(&text).unwrap();
        assert_eq!((read.volumes.len(), read.refused.len()), (1, 1));
        assert_eq!(read.volumes[0].volume_id, "v1\\nend\\nrefused\\ta\\\\n");
    }
}
