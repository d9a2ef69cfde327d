use super::super::*;
use super::*;

const STAGING: &str = "/kubelet/plugins/d/1/staging";
const TARGET: &str = "/kubelet/pods/p/mount";

fn table(mounts: &str) -> MountTable {
    let root = "1 0 254:0 / / rw shared:1 - ext4 /dev/root rw\n";
    MountTable::parse(format!("{root}{mounts}").as_bytes()).unwrap()
}

fn staged() -> MountTable {
    table(&format!("20 1 8:1 / {STAGING} rw shared:5 - ext4 /dev/sdb rw\n"))
}

fn identity() -> MountIdentity {
    MountIdentity::of(staged().at(Path::new(STAGING)).unwrap())
}

fn expected() -> Expectation {
    Expectation::file_system(STAGING).identity(identity()).read_only(false)
}

fn in_place_of_staging(line: &str) -> MountCheck {
    check_mount(&expected(), &table(&line.replace("STAGING", STAGING)), None)
}

/// Checks a staging path without a recorded mount.
fn unused_at(staging: &str, table: &MountTable, known: impl Fn(&Path) -> bool) -> MountCheck {
    check_unused(Path::new(staging), None, table, known)
}

fn seen(state: PathState) -> Option<Inspection> {
    Some(Inspection::of(state))
}

/// A driver's mount is compared in device, root, type and options; its mere existence is not sufficient.
#[test]
fn compares_device_root_type_and_options() {
    let device = |minor| DeviceNumber { major: 8, minor };
    assert_eq!(check_mount(&expected(), &staged(), None), MountCheck::AsExpected);
    for (line, wanted) in [
        ("", MountCheck::NotInspected),
        (
            "20 1 8:2 / STAGING rw - ext4 /dev/sdb rw\n",
            MountCheck::WrongDevice { expected: device(1), found: device(2) },
        ),
        (
            "20 1 8:1 /part STAGING rw - ext4 /dev/sdb rw\n",
            MountCheck::WrongRoot { expected: "/".into(), found: "/part".into() },
        ),
        (
            "20 1 8:1 / STAGING rw - xfs /dev/sdb rw\n",
            MountCheck::WrongFsType { expected: "ext4".into(), found: "xfs".into() },
        ),
        ("20 1 8:1 / STAGING ro - ext4 /dev/sdb rw\n", MountCheck::OptionsDiffer { read_only: true }),
        ("20 1 8:1 / STAGING rw - ext4 /dev/sdb ro\n", MountCheck::OptionsDiffer { read_only: true }),
        (
            "20 1 8:1 / STAGING rw - ext4 /dev/sdb rw\n21 20 8:1 / STAGING rw - ext4 /dev/sdb rw\n",
            MountCheck::StackedMounts { count: 2 },
        ),
        ("20 1 8:1 / STAGING rw - ext4 /dev/other-name rw\n", MountCheck::AsExpected),
    ] {
        assert_eq!(in_place_of_staging(line), wanted, "{line}");
    }
}

/// An OK without an unmount is detected, as in moosefs/moosefs-csi#34.
#[test]
fn reports_what_remains_after_an_unmount() {
    let nothing = Expectation::nothing(STAGING);
    let still = MountCheck::StillMounted { mount: MountId::new(20) };
    assert_eq!(check_mount(&nothing, &staged(), seen(PathState::Directory).as_ref()), still);
    let none = table("");
    let device = DeviceNumber { major: 8, minor: 1 };
    for (state, wanted) in [
        (PathState::Missing, MountCheck::AsExpected),
        (PathState::Directory, MountCheck::StaleMountPoint(PathState::Directory)),
        (PathState::RegularFile { size: 0 }, MountCheck::StaleMountPoint(PathState::RegularFile { size: 0 })),
        (PathState::RegularFile { size: 1 }, MountCheck::StaleMountPoint(PathState::RegularFile { size: 1 })),
        (PathState::Symlink, MountCheck::StaleMountPoint(PathState::Symlink)),
        // A block volume that is published as a device node, and not unpublished.
        (PathState::BlockDevice(device), MountCheck::StaleDevice(device)),
        (PathState::Hung, MountCheck::Unreachable),
    ] {
        assert_eq!(check_mount(&nothing, &none, seen(state).as_ref()), wanted);
    }
}

/// A mount whose server was killed is unchanged in the table; only the inspection finds it.
#[test]
fn reports_dead_and_hanging_mounts() {
    for inspection in [
        Inspection::of(PathState::Dead { errno: 107 }),
        Inspection::mounted(PathState::Dead { errno: 107 }, MountId::new(20)),
    ] {
        let found = check_mount(&expected(), &staged(), Some(&inspection));
        assert_eq!(found, MountCheck::DeadMount { errno: 107 });
    }
    let hung = check_mount(&expected(), &staged(), seen(PathState::Hung).as_ref());
    assert_eq!(hung, MountCheck::Unreachable);
}

/// A file in place of a device is rejected (longhorn/longhorn#8009).
#[test]
fn rejects_a_file_in_place_of_a_block_device() {
    let right = DeviceNumber { major: 8, minor: 1 };
    let other = DeviceNumber { major: 8, minor: 2 };
    let block = Expectation::block_device(TARGET).device(right);
    for (state, wanted) in [
        (PathState::BlockDevice(right), MountCheck::AsExpected),
        (PathState::BlockDevice(other), MountCheck::WrongDevice { expected: right, found: other }),
        (PathState::RegularFile { size: 0 }, MountCheck::RegularFileAtTarget { size: 0 }),
        (PathState::RegularFile { size: 9 }, MountCheck::RegularFileAtTarget { size: 9 }),
        (PathState::CharacterDevice(right), MountCheck::InvalidTarget(PathState::CharacterDevice(right))),
        (PathState::Directory, MountCheck::InvalidTarget(PathState::Directory)),
        (PathState::Missing, MountCheck::MissingPath),
    ] {
        assert_eq!(check_mount(&block, &table(""), seen(state).as_ref()), wanted);
    }
    let file = seen(PathState::RegularFile { size: 0 });
    assert_eq!(
        check_mount(&Expectation::file_system(TARGET), &table(""), file.as_ref()),
        MountCheck::RegularFileAtTarget { size: 0 }
    );
}

#[test]
fn finds_a_mount_behind_a_symlink_by_its_id() {
    let linked = Expectation { path: "/link/staging".into(), ..expected() };
    let inspection = Inspection::mounted(PathState::Directory, MountId::new(20));
    assert_eq!(check_mount(&linked, &staged(), Some(&inspection)), MountCheck::AsExpected);
    assert_eq!(
        check_mount(&linked, &staged(), seen(PathState::Directory).as_ref()),
        MountCheck::NotMounted(PathState::Directory)
    );
}

/// An unknown bind mount of the staged file system is a user of it.
#[test]
fn foreign_bind_keeps_the_staging_path_in_use() {
    let binds = format!(
        "20 1 8:1 / {STAGING} rw shared:5 - ext4 /dev/sdb rw\n21 1 8:1 / {TARGET} rw shared:5 - ext4 /dev/sdb rw\n\
         22 1 8:1 /sub /foreign rw - ext4 /dev/sdb rw\n23 1 8:2 / /unrelated rw - ext4 /dev/sdc rw\n"
    );
    let table = table(&binds);
    let known = |path: &Path| path == Path::new(TARGET);
    let found = unused_at(STAGING, &table, known);
    assert_eq!(found, MountCheck::ForeignBind { mount_points: vec!["/foreign".into()] });
    let known = |path: &Path| path == Path::new(TARGET) || path == Path::new("/foreign");
    assert_eq!(unused_at(STAGING, &table, known), MountCheck::AsExpected);
    assert_eq!(unused_at("/nothing", &table, |_| false), MountCheck::AsExpected);
}

/// The state directory is on a bind-mounted root, and every mount in it appears twice
/// (kubernetes-sigs/aws-ebs-csi-driver#1264). The propagated copy is not a user.
#[test]
fn propagated_copy_is_not_a_foreign_bind() {
    let seen_twice = |group: &str| {
        table(&format!(
            "10 1 254:0 /kubelet /mirror rw {group} - ext4 /dev/root rw\n\
             20 1 8:1 / {STAGING} rw shared:5 - ext4 /dev/sdb rw\n\
             21 10 8:1 / /mirror/plugins/d/1/staging rw shared:5 - ext4 /dev/sdb rw\n\
             22 1 8:1 / {TARGET} rw shared:5 - ext4 /dev/sdb rw\n\
             23 10 8:1 / /mirror/pods/p/mount rw shared:5 - ext4 /dev/sdb rw\n"
        ))
    };
    let known = |path: &Path| path == Path::new(TARGET);
    for spread in ["shared:1", "master:1"] {
        assert_eq!(unused_at(STAGING, &seen_twice(spread), known), MountCheck::AsExpected, "{spread}");
    }
    // In a directory that receives no mount events, the bind was made by hand, and counts.
    let mirrored = ["/mirror/plugins/d/1/staging", "/mirror/pods/p/mount"].map(PathBuf::from).to_vec();
    assert_eq!(
        unused_at(STAGING, &seen_twice("shared:9"), known),
        MountCheck::ForeignBind { mount_points: mirrored }
    );
}

/// Two volumes mount one network share (kubernetes-csi/csi-driver-smb#353). It is one file system for the
/// kernel; the mounts differ in their mount point, and neither is a user of the other.
#[test]
fn two_volumes_on_one_share_are_independent() {
    let other = "/kubelet/plugins/d/2/staging";
    let shares = |group: &str| {
        table(&format!(
            "20 1 0:60 / {STAGING} rw shared:5 - cifs //server/share rw\n\
             21 1 0:60 / {other} rw {group}- cifs //server/share rw\n"
        ))
    };
    assert_eq!(
        unused_at(STAGING, &shares("shared:6 "), |path| path == Path::new(other)),
        MountCheck::AsExpected
    );
    assert_eq!(unused_at(STAGING, &shares("shared:6 "), |_| false), MountCheck::AsExpected);
    // In the same peer group it is a bind of this mount.
    let bind = MountCheck::ForeignBind { mount_points: vec![other.into()] };
    assert_eq!(unused_at(STAGING, &shares("shared:5 "), |_| false), bind);
    assert_eq!(
        unused_at(STAGING, &shares(""), |_| false),
        bind,
        "without propagation a bind cannot be distinguished"
    );
    for path in [STAGING, other] {
        let table = shares("shared:6 ");
        let expected = Expectation::file_system(path).device(DeviceNumber { major: 0, minor: 60 });
        assert_eq!(check_mount(&expected, &table, None), MountCheck::AsExpected);
    }
}

/// An administrator's mount of the whole export does not use the volumes that are parts of it; one of the same part may.
#[test]
fn mount_of_the_whole_export_is_not_a_foreign_bind() {
    let shares = |root: &str, group: &str| {
        table(&format!(
            "20 1 0:60 /volumes/1 {STAGING} rw shared:5 - nfs4 h:/volumes/1 rw\n\
             21 1 0:60 {root} /mnt rw {group}- nfs4 h:/ rw\n"
        ))
    };
    for group in ["shared:6 ", ""] {
        assert_eq!(unused_at(STAGING, &shares("/", group), |_| false), MountCheck::AsExpected, "{group:?}");
    }
    assert_eq!(unused_at(STAGING, &shares("/volumes/1", "shared:6 "), |_| false), MountCheck::AsExpected);
    let bind = MountCheck::ForeignBind { mount_points: vec!["/mnt".into()] };
    assert_eq!(unused_at(STAGING, &shares("/volumes/1", ""), |_| false), bind);
}

/// The staging path was unmounted, or is covered, and a foreign bind of its file system remains.
#[test]
fn finds_a_foreign_bind_of_an_unmounted_or_hidden_staging_path() {
    let foreign = "22 1 8:1 /sub /foreign rw shared:5 - ext4 /dev/sdb rw\n";
    let staging = format!("20 1 8:1 / {STAGING} rw shared:5 - ext4 /dev/sdb rw\n");
    let covering = format!("30 20 0:70 / {STAGING} rw - tmpfs x rw\n");
    let hiding = "31 1 0:71 / /kubelet rw - tmpfs x rw\n";
    let identity = identity();
    let bind = MountCheck::ForeignBind { mount_points: vec!["/foreign".into()] };
    for mounts in [
        foreign.to_owned(),
        format!("{staging}{foreign}"),
        format!("{staging}{foreign}{covering}"),
        format!("{staging}{foreign}{hiding}"),
    ] {
        let recorded = |known: &str| {
            check_unused(Path::new(STAGING), Some(&identity), &table(&mounts), |path| {
                path == Path::new(known)
            })
        };
        assert_eq!(recorded(""), bind, "{mounts}");
        match recorded("/foreign") {
            MountCheck::AsExpected => assert!(!mounts.contains("tmpfs"), "{mounts}"),
            MountCheck::Overmounted { .. } | MountCheck::Shadowed { .. } => {
                assert!(mounts.contains("tmpfs"), "{mounts}");
            }
            other => panic!("{other:?}: {mounts}"),
        }
    }
    assert_eq!(
        unused_at(STAGING, &table(foreign), |_| false),
        MountCheck::AsExpected,
        "no identity to search by"
    );
    // A device number that was reused by another file system.
    let reused = "22 1 8:1 / /foreign rw - xfs /dev/sdb rw\n";
    let recorded = check_unused(Path::new(STAGING), Some(&identity), &table(reused), |_| false);
    assert_eq!(recorded, MountCheck::AsExpected);
}

#[test]
fn bind_of_a_device_node_counts_and_the_whole_of_dev_does_not() {
    let node = |path: &str, id: u32| format!("{id} 1 0:6 /sdb {path} rw - devtmpfs devtmpfs rw\n");
    let dev = "10 1 0:6 / /dev rw - devtmpfs devtmpfs rw\n";
    let staged = format!("{dev}{}", node(STAGING, 20));
    assert_eq!(unused_at(STAGING, &table(&staged), |_| false), MountCheck::AsExpected);
    let bound = format!("{staged}{}", node("/foreign", 21));
    let bind = MountCheck::ForeignBind { mount_points: vec!["/foreign".into()] };
    assert_eq!(unused_at(STAGING, &table(&bound), |_| false), bind);
}

/// A foreign mount on top of a volume does not make the volume lost, dead or wrong.
#[test]
fn expected_mount_beneath_another_is_found() {
    let staging = format!("20 1 8:1 / {STAGING} rw shared:5 - ext4 /dev/sdb rw\n");
    let covered = table(&format!("{staging}30 20 0:70 / {STAGING} rw - tmpfs x rw\n"));
    let by = MountId::new(30);
    let wanted = MountCheck::Overmounted { mount: MountId::new(20), by };
    for inspection in [
        None,
        Some(Inspection::mounted(PathState::Directory, by)),
        Some(Inspection::mounted(PathState::Dead { errno: 107 }, by)),
    ] {
        assert_eq!(check_mount(&expected(), &covered, inspection.as_ref()), wanted);
    }
    let still = MountCheck::StillMounted { mount: by };
    assert_eq!(check_mount(&Expectation::nothing(STAGING), &covered, None), still);

    let hiding = "31 1 0:71 / /kubelet rw - tmpfs x rw\n";
    let again = format!("32 31 0:72 / {STAGING} rw - tmpfs x rw\n");
    let wanted = MountCheck::Shadowed { mount: MountId::new(20) };
    for (mounts, state) in [
        (format!("{staging}{hiding}"), PathState::Missing),
        (format!("{staging}{hiding}"), PathState::Directory),
        (format!("{staging}{hiding}{again}"), PathState::Directory),
    ] {
        let inspection = Inspection::of(state);
        assert_eq!(check_mount(&expected(), &table(&mounts), None), wanted, "{mounts}");
        assert_eq!(check_mount(&expected(), &table(&mounts), Some(&inspection)), wanted, "{mounts}");
    }
    // The directory is not visible, and the volume is still mounted.
    let hidden = table(&format!("{staging}{hiding}"));
    let found = check_mount(&Expectation::nothing(STAGING), &hidden, seen(PathState::Missing).as_ref());
    assert_eq!(found, wanted);
}

#[test]
fn absent_mount_without_inspection_is_not_inspected() {
    let none = table("");
    for expectation in
        [Expectation::nothing(STAGING), Expectation::file_system(STAGING), Expectation::block_device(STAGING)]
    {
        assert_eq!(check_mount(&expectation, &none, None), MountCheck::NotInspected, "{expectation:?}");
    }
}
