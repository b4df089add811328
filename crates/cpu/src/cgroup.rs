//! Where the limits of the control groups that hold this process are written.

use std::path::{Path, PathBuf};

/// Reads a small file, none if it is not there. A parameter, so that tests bring the files of other machines.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// The folders of this process's groups and of those above, whose limits bind it too.
#[derive(Debug, Default)]
pub struct Folders {
    pub version_2: Vec<PathBuf>,
    pub version_1: Vec<PathBuf>,
}

/// The folders with the files of `controller`, which version 1 mounts at one of `mounts`.
pub fn folders(read: ReadFile, controller: &str, mounts: &[&str]) -> Folders {
    let Some(membership) = read(Path::new("/proc/self/cgroup")) else {
        return Folders::default();
    };
    let all_up = |mounts: &[&str], cgroup: Option<&str>| {
        let all = mounts.iter().zip(std::iter::repeat(cgroup));
        all.filter_map(|(mount, cgroup)| Some(folders_up(mount, cgroup?)))
            .flatten()
            .collect()
    };
    Folders {
        // With both versions mounted, version 2 lies in a folder of its own.
        version_2: all_up(
            &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
            version_2_path(&membership),
        ),
        version_1: all_up(mounts, version_1_path(&membership, controller)),
    }
}

/// The cgroup's folder and all above it up to the mount point: a limit binds everything below. In a container the path may be that
/// of the host, of which only the mount point exists.
fn folders_up(mount: &str, cgroup: &str) -> Vec<PathBuf> {
    let mount = Path::new(mount);
    let folder = mount.join(cgroup.trim_start_matches('/'));
    folder
        .ancestors()
        .take_while(|folder| folder.starts_with(mount))
        .map(Path::to_owned)
        .collect()
}

/// The path in the line `0::PATH` of `/proc/self/cgroup`.
fn version_2_path(membership: &str) -> Option<&str> {
    membership.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The path in the line `ID:CONTROLLERS:PATH` of `/proc/self/cgroup` whose controllers include `controller`.
fn version_1_path<'a>(membership: &'a str, controller: &str) -> Option<&'a str> {
    membership.lines().find_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}
