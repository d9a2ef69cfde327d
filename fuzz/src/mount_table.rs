//! The kernel's mount table, which contains names chosen by any user of the machine.

use std::path::Path;

use volume_manager::mounts::MountTable;

/// Parses a table and calls all its queries.
pub fn run(data: &[u8]) {
    let Ok(table) = MountTable::parse(data) else { return };
    assert_eq!(table.iter().count(), table.len());
    for mount in table.iter() {
        assert!(table.by_id(mount.id).is_some());
        assert!(table.of_device(mount.device).count() > 0);
        let path: &Path = mount.mount_point.as_ref();
        // With a cycle in the table, no path can be resolved.
        assert!(table.stack(path).len() <= table.len());
        assert!(table.at(path).is_none_or(|found| found.mount_point == mount.mount_point));
        assert!(table.at(path).is_none() || table.covering(path) == table.at(path));
    }
}
