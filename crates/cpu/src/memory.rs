//! How much memory this process may use.

use std::path::{Path, PathBuf};

use crate::cgroup::{ReadFile, folders};

/// Whether there is no room for `bytes` twice: for a file's pages beside the weights that are made of them.
pub fn is_scarce_for(bytes: usize) -> bool {
    available_bytes().is_some_and(|available| available / 2 < bytes as u64)
}

/// What the system could give this process without swapping, at most what the fullest of its cgroups has left; none where neither is told.
pub fn available_bytes() -> Option<u64> {
    available(&|path| std::fs::read_to_string(path).ok())
}

/// The most memory that this process has had so far; none where the system does not tell.
pub fn most_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    parse_line(&status, "VmHWM:")
}

fn available(read: ReadFile) -> Option<u64> {
    let system = read(Path::new("/proc/meminfo")).and_then(|text| parse_line(&text, "MemAvailable:"));
    let folders = folders(read, "memory", &["/sys/fs/cgroup/memory"]);
    let rest = |folder: &PathBuf, names: &GroupFiles| {
        let number = |file| read(&folder.join(file))?.trim().parse::<u64>().ok();
        let limit = number(names.limit)?;
        let stat = read(&folder.join("memory.stat")).unwrap_or_default();
        // Pages of files that nobody has used for a while go when they are in the way.
        let idle = stat
            .lines()
            .find_map(|line| line.strip_prefix(names.idle)?.trim().parse().ok());
        let used = number(names.used).unwrap_or(0).saturating_sub(idle.unwrap_or(0));
        Some(limit.saturating_sub(used))
    };
    let rests_2 = folders.version_2.iter().filter_map(|folder| rest(folder, &VERSION_2));
    // No limit is a number beyond all memory.
    let rests_1 = folders.version_1.iter().filter_map(|folder| rest(folder, &VERSION_1));
    system.into_iter().chain(rests_2).chain(rests_1).min()
}

/// What a version of groups calls its files, and the line of `memory.stat` with the bytes of idle pages of files.
struct GroupFiles {
    limit: &'static str,
    used: &'static str,
    idle: &'static str,
}

const VERSION_2: GroupFiles = GroupFiles {
    limit: "memory.max",
    used: "memory.current",
    idle: "inactive_file ",
};
const VERSION_1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    idle: "total_inactive_file ",
};

/// The line `KEY N kB` of a file in `/proc`, in bytes.
fn parse_line(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       24683520 kB\nMemFree:         1048576 kB\nMemAvailable:    2097152 kB\n";

    #[test]
    fn the_least_of_system_and_groups_counts() {
        let available = |membership: &str, limits: &[(&str, &str)]| {
            super::available(&|path| {
                let files = [("/proc/meminfo", MEMINFO), ("/proc/self/cgroup", membership)];
                let mut files = files.iter().chain(limits);
                files
                    .find(|(name, _)| Path::new(name) == path)
                    .map(|(_, text)| (*text).to_owned())
            })
        };
        const GIB: u64 = 1 << 30;
        assert_eq!(available("", &[]), Some(2 * GIB));
        let above = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "1073741824\n"),
        ];
        assert_eq!(available("0::/a/b\n", &above), Some(GIB));
        let version_1 = [
            ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "536870912\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(available("7:memory:/x\n", &version_1), Some(GIB / 2));
        assert_eq!(available("7:cpu:/x\n", &version_1), Some(2 * GIB));
        let used = [
            ("/sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/a/memory.current", "805306368\n"),
            ("/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 268435456\n"),
        ];
        assert_eq!(available("0::/a\n", &used), Some(GIB / 2));
        assert_eq!(available("0::/a\n", &used[..2]), Some(GIB / 4));
    }

    #[test]
    fn what_is_not_told_limits_nothing() {
        assert_eq!(super::available(&|_| None), None);
        for text in [
            "",
            "MemAvailable:",
            "MemAvailable: x kB",
            "MemAvailable: 5 MB",
            "MemAvailable: 99999999999999999999 kB",
        ] {
            assert_eq!(parse_line(text, "MemAvailable:"), None, "{text}");
        }
    }
}
