//! How many threads to use: one a physical core that this process may run on, within its CPU quota.

use std::collections::BTreeSet;
use std::path::Path;

use crate::cgroup::{ReadFile, folders};
use crate::pool::MAX_THREADS;

/// The default number of threads: physical cores in the affinity mask, at most the cgroup's CPU quota rounded up, 1 to [`MAX_THREADS`].
///
/// Two hardware threads of one core share the units that matmuls saturate, so the second gains nothing.
#[must_use]
pub fn default_threads() -> usize {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let cores = allowed_cpus().map_or_else(available_cpus, |allowed| physical_cores(&allowed, &read));
    let quota = cpu_quota(&read).unwrap_or(usize::MAX);
    cores.min(quota).clamp(1, MAX_THREADS)
}

fn available_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The CPUs in this process's affinity mask, none where the system does not say.
#[cfg(target_os = "linux")]
fn allowed_cpus() -> Option<Vec<usize>> {
    use rustix::thread::CpuSet;

    let mask = rustix::thread::sched_getaffinity(None).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|&cpu| mask.is_set(cpu)).collect())
}

#[cfg(not(target_os = "linux"))]
fn allowed_cpus() -> Option<Vec<usize>> {
    None
}

/// Number of physical cores to which `allowed` belong. A CPU whose siblings are not told counts as a core.
fn physical_cores(allowed: &[usize], read: ReadFile) -> usize {
    let siblings = |cpu: &usize| {
        let topology = Path::new("/sys/devices/system/cpu").join(format!("cpu{cpu}/topology"));
        // The second is the name in kernels before 5.0.
        let list = read(&topology.join("core_cpus_list")).or_else(|| read(&topology.join("thread_siblings_list")));
        list.map_or_else(|| cpu.to_string(), |list| list.trim().to_owned())
    };
    // All CPUs of a core have the same list, in full whatever the mask, so the text names the core.
    allowed.iter().map(siblings).collect::<BTreeSet<_>>().len()
}

/// The least CPU quota of the cgroups that hold this process, in whole CPUs rounded up; none without a limit.
fn cpu_quota(read: ReadFile) -> Option<usize> {
    let folders = folders(read, "cpu", &["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"]);
    let quota_2 = folders
        .version_2
        .iter()
        .filter_map(|folder| parse_cpu_max(&read(&folder.join("cpu.max"))?));
    let quota_1 = folders.version_1.iter().filter_map(|folder| {
        whole_cpus(
            read(&folder.join("cpu.cfs_quota_us"))?.trim(),
            read(&folder.join("cpu.cfs_period_us"))?.trim(),
        )
    });
    quota_2.chain(quota_1).min()
}

/// The quota in `cpu.max`: `QUOTA PERIOD` in microseconds, QUOTA `max` for none.
fn parse_cpu_max(text: &str) -> Option<usize> {
    let (quota, period) = text.trim().split_once(' ')?;
    whole_cpus(quota, period)
}

/// Quota over period, both in microseconds, rounded up. None for `max` (version 2), −1 (version 1) and what is no number.
fn whole_cpus(quota: &str, period: &str) -> Option<usize> {
    let (quota, period): (usize, usize) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0 && period > 0).then(|| quota.div_ceil(period))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine's files.
    fn files(files: &[(&str, &str)]) -> impl Fn(&Path) -> Option<String> {
        |path| {
            files
                .iter()
                .find(|(name, _)| Path::new(name) == path)
                .map(|(_, text)| (*text).to_owned())
        }
    }

    #[test]
    fn the_default_is_within_what_the_system_offers() {
        let threads = default_threads();
        assert!((1..=MAX_THREADS).contains(&threads));
        if let Some(allowed) = allowed_cpus() {
            assert!(threads <= allowed.len());
        }
    }

    #[test]
    fn hardware_threads_of_one_core_count_once() {
        let machine = files(&[
            ("/sys/devices/system/cpu/cpu0/topology/core_cpus_list", "0,4\n"),
            ("/sys/devices/system/cpu/cpu4/topology/core_cpus_list", "0,4\n"),
            ("/sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1-2\n"),
            ("/sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "1-2\n"),
        ]);
        assert_eq!(physical_cores(&[0, 1, 2, 4], &machine), 2);
        assert_eq!(physical_cores(&[4], &machine), 1);
        assert_eq!(physical_cores(&[2, 4, 8, 9], &machine), 4);
        assert_eq!(physical_cores(&[], &machine), 0);
    }

    #[test]
    fn quotas_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_cpu_max("max 100000\n"), None);
        assert_eq!(parse_cpu_max("100000 100000\n"), Some(1));
        assert_eq!(parse_cpu_max("150000 100000\n"), Some(2));
        assert_eq!(parse_cpu_max("1000 100000\n"), Some(1));
        for text in [
            "",
            "max",
            "100000",
            "1 0",
            "0 100000",
            "-5 100000",
            "x y",
            "1 2 3",
            "99999999999999999999 1",
        ] {
            assert_eq!(parse_cpu_max(text), None, "{text}");
        }
    }

    #[test]
    fn version_2_takes_the_least_quota_on_the_way_up() {
        let nested = files(&[
            ("/proc/self/cgroup", "0::/user.slice/job.scope\n"),
            ("/sys/fs/cgroup/user.slice/job.scope/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/user.slice/cpu.max", "250000 100000\n"),
        ]);
        assert_eq!(cpu_quota(&nested), Some(3));
        let container = files(&[
            ("/proc/self/cgroup", "0::/\n"),
            ("/sys/fs/cgroup/cpu.max", "400000 100000\n"),
        ]);
        assert_eq!(cpu_quota(&container), Some(4));
    }

    #[test]
    fn version_1_takes_the_least_quota_on_the_way_up() {
        const MEMBERSHIP: &str = "12:memory:/docker/abc\n5:cpuset:/x\n4:cpu,cpuacct:/docker/abc\n0::/system.slice\n";
        let host = files(&[
            ("/proc/self/cgroup", MEMBERSHIP),
            ("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "150000\n"),
            ("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(cpu_quota(&host), Some(2));
        // Inside the container the mount point is the container's own folder.
        let inside = files(&[
            ("/proc/self/cgroup", MEMBERSHIP),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "350000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(cpu_quota(&inside), Some(4));
    }

    #[test]
    fn no_limit_is_no_quota() {
        assert_eq!(cpu_quota(&files(&[])), None);
        assert_eq!(
            cpu_quota(&files(&[("/proc/self/cgroup", "no colons\n\n1:name=systemd:/\n")])),
            None
        );
        assert_eq!(cpu_quota(&files(&[("/proc/self/cgroup", "0::/../../etc\n")])), None);
    }
}
