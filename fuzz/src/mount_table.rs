//! The kernel's mount table, in which every user of the machine may write names.

use std::path::Path;

use volume_manager::mounts::MountTable;

/// Reads a table and asks it everything.
pub fn run(data: &[u8]) {
    let Ok(table) = MountTable::parse(data) else { return };
    assert_eq!(table.iter().count(), table.len());
    for mount in table.iter() {
        assert!(table.by_id(mount.id).is_some());
        assert!(table.of_device(mount.device).count() > 0);
        let path: &Path = mount.mount_point.as_ref();
        // Under a table that leads round in a circle nothing can be reached.
        assert!(table.stack(path).len() <= table.len());
        assert!(table.at(path).is_none_or(|found| found.mount_point == mount.mount_point));
        assert!(table.at(path).is_none() || table.covering(path) == table.at(path));
    }
}
