//! Traces of a few iterations, for Chrome (`chrome://tracing`) and Perfetto (`ui.perfetto.dev`).

use std::path::Path;

use rankine_reader::publish::replace_file;

use super::super::TrainError;
use super::super::backend::{Activity, Backend, Profile};
use super::TraceSummary;

/// Traces this many steps, which `run` performs and waits for, and writes the GPU's activity to a file.
///
/// # Errors
/// Those of `run`; [`TrainError::Device`] if no trace can be taken here, [`TrainError::Data`] if the file cannot be
/// written.
pub(super) fn take(
    backend: &mut dyn Backend,
    path: &Path,
    steps: usize,
    run: impl FnOnce(&mut dyn Backend) -> Result<(), TrainError>,
) -> Result<TraceSummary, TrainError> {
    backend.profile().map(Profile::begin_trace).transpose()?;
    run(backend)?;
    let activities = backend.profile().map(Profile::end_trace).transpose()?.unwrap_or_default();
    replace_file(path, chrome(&activities).to_string().as_bytes())?;
    let kernels = activities.iter().filter(|activity| activity.is_kernel).count();
    Ok(TraceSummary {
        path: path.display().to_string(),
        iterations: steps,
        kernels_per_iteration: kernels as f64 / steps as f64,
        kernel_free_share: kernel_free_share(&activities),
    })
}

/// The share of the time from the first kernel's start to the last one's end in which none ran.
fn kernel_free_share(activities: &[Activity]) -> f64 {
    let mut spans: Vec<_> = activities
        .iter()
        .filter(|activity| activity.is_kernel)
        .map(|activity| (activity.begin_ns, activity.end_ns))
        .collect();
    spans.sort_unstable();
    let Some(&(first, _)) = spans.first() else { return 1.0 };
    let (mut until, mut free) = (first, 0);
    for (begin, end) in spans {
        free += begin.saturating_sub(until);
        until = until.max(end);
    }
    if until == first { 0.0 } else { free as f64 / (until - first) as f64 }
}

/// The trace event format: complete events, times in microseconds from the first one's.
fn chrome(activities: &[Activity]) -> serde_json::Value {
    let origin = activities.iter().map(|activity| activity.begin_ns).min().unwrap_or(0);
    let us = |ns: u64| ns as f64 / 1e3;
    let event = |activity: &Activity| {
        let Activity { name, is_kernel, device, lane, begin_ns, end_ns, bytes } = activity;
        let mut event = serde_json::json!({
            "name": name,
            "cat": if *is_kernel { "kernel" } else { "memory" },
            "ph": "X",
            "ts": us(begin_ns - origin),
            "dur": us(end_ns.saturating_sub(*begin_ns)),
            "pid": device,
            "tid": lane,
        });
        if !is_kernel {
            event["args"] = serde_json::json!({ "bytes": bytes });
        }
        event
    };
    let mut lanes: Vec<_> = activities.iter().map(|activity| (activity.device, activity.lane)).collect();
    lanes.sort_unstable();
    lanes.dedup();
    let names = lanes.into_iter().flat_map(|(device, lane)| {
        let name = |what: &str, name: String| {
            serde_json::json!({
                "name": what, "ph": "M", "pid": device, "tid": lane, "args": { "name": name }
            })
        };
        [name("process_name", format!("GPU {device}")), name("thread_name", format!("lane {lane}"))]
    });
    let events: Vec<_> = names.chain(activities.iter().map(event)).collect();
    serde_json::json!({ "traceEvents": events, "displayTimeUnit": "ns" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(name: &str, lane: u32, span: (u64, u64)) -> Activity {
        let is_kernel = name != "copy";
        let (begin_ns, end_ns) = span;
        Activity { name: name.into(), is_kernel, device: 0, lane, begin_ns, end_ns, bytes: 7 }
    }

    #[test]
    fn time_without_kernels_is_what_no_lane_covers() {
        let all = [
            activity("a", 1, (1000, 1400)),
            activity("b", 2, (1300, 1500)),
            activity("copy", 3, (1500, 1700)),
            activity("c", 1, (1600, 2000)),
            activity("d", 2, (1700, 1800)),
        ];
        assert_eq!(kernel_free_share(&all), 0.1);
        assert_eq!(kernel_free_share(&all[..2]), 0.0);
        assert_eq!(kernel_free_share(&all[2..3]), 1.0);
    }

    #[test]
    fn events_are_complete_and_lanes_have_names() {
        let trace = chrome(&[activity("a", 4, (5000, 5500)), activity("copy", 5, (6000, 6250))]);
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 6);
        assert_eq!(events[1]["args"]["name"], "lane 4");
        let of = |name: &str| events.iter().find(|event| event["name"] == name).unwrap();
        assert_eq!((&of("a")["ts"], &of("a")["dur"]), (&0.0.into(), &0.5.into()));
        assert_eq!((&of("copy")["ts"], &of("copy")["args"]["bytes"]), (&1.0.into(), &7.into()));
    }
}
