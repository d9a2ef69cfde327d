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

fn in_place_of_staging(line: &str) -> Verdict {
    verdict(&expected(), &table(&line.replace("STAGING", STAGING)), None)
}

/// Who holds what is staged at a path, with no mount recorded.
fn held_at(staging: &str, table: &MountTable, known: impl Fn(&Path) -> bool) -> Verdict {
    held(Path::new(staging), None, table, known)
}

fn seen(presence: Presence) -> Option<Inspection> {
    Some(Inspection::of(presence))
}

/// Anchors (f) 9: what a driver mounted is compared in device, part, type, and options, and never taken for right because
/// something is there.
#[test]
fn a_mount_is_right_only_if_all_of_it_is() {
    let device = |minor| DeviceNumber { major: 8, minor };
    assert_eq!(verdict(&expected(), &staged(), None), Verdict::AsExpected);
    for (line, wanted) in [
        ("", Verdict::NotLookedAt),
        (
            "20 1 8:2 / STAGING rw - ext4 /dev/sdb rw\n",
            Verdict::AnotherDevice { expected: device(1), found: device(2) },
        ),
        (
            "20 1 8:1 /part STAGING rw - ext4 /dev/sdb rw\n",
            Verdict::AnotherRoot { expected: "/".into(), found: "/part".into() },
        ),
        (
            "20 1 8:1 / STAGING rw - xfs /dev/sdb rw\n",
            Verdict::AnotherType { expected: "ext4".into(), found: "xfs".into() },
        ),
        ("20 1 8:1 / STAGING ro - ext4 /dev/sdb rw\n", Verdict::OptionsDiffer { read_only: true }),
        ("20 1 8:1 / STAGING rw - ext4 /dev/sdb ro\n", Verdict::OptionsDiffer { read_only: true }),
        (
            "20 1 8:1 / STAGING rw - ext4 /dev/sdb rw\n21 20 8:1 / STAGING rw - ext4 /dev/sdb rw\n",
            Verdict::StackedMounts { count: 2 },
        ),
        ("20 1 8:1 / STAGING rw - ext4 /dev/other-name rw\n", Verdict::AsExpected),
    ] {
        assert_eq!(in_place_of_staging(line), wanted, "{line}");
    }
}

/// Anchors (f) 9: an OK without an unmount is seen, as in moosefs/moosefs-csi#34.
#[test]
fn what_should_be_gone_and_is_not_has_a_name() {
    let gone = Expectation::nothing(STAGING);
    let still = Verdict::StillMounted { mount: MountId::new(20) };
    assert_eq!(verdict(&gone, &staged(), seen(Presence::Directory).as_ref()), still);
    let none = table("");
    let device = DeviceNumber { major: 8, minor: 1 };
    for (presence, wanted) in [
        (Presence::Missing, Verdict::AsExpected),
        (Presence::Directory, Verdict::Leftover(Presence::Directory)),
        (Presence::RegularFile { size: 0 }, Verdict::Leftover(Presence::RegularFile { size: 0 })),
        (Presence::RegularFile { size: 1 }, Verdict::Leftover(Presence::RegularFile { size: 1 })),
        (Presence::Symlink, Verdict::Leftover(Presence::Symlink)),
        // A block volume that is published as a node, and not unpublished.
        (Presence::BlockDevice(device), Verdict::DeviceLeft(device)),
        (Presence::Hung, Verdict::Unreachable),
    ] {
        assert_eq!(verdict(&gone, &none, seen(presence).as_ref()), wanted);
    }
}

/// Anchors (f) 15: a mount whose server was killed is in the table as ever, and found by a look into it.
#[test]
fn a_dead_or_hanging_mount_is_no_right_one() {
    for inspection in [
        Inspection::of(Presence::Dead { errno: 107 }),
        Inspection::mounted(Presence::Dead { errno: 107 }, MountId::new(20)),
    ] {
        let found = verdict(&expected(), &staged(), Some(&inspection));
        assert_eq!(found, Verdict::DeadMount { errno: 107 });
    }
    let hung = verdict(&expected(), &staged(), seen(Presence::Hung).as_ref());
    assert_eq!(hung, Verdict::Unreachable);
}

/// Anchors (f) 23: a file where a device should be is refused (longhorn/longhorn#8009).
#[test]
fn a_file_is_not_taken_for_a_block_device() {
    let right = DeviceNumber { major: 8, minor: 1 };
    let other = DeviceNumber { major: 8, minor: 2 };
    let block = Expectation::block_device(TARGET).device(right);
    for (presence, wanted) in [
        (Presence::BlockDevice(right), Verdict::AsExpected),
        (Presence::BlockDevice(other), Verdict::AnotherDevice { expected: right, found: other }),
        (Presence::RegularFile { size: 0 }, Verdict::RegularFileAtTarget { size: 0 }),
        (Presence::RegularFile { size: 9 }, Verdict::RegularFileAtTarget { size: 9 }),
        (Presence::CharacterDevice(right), Verdict::UnfitTarget(Presence::CharacterDevice(right))),
        (Presence::Directory, Verdict::UnfitTarget(Presence::Directory)),
        (Presence::Missing, Verdict::MissingPath),
    ] {
        assert_eq!(verdict(&block, &table(""), seen(presence).as_ref()), wanted);
    }
    let file = seen(Presence::RegularFile { size: 0 });
    assert_eq!(
        verdict(&Expectation::file_system(TARGET), &table(""), file.as_ref()),
        Verdict::RegularFileAtTarget { size: 0 }
    );
}

#[test]
fn a_path_with_a_link_on_the_way_is_found_by_the_id_of_its_mount() {
    let linked = Expectation { path: "/link/staging".into(), ..expected() };
    let inspection = Inspection::mounted(Presence::Directory, MountId::new(20));
    assert_eq!(verdict(&linked, &staged(), Some(&inspection)), Verdict::AsExpected);
    assert_eq!(
        verdict(&linked, &staged(), seen(Presence::Directory).as_ref()),
        Verdict::NothingMounted(Presence::Directory)
    );
}

/// Anchors (f) 12: a bind of the staging that nobody knows holds it.
#[test]
fn a_bind_that_is_not_ours_holds_the_staging() {
    let binds = format!(
        "20 1 8:1 / {STAGING} rw shared:5 - ext4 /dev/sdb rw\n21 1 8:1 / {TARGET} rw shared:5 - ext4 /dev/sdb rw\n\
         22 1 8:1 /sub /foreign rw - ext4 /dev/sdb rw\n23 1 8:2 / /unrelated rw - ext4 /dev/sdc rw\n"
    );
    let table = table(&binds);
    let known = |path: &Path| path == Path::new(TARGET);
    let found = held_at(STAGING, &table, known);
    assert_eq!(found, Verdict::ForeignBind { mount_points: vec!["/foreign".into()] });
    let known = |path: &Path| path == Path::new(TARGET) || path == Path::new("/foreign");
    assert_eq!(held_at(STAGING, &table, known), Verdict::AsExpected);
    assert_eq!(held_at("/nothing", &table, |_| false), Verdict::AsExpected);
}

/// Anchors (f) 12: the state directory lies on a bind-mounted root, and every mount in it is seen twice
/// (kubernetes-sigs/aws-ebs-csi-driver#1264). The second sight is no holder.
#[test]
fn a_mount_seen_twice_through_a_bound_directory_is_no_holder() {
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
        assert_eq!(held_at(STAGING, &seen_twice(spread), known), Verdict::AsExpected, "{spread}");
    }
    // In a directory that receives no mounts, somebody bound it by hand, and that holds.
    let mirrored = ["/mirror/plugins/d/1/staging", "/mirror/pods/p/mount"].map(PathBuf::from).to_vec();
    assert_eq!(
        held_at(STAGING, &seen_twice("shared:9"), known),
        Verdict::ForeignBind { mount_points: mirrored }
    );
}

/// Anchors (f) 12: one network share is mounted by two volumes (kubernetes-csi/csi-driver-smb#353). To the kernel it is one
/// file system; the place tells the mounts apart, and neither holds the other.
#[test]
fn one_share_of_two_volumes_does_not_hold_either() {
    let other = "/kubelet/plugins/d/2/staging";
    let shares = |group: &str| {
        table(&format!(
            "20 1 0:60 / {STAGING} rw shared:5 - cifs //server/share rw\n\
             21 1 0:60 / {other} rw {group}- cifs //server/share rw\n"
        ))
    };
    assert_eq!(held_at(STAGING, &shares("shared:6 "), |path| path == Path::new(other)), Verdict::AsExpected);
    assert_eq!(held_at(STAGING, &shares("shared:6 "), |_| false), Verdict::AsExpected);
    // In the same group it is a bind of this very mount.
    let bind = Verdict::ForeignBind { mount_points: vec![other.into()] };
    assert_eq!(held_at(STAGING, &shares("shared:5 "), |_| false), bind);
    assert_eq!(
        held_at(STAGING, &shares(""), |_| false),
        bind,
        "where mounts do not spread, nothing tells a bind apart"
    );
    for path in [STAGING, other] {
        let table = shares("shared:6 ");
        let right = Expectation::file_system(path).device(DeviceNumber { major: 0, minor: 60 });
        assert_eq!(verdict(&right, &table, None), Verdict::AsExpected);
    }
}

/// An administrator's mount of the whole export holds none of the volumes that are parts of it; one of the same part may.
#[test]
fn the_whole_export_mounted_by_somebody_holds_no_part_of_it() {
    let shares = |root: &str, group: &str| {
        table(&format!(
            "20 1 0:60 /volumes/1 {STAGING} rw shared:5 - nfs4 h:/volumes/1 rw\n\
             21 1 0:60 {root} /mnt rw {group}- nfs4 h:/ rw\n"
        ))
    };
    for group in ["shared:6 ", ""] {
        assert_eq!(held_at(STAGING, &shares("/", group), |_| false), Verdict::AsExpected, "{group:?}");
    }
    assert_eq!(held_at(STAGING, &shares("/volumes/1", "shared:6 "), |_| false), Verdict::AsExpected);
    let bind = Verdict::ForeignBind { mount_points: vec!["/mnt".into()] };
    assert_eq!(held_at(STAGING, &shares("/volumes/1", ""), |_| false), bind);
}

/// Anchors (f) 12: the staging was unmounted, or is covered, and a foreign bind of it lives on.
#[test]
fn a_foreign_bind_holds_also_where_the_staging_is_not_seen() {
    let foreign = "22 1 8:1 /sub /foreign rw shared:5 - ext4 /dev/sdb rw\n";
    let staging = format!("20 1 8:1 / {STAGING} rw shared:5 - ext4 /dev/sdb rw\n");
    let covering = format!("30 20 0:70 / {STAGING} rw - tmpfs x rw\n");
    let hiding = "31 1 0:71 / /kubelet rw - tmpfs x rw\n";
    let identity = identity();
    let bind = Verdict::ForeignBind { mount_points: vec!["/foreign".into()] };
    for mounts in [
        foreign.to_owned(),
        format!("{staging}{foreign}"),
        format!("{staging}{foreign}{covering}"),
        format!("{staging}{foreign}{hiding}"),
    ] {
        let recorded = |known: &str| {
            held(Path::new(STAGING), Some(&identity), &table(&mounts), |path| path == Path::new(known))
        };
        assert_eq!(recorded(""), bind, "{mounts}");
        match recorded("/foreign") {
            Verdict::AsExpected => assert!(!mounts.contains("tmpfs"), "{mounts}"),
            Verdict::Covered { .. } | Verdict::Hidden { .. } => assert!(mounts.contains("tmpfs"), "{mounts}"),
            other => panic!("{other:?}: {mounts}"),
        }
    }
    assert_eq!(held_at(STAGING, &table(foreign), |_| false), Verdict::AsExpected, "nothing to search by");
    // A number that another file system has got since.
    let reused = "22 1 8:1 / /foreign rw - xfs /dev/sdb rw\n";
    let recorded = held(Path::new(STAGING), Some(&identity), &table(reused), |_| false);
    assert_eq!(recorded, Verdict::AsExpected);
}

#[test]
fn a_device_node_that_is_bound_is_held_by_its_binds_and_not_by_the_whole_of_dev() {
    let node = |path: &str, id: u32| format!("{id} 1 0:6 /sdb {path} rw - devtmpfs devtmpfs rw\n");
    let dev = "10 1 0:6 / /dev rw - devtmpfs devtmpfs rw\n";
    let staged = format!("{dev}{}", node(STAGING, 20));
    assert_eq!(held_at(STAGING, &table(&staged), |_| false), Verdict::AsExpected);
    let bound = format!("{staged}{}", node("/foreign", 21));
    let bind = Verdict::ForeignBind { mount_points: vec!["/foreign".into()] };
    assert_eq!(held_at(STAGING, &table(&bound), |_| false), bind);
}

/// Anchors (f) 9, 15: what somebody mounts over a live volume does not make it lost, dead, or another one.
#[test]
fn the_right_mount_beneath_another_is_left_alone() {
    let staging = format!("20 1 8:1 / {STAGING} rw shared:5 - ext4 /dev/sdb rw\n");
    let covered = table(&format!("{staging}30 20 0:70 / {STAGING} rw - tmpfs x rw\n"));
    let by = MountId::new(30);
    let wanted = Verdict::Covered { mount: MountId::new(20), by };
    for inspection in [
        None,
        Some(Inspection::mounted(Presence::Directory, by)),
        Some(Inspection::mounted(Presence::Dead { errno: 107 }, by)),
    ] {
        assert_eq!(verdict(&expected(), &covered, inspection.as_ref()), wanted);
    }
    let still = Verdict::StillMounted { mount: by };
    assert_eq!(verdict(&Expectation::nothing(STAGING), &covered, None), still);

    let hiding = "31 1 0:71 / /kubelet rw - tmpfs x rw\n";
    let again = format!("32 31 0:72 / {STAGING} rw - tmpfs x rw\n");
    let wanted = Verdict::Hidden { mount: MountId::new(20) };
    for (mounts, presence) in [
        (format!("{staging}{hiding}"), Presence::Missing),
        (format!("{staging}{hiding}"), Presence::Directory),
        (format!("{staging}{hiding}{again}"), Presence::Directory),
    ] {
        let inspection = Inspection::of(presence);
        assert_eq!(verdict(&expected(), &table(&mounts), None), wanted, "{mounts}");
        assert_eq!(verdict(&expected(), &table(&mounts), Some(&inspection)), wanted, "{mounts}");
    }
    // The directory may be gone to who looks, and the volume is mounted all the same.
    let hidden = table(&format!("{staging}{hiding}"));
    let gone = verdict(&Expectation::nothing(STAGING), &hidden, seen(Presence::Missing).as_ref());
    assert_eq!(gone, wanted);
}

#[test]
fn without_a_look_nothing_is_said_of_what_only_a_look_shows() {
    let none = table("");
    for expectation in
        [Expectation::nothing(STAGING), Expectation::file_system(STAGING), Expectation::block_device(STAGING)]
    {
        assert_eq!(verdict(&expectation, &none, None), Verdict::NotLookedAt, "{expectation:?}");
    }
}
