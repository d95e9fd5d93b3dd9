//! Metrics of the process itself, under the names that all Prometheus clients use.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::catalog::Family;

const fn family(name: &'static str, kind: &'static str, meaning: &'static str) -> Family {
    Family { name, kind, labels: &[], meaning }
}

/// What the collector exports.
pub(super) const FAMILIES: [Family; 7] = [
    family("process_cpu_seconds_total", "counter", "User and system CPU time in seconds."),
    family("process_max_fds", "gauge", "Largest number of open file descriptors."),
    family("process_open_fds", "gauge", "Open file descriptors."),
    family("process_resident_memory_bytes", "gauge", "Resident memory."),
    family("process_start_time_seconds", "gauge", "Unix time at which the process started."),
    family("process_threads", "gauge", "Threads."),
    family("process_virtual_memory_bytes", "gauge", "Virtual memory."),
];

/// Reads the metrics of this process from `/proc` when they are asked for. Those that cannot be read are left out.
#[derive(Debug)]
pub(super) struct ProcessCollector(Vec<Desc>);

impl ProcessCollector {
    pub(super) fn new() -> Self {
        Self(FAMILIES.iter().map(Family::desc).collect())
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let values = read().unwrap_or_default();
        let known = FAMILIES.iter().zip(values).filter_map(|(family, value)| Some((family, value?)));
        known.map(|(family, value)| family.with_values([([], value)])).collect()
    }
}

/// Reads the values of [`FAMILIES`].
fn read() -> Option<[Option<f64>; FAMILIES.len()]> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, the name in parentheses, may contain spaces; the third field follows it.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let ticks = clock_ticks_per_second() as f64;
    let system = fs::read_to_string("/proc/stat").ok();
    let booted = system
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("btime ")?.parse::<f64>().ok()));
    Some([
        field(14).zip(field(15)).map(|(user, system)| (user + system) / ticks),
        getrlimit(Resource::Nofile).current.map(|most| most as f64),
        fs::read_dir("/proc/self/fd").ok().map(|open| open.count().saturating_sub(1) as f64),
        field(24).map(|pages| pages * page_size() as f64),
        field(22).zip(booted).map(|(started, booted)| booted + started / ticks),
        field(20),
        field(23),
    ])
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    /// Reads a line of another file of the system.
    fn status(key: &str) -> f64 {
        let status = fs::read_to_string("/proc/self/status").expect("/proc is readable");
        let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("the line is there");
        line.split_whitespace().nth(1).and_then(|value| value.parse().ok()).expect("a number")
    }

    #[test]
    fn a_process_knows_itself() {
        let before = ["VmRSS", "VmSize"].map(status);
        let values = read().expect("/proc is readable");
        let [cpu, max_fds, open_fds, resident, start, threads, virtual_memory] =
            values.map(|value| value.expect("each value is readable"));
        // The system counts in hundredths of a second, of which this process has used some.
        let used = || {
            let time = clock_gettime(ClockId::ProcessCPUTime);
            time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
        };
        let (begun, mut cpu_after) = (used(), cpu);
        while used() < begun + 0.2 {
            cpu_after = read().and_then(|values| values[0]).expect("/proc is readable");
        }
        assert!((cpu_after - used()).abs() < 0.1, "{cpu_after} s of {} s", used());
        assert!((3.0..=max_fds).contains(&open_fds));
        assert!(1e6 < resident && resident < virtual_memory);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs_f64();
        assert!((now - 3600.0..now + 2.0).contains(&start), "{start} {now}");
        // The other threads of the tests come and go, and touch memory.
        assert!((threads - status("Threads")).abs() < 64.0, "{threads}");
        for ((bytes, key), before) in
            [(resident, "VmRSS"), (virtual_memory, "VmSize")].into_iter().zip(before)
        {
            let (before, after) = (1024.0 * before, 1024.0 * status(key));
            let expected = before.min(after) / 2.0..before.max(after) * 2.0;
            assert!(expected.contains(&bytes), "{key}: {bytes}, not in {expected:?}");
        }
        let exported = ProcessCollector::new().collect();
        assert_eq!(exported.iter().map(|family| family.name()).collect::<Vec<_>>(), FAMILIES.map(|f| f.name));
    }
}
