//! Traces of a few steps, for Chrome (`chrome://tracing`) and Perfetto (`ui.perfetto.dev`).

use std::path::Path;

use rankine_backend::{Backend, Profile, TraceEvent};
use rankine_base::publish::OwnOutput;

use super::report::TraceSummary;
use crate::training::error::TrainError;

/// Earlier traces, which a further one replaces.
pub(super) const TRACE: OwnOutput = OwnOutput {
    what: "a trace",
    // Objects have their keys in order of insertion or of names, which depends on the build.
    is_own: |start| {
        [&br#"{"traceEvents":["#[..], br#"{"displayTimeUnit":"ns","traceEvents":["#]
            .iter()
            .any(|trace| start.starts_with(trace))
    },
    way_out: "remove it",
};

/// Traces this many steps, which `run` performs and waits for, and writes the GPU's activity to a file.
///
/// # Errors
/// Those of `run`; [`TrainError::Bench`] if no trace can be taken here, [`TrainError::Data`] if the file cannot be
/// written.
pub(super) fn take(
    backend: &mut dyn Backend,
    path: &Path,
    steps: usize,
    run: impl FnOnce(&mut dyn Backend) -> Result<(), TrainError>,
) -> Result<TraceSummary, TrainError> {
    backend.profile().map(Profile::begin_trace).transpose()?;
    run(backend)?;
    let events = backend.profile().map(Profile::end_trace).transpose()?.unwrap_or_default();
    TRACE.replace(path, chrome(&events).to_string().as_bytes())?;
    let kernels = events.iter().filter(|event| event.is_kernel).count();
    Ok(TraceSummary {
        path: path.display().to_string(),
        iterations: steps,
        kernels_per_iteration: kernels as f64 / steps as f64,
        kernel_free_share: kernel_free_share(&events),
    })
}

/// The share of the time from the first kernel's start to the last one's end in which none ran.
fn kernel_free_share(events: &[TraceEvent]) -> f64 {
    let mut spans: Vec<_> =
        events.iter().filter(|event| event.is_kernel).map(|event| (event.begin_ns, event.end_ns)).collect();
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
fn chrome(events: &[TraceEvent]) -> serde_json::Value {
    let origin = events.iter().map(|event| event.begin_ns).min().unwrap_or(0);
    let us = |ns: u64| ns as f64 / 1e3;
    let json = |event: &TraceEvent| {
        let TraceEvent { name, is_kernel, device, lane, begin_ns, end_ns, bytes } = event;
        let mut entry = serde_json::json!({
            "name": name,
            "cat": if *is_kernel { "kernel" } else { "memory" },
            "ph": "X",
            "ts": us(begin_ns - origin),
            "dur": us(end_ns.saturating_sub(*begin_ns)),
            "pid": device,
            "tid": lane,
        });
        if !is_kernel {
            entry["args"] = serde_json::json!({ "bytes": bytes });
        }
        entry
    };
    let mut lanes: Vec<_> = events.iter().map(|event| (event.device, event.lane)).collect();
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
    let entries: Vec<_> = names.chain(events.iter().map(json)).collect();
    serde_json::json!({ "traceEvents": entries, "displayTimeUnit": "ns" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, lane: u32, span: (u64, u64)) -> TraceEvent {
        let is_kernel = name != "copy";
        let (begin_ns, end_ns) = span;
        TraceEvent { name: name.into(), is_kernel, device: 0, lane, begin_ns, end_ns, bytes: 7 }
    }

    #[test]
    fn time_without_kernels_is_what_no_lane_covers() {
        let all = [
            event("a", 1, (1000, 1400)),
            event("b", 2, (1300, 1500)),
            event("copy", 3, (1500, 1700)),
            event("c", 1, (1600, 2000)),
            event("d", 2, (1700, 1800)),
        ];
        assert_eq!(kernel_free_share(&all), 0.1);
        assert_eq!(kernel_free_share(&all[..2]), 0.0);
        assert_eq!(kernel_free_share(&all[2..3]), 1.0);
    }

    #[test]
    fn a_trace_replaces_a_trace_and_no_other_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("trace.json");
        for events in [&[event("a", 4, (5000, 5500))][..], &[]] {
            TRACE.replace(&path, chrome(events).to_string().as_bytes()).unwrap();
            TRACE.check(&path).unwrap();
        }
        std::fs::write(&path, r#"{"format":"rankine dataset","traceEvents":[]}"#).unwrap();
        let refused = TRACE.check(&path).unwrap_err().to_string();
        assert!(
            refused.ends_with("exists and is not a trace: choose another file, or remove it"),
            "{refused}"
        );
    }

    #[test]
    fn events_are_complete_and_lanes_have_names() {
        let trace = chrome(&[event("a", 4, (5000, 5500)), event("copy", 5, (6000, 6250))]);
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 6);
        assert_eq!(events[1]["args"]["name"], "lane 4");
        let of = |name: &str| events.iter().find(|event| event["name"] == name).unwrap();
        assert_eq!((&of("a")["ts"], &of("a")["dur"]), (&0.0.into(), &0.5.into()));
        assert_eq!((&of("copy")["ts"], &of("copy")["args"]["bytes"]), (&1.0.into(), &7.into()));
    }
}
