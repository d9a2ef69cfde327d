//! Computes the group and mode of a volume's files for an fsGroup, as kubelet does. No I/O.

/// The owner and the group may read and write the file.
const READ_AND_WRITE: u32 = 0o660;

/// The owner and the group may enter the directory.
const ENTER: u32 = 0o110;

/// New files in the directory get its group.
const SETGID: u32 = 0o2000;

/// The bits that the kernel clears when the group of a file changes.
const CLEARED: u32 = 0o6000;

/// The bits of a mode that chmod sets.
const SETTABLE: u32 = 0o7777;

/// The kind of a file, as far as its change depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    Directory,
    /// A symbolic link: its mode has no meaning, and its target may be outside the volume.
    Link,
    Other,
}

/// The current attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) kind: FileKind,
    pub(super) group: u32,
    pub(super) mode: u32,
}

/// The attributes of a file to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Change {
    /// Whether to set the group.
    pub(super) group: bool,
    /// The mode to set after the group.
    pub(super) mode: Option<u32>,
}

impl Change {
    pub(super) fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// Returns the change that gives a file to the group. The change removes no permission.
pub(super) fn change(file: Facts, group: u32) -> Change {
    let found = file.mode & SETTABLE;
    let wanted = match file.kind {
        FileKind::Link => return Change { group: file.group != group, mode: None },
        FileKind::Directory => found | READ_AND_WRITE | ENTER | SETGID,
        FileKind::Other => found | READ_AND_WRITE,
    };
    let group = file.group != group;
    let mode = wanted != found || (group && found & CLEARED != 0);
    Change { group, mode: mode.then_some(wanted) }
}

/// Whether the root of a volume matches the group, so that `OnRootMismatch` skips the volume.
pub(super) fn root_matches(root: Facts, group: u32) -> bool {
    let wanted = READ_AND_WRITE | ENTER | SETGID;
    root.kind == FileKind::Directory && root.group == group && root.mode & wanted == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: u32 = 7;

    fn changed(kind: FileKind, group: u32, mode: u32) -> (bool, Option<u32>) {
        let Change { group, mode } = change(Facts { kind, group, mode }, GROUP);
        (group, mode)
    }

    #[test]
    fn adds_group_rights_and_keeps_others() {
        use FileKind::*;
        for (kind, group, mode, expected) in [
            (Other, 0, 0o100_600, (true, Some(0o660))),
            (Other, 0, 0o100_755, (true, Some(0o775))),
            (Other, 0, 0o100_664, (true, None)),
            (Other, GROUP, 0o100_660, (false, None)),
            (Other, GROUP, 0o100_400, (false, Some(0o660))),
            // The kernel clears these bits when the group changes, so they are set again.
            (Other, 0, 0o104_770, (true, Some(0o4770))),
            (Other, GROUP, 0o104_770, (false, None)),
            (Directory, 0, 0o040_700, (true, Some(0o2770))),
            (Directory, GROUP, 0o043_777, (false, None)),
            (Directory, GROUP, 0o040_770, (false, Some(0o2770))),
            (Link, 0, 0o120_777, (true, None)),
            (Link, GROUP, 0o120_000, (false, None)),
        ] {
            assert_eq!(changed(kind, group, mode), expected, "{kind:?} {group} {mode:o}");
        }
        assert!(change(Facts { kind: Other, group: GROUP, mode: 0o660 }, GROUP).is_nothing());
    }

    #[test]
    fn root_matches_with_group_rights_and_setgid() {
        let root = Facts { kind: FileKind::Directory, group: GROUP, mode: 0o042_775 };
        assert!(root_matches(root, GROUP));
        for other in [
            Facts { group: 8, ..root },
            Facts { mode: 0o040_775, ..root },
            Facts { mode: 0o042_755, ..root },
            Facts { mode: 0o042_675, ..root },
            Facts { kind: FileKind::Other, ..root },
        ] {
            assert!(!root_matches(other, GROUP), "{other:?}");
        }
        // A changed directory always matches.
        for mode in 0..=0o7777 {
            let file = Facts { mode, ..root };
            let mode = change(file, GROUP).mode.unwrap_or(mode);
            assert!(root_matches(Facts { mode, ..root }, GROUP), "{mode:o}");
        }
    }
}
