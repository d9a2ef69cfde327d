use std::os::unix::ffi::OsStrExt;

use proptest::prelude::*;

use super::super::*;
use super::*;

fn table(text: &str) -> MountTable {
    MountTable::parse(text.as_bytes()).unwrap()
}

fn at<'a>(table: &'a MountTable, path: &str) -> Option<&'a Mount> {
    table.at(Path::new(path))
}

const SMALL: &str = r"22 1 254:0 / / rw,relatime - ext4 /dev/root rw
23 22 0:5 / /proc rw,nosuid shared:2 - proc proc rw
30 22 8:1 / /data rw,relatime shared:3 master:1 propagate_from:2 unbindable - ext4 /dev/sda1 ro,discard
31 30 8:1 /a\040b /data/with\134\040\043\011 ro - ext4 /dev/sda1 ro,discard
32 22 0:40 / /empty rw - tmpfs  rw
";

#[test]
fn parses_every_field() {
    let table = table(SMALL);
    assert_eq!(table.len(), 5);
    let data = at(&table, "/data").unwrap();
    assert_eq!((data.id, data.parent), (MountId::new(30), MountId::new(22)));
    assert_eq!(data.device, DeviceNumber { major: 8, minor: 1 });
    assert_eq!((data.peer_group, data.master_group), (Some(3), Some(1)));
    assert!(data.is_read_only() && !data.has_option("ro"), "the whole file system is read-only");
    let part = at(&table, "/data/with\\ #\t").unwrap();
    assert_eq!(part.root, Path::new("/a b"));
    assert_eq!(
        (part.id, part.parent, part.mount_point.as_path()),
        (MountId::new(31), MountId::new(30), Path::new("/data/with\\ #\t"))
    );
    assert_eq!((part.options.as_bytes(), part.fs_options.as_bytes()), (&b"ro"[..], &b"ro,discard"[..]));
    assert_eq!((part.peer_group, part.source.as_bytes()), (None, &b"/dev/sda1"[..]));
    let empty = at(&table, "/empty").unwrap();
    assert_eq!((empty.source.as_bytes(), empty.fs_type.as_bytes()), (&b""[..], &b"tmpfs"[..]));
}

#[test]
fn invalid_fields_are_reported_with_their_line() {
    let good = "22 1 254:0 / / rw - ext4 /dev/root rw";
    for (line, field) in [
        ("", "none"),
        ("x", "mount id"),
        ("+22 1 254:0 / / rw - ext4 /dev/root rw", "mount id"),
        ("22", "parent id"),
        ("22 1 254 / / rw - ext4 /dev/root rw", "device"),
        ("22 1 254:4294967296 / / rw - ext4 /dev/root rw", "device"),
        (r"22 1 254:0 /\9 / rw - ext4 /dev/root rw", "root"),
        ("22 1 254:0 / data rw - ext4 /dev/root rw", "mount point"),
        ("22 1 254:0 / /", "options"),
        ("22 1 254:0 / / rw shared:x - ext4 /dev/root rw", "shared"),
        ("22 1 254:0 / / rw master: - ext4 /dev/root rw", "master"),
        ("22 1 254:0 / / rw shared:1", "separator"),
        ("22 1 254:0 / / rw -", "file system type"),
        ("22 1 254:0 / / rw - ext4", "source"),
        ("22 1 254:0 / / rw - ext4 /dev/root", "file system options"),
    ] {
        let text = format!("{}\n{line}\n", good.replace("22", "21"));
        let parsed = MountTable::parse(text.as_bytes());
        match field {
            "none" => assert_eq!(parsed.unwrap().len(), 1),
            field => assert_eq!(parsed, Err(InvalidMountTable::Field { line: 2, field }), "{line}"),
        }
    }
    let duplicate = format!("{good}\n{good}\n");
    let id = MountId::new(22);
    assert_eq!(MountTable::parse(duplicate.as_bytes()), Err(InvalidMountTable::DuplicateId { line: 2, id }));
}

#[test]
fn table_is_bounded_in_lines_and_bytes() {
    let long = format!("22 1 254:0 / /{} rw - ext4 /dev/root rw", "x".repeat(Mount::MAX_LINE_BYTES));
    let found = long.len();
    assert_eq!(MountTable::parse(long.as_bytes()), Err(InvalidMountTable::LongLine { line: 1, found }));
    let line = |id: usize| format!("{id} 1 254:0 / /m rw - ext4 /dev/root rw\n");
    let many: String = (0..=MountTable::MAX_MOUNTS).map(line).collect();
    assert_eq!(MountTable::parse(many.as_bytes()), Err(InvalidMountTable::TooMany));
    let bytes = vec![b'\n'; MountTable::MAX_BYTES + 1];
    assert_eq!(MountTable::parse(&bytes), Err(InvalidMountTable::TooLong));
}

#[test]
fn keeps_bytes_that_are_not_utf8() {
    let line = b"22 1 254:0 / / rw - ext4 /dev/root rw\n23 22 0:9 / /m\xff\xfe rw - nfs h:/\xe9 rw\n";
    let table = MountTable::parse(line).unwrap();
    let path = Path::new(std::ffi::OsStr::from_bytes(b"/m\xff\xfe"));
    assert_eq!(table.at(path).unwrap().source.as_bytes(), b"h:/\xe9");
}

/// One foreign mount must not make the whole table unreadable.
#[test]
fn only_paths_have_to_be_escaped() {
    let line = r"22 1 254:0 / / rw - ext4 /dev/root rw
23 22 0:9 / /m rw,a\b - ci\fs \\server\share rw,user=DOMAIN\me
";
    let line = line.replace("\\\\", "\\");
    let table = table(&line);
    let mount = at(&table, "/m").unwrap();
    assert!(mount.has_option(r"a\b"));
    assert_eq!(mount.fs_options.as_bytes(), br"rw,user=DOMAIN\me");
}

/// Stacked mounts are counted, also 49,153 of them (spiffe/spiffe-csi#331).
#[test]
fn counts_a_stack_from_the_top() {
    let count = 49_153;
    let mut text = String::from("1 0 254:0 / / rw - ext4 /dev/root rw\n");
    for id in 2..=count + 1 {
        text += &format!("{id} {} 0:50 / /t rw - tmpfs tmpfs rw\n", id - 1);
    }
    let table = table(&text);
    let path = Path::new("/t");
    assert_eq!(table.stack(path).len(), count);
    assert_eq!(table.at(path).unwrap().id, MountId::new(u64::try_from(count).unwrap() + 1));
    let MountCheck::StackedMounts { count: found } =
        check_mount(&Expectation::file_system(path), &table, None)
    else {
        panic!("a stack")
    };
    assert_eq!(found, count);
}

#[test]
fn hidden_mount_is_not_at_its_path() {
    // /a was mounted over after /a/b was.
    let table = table(
        "1 0 254:0 / / rw - ext4 /dev/root rw\n2 1 8:1 / /a/b rw - ext4 /dev/sda1 rw\n\
         3 1 8:2 / /a rw - ext4 /dev/sda2 rw\n",
    );
    assert_eq!(at(&table, "/a/b"), None);
    assert_eq!(at(&table, "/a").unwrap().id, MountId::new(3));
    assert_eq!(table.stack(Path::new("/a/b")).len(), 0);
    assert_eq!(table.within(Path::new("/a")).count(), 2, "hidden mounts remain in the table");
    assert_eq!(table.within(Path::new("/a/b")).count(), 1);
    assert_eq!(table.covering(Path::new("/a/b/c")).unwrap().id, MountId::new(3));
    assert_eq!(table.covering(Path::new("/x")).unwrap().id, MountId::new(1));
}

#[test]
fn finds_a_mount_inside_of_another() {
    let table = table(
        "1 0 254:0 / / rw - ext4 /dev/root rw\n2 1 8:1 / /a rw - ext4 /dev/sda1 rw\n\
         3 2 8:2 / /a rw - ext4 /dev/sda2 rw\n4 3 8:3 / /a/b/c rw - ext4 /dev/sda3 rw\n\
         5 2 8:4 / /a/b/c rw - ext4 /dev/sda4 rw\n",
    );
    assert_eq!(at(&table, "/a/b/c").unwrap().id, MountId::new(4));
    assert_eq!(table.stack(Path::new("/a/b/c")).len(), 1);
    assert_eq!(table.stack(Path::new("/a")).len(), 2);
}

#[test]
fn cycle_of_parents_terminates() {
    let table = table("1 2 8:1 / /a rw - ext4 x rw\n2 1 8:1 / /a rw - ext4 x rw\n");
    assert_eq!(at(&table, "/a"), None);
    let own = self::table("1 1 8:1 / / rw - ext4 x rw\n");
    assert_eq!(at(&own, "/").unwrap().id, MountId::new(1));
}

#[test]
fn bind_of_a_part_is_a_holder_and_the_whole_disk_is_not() {
    let table = table(
        "1 0 254:0 / / rw - ext4 /dev/root rw\n2 1 254:0 /data/v /staging rw - ext4 /dev/root rw\n\
         3 1 254:0 /data /srv rw - ext4 /dev/root rw\n4 1 254:0 /data/v/part /mnt rw - ext4 /dev/root rw\n",
    );
    let holders = table.holders(at(&table, "/staging").unwrap(), |_| false);
    assert_eq!(holders.iter().map(|holder| holder.id).collect::<Vec<_>>(), [MountId::new(4)]);
}

/// Fragments of lines, so that the inputs get past the first field.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just(b"-".to_vec()),
        Just(b"8:1".to_vec()),
        Just(b"/a".to_vec()),
        Just(b"/a/b".to_vec()),
        Just(b"/".to_vec()),
        Just(b"rw".to_vec()),
        Just(b"shared:1".to_vec()),
        Just(b"\n".to_vec()),
        Just(br"\0".to_vec()),
        "[0-9]{1,3}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..6),
    ];
    proptest::collection::vec(word, 0..60).prop_map(|words| words.join(&b' '))
}

fn some_table() -> impl Strategy<Value = Vec<u8>> {
    let line = (0u32..40, 0u32..40, 0u32..3, "(/[a-c]){0,3}", "(/[a-c]){1,3}", prop::bool::ANY);
    proptest::collection::vec(line, 0..30).prop_map(|lines| {
        let mut text = Vec::new();
        for (id, parent, device, root, point, ro) in lines {
            let (root, ro) = (if root.is_empty() { "/" } else { &root }, if ro { "ro" } else { "rw" });
            text.extend(format!("{id} {parent} 8:{device} {root} {point} {ro} - ext4 x {ro}\n").into_bytes());
        }
        text
    })
}

proptest! {
    #[test]
    fn parser_never_panics(text in prop_oneof![
        garbage(), some_table(), proptest::collection::vec(any::<u8>(), 0..300)
    ]) {
        let Ok(table) = MountTable::parse(&text) else { return Ok(()) };
        let paths: Vec<PathBuf> = table.iter().map(|mount| mount.mount_point.clone()).collect();
        for path in &paths {
            let stack = table.stack(path);
            prop_assert!(stack.len() <= table.len());
            prop_assert_eq!(stack.first().copied(), table.at(path));
            let _ = check_mount(&Expectation::file_system(path), &table, None);
            let _ = check_unused(path, None, &table, |_| false);
        }
    }

    #[test]
    fn holders_share_device_and_root_and_are_not_known(text in some_table()) {
        let Ok(table) = MountTable::parse(&text) else { return Ok(()) };
        for mount in table.iter() {
            for other in table.holders(mount, |path| path == Path::new("/a")) {
                prop_assert_eq!(other.device, mount.device);
                prop_assert!(other.root.starts_with(&mount.root));
                prop_assert!(other.mount_point != mount.mount_point && other.mount_point != Path::new("/a"));
            }
        }
    }
}
