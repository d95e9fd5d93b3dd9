//! What metrics say of a run, and that nothing disappears from the reference.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rankine_base::build::Build;
use rankine_engine::build;
use rankine_engine::training::{
    DeviceMemory, DeviceTable, EndReason, Event, ExchangedBytes, IdCounts, LookUpCount, MemoryPart, Observer,
    PhaseRun, Progress, Report, ReportDetails, StepDetails, StepTimes, TierTraffic,
};
use rankine_model::evaluation::{HeadMetrics, Metrics};
use rankine_model::guard::{NonFinite, SkipReason, SkippedSteps};
use rankine_reader::Part;
use rankine_topology::Process;

use super::catalog::Family;
use super::families::TableLabels;
use super::monitor::{families, refusal};
use super::server::Host;
use super::*;

/// Returns the value of a series, written as in the text format.
fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

fn get(monitor: &Monitor, path: &str) -> String {
    let address = monitor.address().expect("it listens").to_string();
    get_of_host(monitor, path, &format!("Host: {address}\r\n"))
}

/// Sends a request with this header, or with none.
fn get_of_host(monitor: &Monitor, path: &str, host: &str) -> String {
    let mut client = TcpStream::connect(monitor.address().expect("it listens")).expect("it accepts");
    write!(client, "GET {path} HTTP/1.0\r\n{host}\r\n").expect("it receives");
    let mut response = String::new();
    client.read_to_string(&mut response).expect("it answers");
    response
}

fn monitor(command: Command, readiness: Option<Readiness>) -> Monitor {
    listening("127.0.0.1:0", command, readiness)
}

fn listening(address: &str, command: Command, readiness: Option<Readiness>) -> Monitor {
    Monitor::start(MonitorOptions {
        info: RunInfo { command, name: "a \"name\"\n".into(), process: Process(2), processes: 4 },
        listen: address.parse().ok(),
        textfile: None,
        readiness: readiness.map(|readiness| Box::new(move || readiness.clone()) as Box<_>),
        processes: None,
    })
    .expect("a port is free")
}

/// The progress after a step.
fn progress(step: u64) -> Progress {
    let mut progress = Progress::default();
    progress.step = step;
    progress.samples = 64;
    progress.loss = 0.5;
    progress.dense_learning_rate = 0.125;
    progress.sparse_learning_rate = 0.25;
    progress.seconds = 1.0;
    progress.samples_per_second = 64.0;
    progress
}

/// Checks values of series, written without the prefix `rankine_`.
#[track_caller]
fn assert_exports(monitor: &Monitor, expected: &[(&str, f64)]) {
    let page = get(monitor, "/metrics");
    for (series, expected) in expected {
        assert_eq!(value(&page, &format!("rankine_{series}")), Some(*expected), "{series} in\n{page}");
    }
}

#[test]
fn known_series_are_exported_at_zero_from_the_start() {
    let page = get(&monitor(Command::Train, None), "/metrics");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"), "{page}");
    for series in [
        "rankine_train_samples_total",
        "rankine_train_skipped_steps_total{reason=\"loss_scale\"}",
        "rankine_train_phase_seconds_count{phase=\"reading\"}",
        "rankine_exchange_bytes_total{scope=\"between_nodes\"}",
        "rankine_reader_bytes_total{part=\"eval\"}",
        "rankine_checkpoint_failures_total",
        "rankine_checkpoint_last_success_timestamp_seconds",
    ] {
        assert_eq!(value(&page, series), Some(0.0), "{series} in\n{page}");
    }
    let info = "rankine_run_info{command=\"train\",device=\"\",name=\"a \\\"name\\\"\\n\",nodes=\"\",\
        precision=\"\",ranks=\"\"}";
    assert_eq!(value(&page, info), Some(1.0), "{page}");
    assert_eq!((value(&page, "rankine_rank"), value(&page, "rankine_processes")), (Some(2.0), Some(4.0)));
    assert!(value(&page, "process_resident_memory_bytes").is_some_and(|bytes| bytes > 0.0));
    // Undefined values are not exported as 0.
    assert!(!page.contains("\nrankine_train_loss ") && !page.contains("\nrankine_eval_auc{"), "{page}");
}

/// A web site that gives its name to this server's address (DNS rebinding) must not read the run.
#[test]
fn the_live_page_answers_to_addresses_localhost_and_the_configured_name() {
    let status = |monitor: &Monitor, path: &str, host: &str| {
        let answer = get_of_host(monitor, path, &format!("Host: {host}\r\n"));
        answer.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()).expect("a status")
    };
    let (unnamed, named) = (monitor(Command::Train, None), listening("localhost:0", Command::Train, None));
    for path in ["/", "/run.json", "/page.js", "/run.json?a"] {
        for host in ["127.0.0.1:1", "10.0.0.7", "[::1]:9464", "localhost", "LOCALHOST.:80"] {
            assert_eq!(
                (status(&unnamed, path, host), status(&named, path, host)),
                (200, 200),
                "{path} {host}"
            );
        }
        for host in
            ["evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.nip.io", "gpu7"]
        {
            assert_eq!(
                (status(&unnamed, path, host), status(&named, path, host)),
                (403, 403),
                "{path} {host}"
            );
        }
        assert!(get_of_host(&unnamed, path, "").starts_with("HTTP/1.1 200 "), "{path}");
    }
    // Prometheus and Kubernetes use any name.
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(status(&unnamed, path, "evil.example"), 200, "{path}");
    }
    assert_eq!(status(&unnamed, "/nothing", "evil.example"), 404);
    assert_eq!(status(&monitor(Command::Eval, None), "/", "evil.example"), 200, "no page");
    let name = |name| Some(Host::Name(name));
    assert_eq!(refusal(name("GPU7.example.org"), Some("gpu7.example.org")), None);
    assert!(refusal(name("gpu7"), Some("gpu7.example.org")).is_some());
    let refused = get_of_host(&unnamed, "/run.json", "Host: evil.example\r\n");
    assert!(refused.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{refused}");
    let body = "Rankine does not show this page as evil.example, because a web site could give that name to this \
        server and read the page: open it by an IP address or as localhost, or train with --metrics \
        evil.example:PORT.\n";
    assert!(refused.ends_with(&format!("\r\n\r\n{body}")), "{refused}");
}

#[test]
fn the_build_is_exported() {
    let page = get(&monitor(Command::Eval, None), "/metrics");
    let line = page.lines().find(|line| line.starts_with("rankine_build_info{")).expect("the build");
    let Build { commit, dirty, features, rustc, .. } = build::here();
    for label in [
        format!("version=\"{}\"", env!("CARGO_PKG_VERSION")),
        format!("commit=\"{}\"", commit.clone().unwrap_or_default()),
        format!("dirty=\"{dirty}\""),
        format!("rustc=\"{rustc}\""),
        format!("features=\"{}\"", features.join(",")),
        "target=\"".into(),
    ] {
        assert!(line.contains(&label), "{label} in {line}");
    }
    assert!(line.ends_with("} 1"), "{line}");
}

#[test]
fn a_task_counts_units_and_their_share() {
    let monitor = monitor(Command::Convert, None);
    let mut task = monitor.task("converting", "bytes", 200);
    task.at(50);
    task.at(120);
    // A second task of the same name continues the count.
    monitor.task("converting", "bytes", 10).at(5);
    let page = get(&monitor, "/metrics");
    assert_eq!(value(&page, "rankine_task_done_total{task=\"converting\",unit=\"bytes\"}"), Some(125.0));
    assert_eq!(value(&page, "rankine_task_progress_ratio{task=\"converting\"}"), Some(0.5));
    assert!(!page.contains("rankine_train_"), "{page}");
}

#[test]
fn an_evaluation_counts_bytes_and_samples() {
    struct Seen(u64);
    impl Observer for Seen {
        fn observe(&mut self, event: Event<'_>) {
            let Event::Evaluating { samples, .. } = event else { return };
            self.0 = samples;
        }
    }
    let (monitor, mut seen) = (monitor(Command::Eval, None), Seen(0));
    let mut observer = monitor.evaluation(&mut seen);
    observer.observe(Event::Evaluating { samples: 30, total: 40, bytes_read: 700 });
    let page = get(&monitor, "/metrics");
    assert_eq!(value(&page, "rankine_reader_bytes_total{part=\"eval\"}"), Some(700.0));
    assert_eq!(value(&page, "rankine_task_progress_ratio{task=\"evaluating\"}"), Some(0.75));
    // Another dataset.
    observer.observe(Event::Evaluated {
        step: 3,
        part: Part::Eval,
        set: None,
        samples: None,
        averaged: false,
        seconds: 1.0,
        heads: &[],
    });
    observer.observe(Event::Evaluating { samples: 10, total: 40, bytes_read: 50 });
    let page = get(&monitor, "/metrics");
    assert_eq!(value(&page, "rankine_reader_bytes_total{part=\"eval\"}"), Some(750.0));
    assert_eq!(value(&page, "rankine_task_progress_ratio{task=\"evaluating\"}"), Some(0.25));
    assert_eq!(seen.0, 10, "events are passed on");
}

#[test]
fn a_training_exports_its_own_evaluations_and_its_end() {
    let (monitor, mut nobody) = (monitor(Command::Train, None), ());
    let mut observer = monitor.training(&mut nobody);
    let heads = |auc| {
        let (normalized_entropy, calibration) = (None, None);
        let auc = Some(auc);
        let metrics = Metrics {
            samples: 40,
            auc,
            log_loss: 0.5,
            normalized_entropy,
            calibration,
            calibration_uncorrected: None,
            label_rate: 0.5,
        };
        [HeadMetrics::new("click".into(), Some(metrics), None)]
    };
    for (bytes_read, set, auc) in [(700, None, 0.75), (50, Some("next day"), 0.5)] {
        observer.observe(Event::Evaluating { samples: 30, total: 40, bytes_read });
        let (step, part, seconds, heads) = (3, Part::Eval, 1.0, &heads(auc));
        observer.observe(Event::Evaluated {
            step,
            part,
            set,
            samples: None,
            averaged: false,
            seconds,
            heads,
        });
    }
    observer.observe(Event::Finished { step: 3, saved_step: 3, reason: EndReason::Epochs });
    let page = get(&monitor, "/metrics");
    let auc: Vec<_> = page.lines().filter(|line| line.starts_with("rankine_eval_auc{")).collect();
    assert!(auc.len() == 1 && auc[0].ends_with(" 0.75"), "{auc:?}");
    assert_eq!(value(&page, "rankine_reader_bytes_total{part=\"eval\"}"), Some(750.0));
    // A target may have ended it before all samples.
    assert_eq!(value(&page, "rankine_train_progress_ratio"), Some(1.0));
}

#[test]
fn the_memory_of_a_gpu_is_divided_by_purpose() {
    let (monitor, mut nobody) = (monitor(Command::Train, None), ());
    let part = |purpose: &str, bytes| MemoryPart { purpose: purpose.into(), bytes };
    let memory = DeviceMemory {
        gpu: 3,
        uuid: "GPU-7".into(),
        parts: vec![part("tables", 4096), part("activations", 1024)],
        free_bytes: 512,
        total_bytes: 8192,
    };
    monitor.training(&mut nobody).gpu_memory(&memory);
    let series = |purpose| format!("gpu_memory_bytes{{gpu=\"3\",purpose=\"{purpose}\",uuid=\"GPU-7\"}}");
    let expected = [("tables", 4096.0), ("activations", 1024.0), ("free", 512.0)];
    let expected = expected.map(|(purpose, bytes)| (series(purpose), bytes));
    assert_exports(&monitor, &expected.each_ref().map(|(series, bytes)| (series.as_str(), *bytes)));
}

#[test]
fn a_step_is_recorded_by_stage_and_by_reason_of_a_skip() {
    let (monitor, mut nobody) = (monitor(Command::Train, None), ());
    let mut observer = monitor.training(&mut nobody);
    let mut skipped = SkippedSteps::default();
    let in_vectors = SkipReason::NonFinite(NonFinite { vector_gradients: true, ..NonFinite::default() });
    let in_dense = SkipReason::NonFinite(NonFinite { dense_gradients: true, ..NonFinite::default() });
    let in_loss = SkipReason::NonFinite(NonFinite { loss: true, ..NonFinite::default() });
    for (reason, count) in [(in_loss, 1), (in_dense, 2), (in_vectors, 3), (SkipReason::LossScale, 4)] {
        (0..count).for_each(|_| skipped.add(&reason));
    }
    let times = StepTimes {
        reading: Duration::from_millis(500),
        computing: Duration::from_secs(2),
        awaiting: Duration::from_millis(250),
    };
    let details = StepDetails { samples: 32, times, bytes_read: 4096, batches_ready: 3, skipped };
    observer.observe(Event::Step(progress(7), details));
    // Skipped steps and bytes are totals.
    let later = StepDetails { bytes_read: 6000, batches_ready: 2, ..details };
    let mut worse = progress(8);
    worse.loss = 0.75;
    observer.observe(Event::Step(worse, later));
    assert_exports(
        &monitor,
        &[
            ("train_samples_total", 64.0),
            ("train_steps_total", 2.0),
            ("train_step", 8.0),
            ("train_loss", 0.75),
            ("train_learning_rate{optimizer=\"dense\"}", 0.125),
            ("train_learning_rate{optimizer=\"sparse\"}", 0.25),
            ("train_step_seconds_sum", 5.5),
            ("train_phase_seconds_sum{phase=\"reading\"}", 1.0),
            ("train_phase_seconds_sum{phase=\"computing\"}", 4.0),
            ("train_phase_seconds_sum{phase=\"awaiting\"}", 0.5),
            ("train_skipped_steps_total{reason=\"loss\"}", 1.0),
            ("train_skipped_steps_total{reason=\"dense_gradients\"}", 2.0),
            ("train_skipped_steps_total{reason=\"vector_gradients\"}", 3.0),
            ("train_skipped_steps_total{reason=\"loss_scale\"}", 4.0),
            ("reader_bytes_total{part=\"train\"}", 6000.0),
            ("reader_wait_seconds_total", 1.0),
            ("reader_queue_batches", 2.0),
        ],
    );
}

#[test]
fn a_report_is_recorded_by_table_link_and_phase() {
    let (monitor, mut nobody) = (monitor(Command::Train, None), ());
    let mut observer = monitor.training(&mut nobody);
    let look_ups =
        |table: &str, look_ups, distinct_rows| LookUpCount { table: table.into(), look_ups, distinct_rows };
    let details = ReportDetails {
        loss_scale: Some(1024.0),
        exchanged: ExchangedBytes { within_nodes: 300, between_nodes: 70 },
        // The observer knows no table before the start, so these share a label.
        look_ups: vec![look_ups("C1", 100, 40), look_ups("C2", 300, 60), look_ups("C3", 0, 0)],
        phases: vec![PhaseRun {
            name: "look-ups, exchange of rows".into(),
            begin_ms: 3.0,
            ms: 250.0,
            roofline_ms: Some(1.0),
        }],
        dynamic_tables: Vec::new(),
    };
    let ids_out_of_range = IdCounts::new();
    let mut report = |details: &ReportDetails| {
        observer.observe(Event::Report(Report::new(progress(1), &ids_out_of_range, details)));
    };
    report(&details);
    // Exchanged bytes are totals.
    let exchanged = ExchangedBytes { within_nodes: 500, between_nodes: 70 };
    let details = ReportDetails { loss_scale: Some(512.0), exchanged, ..details.clone() };
    report(&details);
    // So are copied rows.
    for batches in [1, 2] {
        let tier = TierTraffic {
            batches,
            cold_rows: 10 * batches,
            forwarded_rows: batches,
            bytes_to_device: 100 * batches,
            bytes_to_host: 110 * batches,
            waited_s: 0.5 * batches as f64,
            refreshes: batches,
            moved_rows: 7 * batches,
        };
        let mut report = Report::new(progress(1), &ids_out_of_range, &details);
        report.tier = Some(tier);
        observer.observe(Event::Report(report));
    }
    let table = |rows, host_rows| DeviceTable {
        name: "C1".into(),
        rows,
        dim: 4,
        bytes: 16 * rows,
        placement: None,
        top_share: None,
        host_rows,
    };
    observer.tables(&[table(100, None), table(50, Some(30))]);
    assert_exports(
        &monitor,
        &[
            ("train_loss_scale", 512.0),
            ("tier_rows{memory=\"gpu\"}", 120.0),
            ("tier_rows{memory=\"host\"}", 30.0),
            ("tier_copied_rows_total{from=\"host\"}", 18.0),
            ("tier_moved_rows_total", 14.0),
            ("tier_copied_rows_total{from=\"batch\"}", 2.0),
            ("tier_copied_bytes_total{to=\"gpu\"}", 200.0),
            ("tier_copied_bytes_total{to=\"host\"}", 220.0),
            ("tier_wait_seconds_total", 1.0),
            ("exchange_bytes_total{scope=\"within_nodes\"}", 500.0),
            ("exchange_bytes_total{scope=\"between_nodes\"}", 70.0),
            ("embedding_distinct_ratio{table=\"other\"}", 0.25),
            ("gpu_phase_seconds{phase=\"look_ups_exchange_of_rows\"}", 0.25),
        ],
    );
}

#[test]
fn evaluations_and_checkpoints_are_recorded_with_their_times() {
    let (monitor, mut nobody) = (monitor(Command::Train, None), ());
    let mut observer = monitor.training(&mut nobody);
    let head = |label: &str, metrics| HeadMetrics::new(label.into(), metrics, None);
    let metrics = Metrics {
        samples: 10,
        auc: Some(0.75),
        log_loss: 0.5,
        normalized_entropy: None,
        calibration: Some(1.25),
        calibration_uncorrected: Some(9.5),
        label_rate: 0.1,
    };
    let heads = [
        head("click", Some(metrics)),
        head("buy", Some(Metrics { auc: None, log_loss: 0.25, ..metrics })),
        head("unlabelled", None),
    ];
    let evaluated = |part, set, seconds, heads| Event::Evaluated {
        step: 3,
        part,
        set,
        samples: None,
        averaged: false,
        seconds,
        heads,
    };
    observer.observe(Event::Evaluating { samples: 5, total: 10, bytes_read: 100 });
    observer.observe(evaluated(Part::Validation, None, 2.0, &heads[..]));
    // The evaluation of a named set has a duration, and no metrics of its own.
    let other = [head("click", Some(Metrics { auc: Some(0.5), ..metrics }))];
    observer.observe(Event::Evaluating { samples: 5, total: 10, bytes_read: 30 });
    observer.observe(evaluated(Part::Validation, Some("week"), 4.0, &other[..]));
    for waited_seconds in [0.5, 0.25] {
        observer.observe(Event::Checkpointed { step: 3, bytes: 1000, seconds: 8.0, waited_seconds });
    }
    assert_exports(
        &monitor,
        &[
            ("eval_auc{head=\"click\",part=\"validation\"}", 0.75),
            ("eval_log_loss{head=\"click\",part=\"validation\"}", 0.5),
            ("eval_log_loss{head=\"buy\",part=\"validation\"}", 0.25),
            ("eval_calibration_ratio{head=\"click\",part=\"validation\"}", 1.25),
            ("eval_seconds_sum", 2.0),
            ("train_phase_seconds_sum{phase=\"evaluation\"}", 6.0),
            ("reader_bytes_total{part=\"eval\"}", 130.0),
            ("train_phase_seconds_sum{phase=\"checkpoint\"}", 0.75),
            ("checkpoint_seconds_sum", 16.0),
            ("checkpoint_bytes_total", 2000.0),
            ("checkpoint_failures_total", 0.0),
            ("train_progress_ratio", 0.0),
        ],
    );
    let page = get(&monitor, "/metrics");
    assert!(!page.contains("rankine_eval_auc{head=\"buy\"") && !page.contains("unlabelled"), "{page}");
    let last = value(&page, "rankine_checkpoint_last_success_timestamp_seconds").expect("it was saved");
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs_f64();
    assert!((now - 60.0..=now).contains(&last), "{last} at {now}");
    observer.observe(Event::Finished { step: 3, saved_step: 3, reason: EndReason::Epochs });
    assert_exports(&monitor, &[("train_progress_ratio", 1.0)]);
}

/// A step on a GPU takes two milliseconds, of which a thousandth is two microseconds.
#[test]
fn a_step_is_recorded_in_microseconds() {
    const STEPS: u32 = 20_000;
    let (monitor, mut nobody) = (monitor(Command::Train, None), ());
    let mut observer = monitor.training(&mut nobody);
    let details = StepDetails {
        samples: 64,
        times: StepTimes {
            reading: Duration::from_micros(3),
            computing: Duration::from_micros(2000),
            awaiting: Duration::from_micros(1),
        },
        bytes_read: 4096,
        batches_ready: 2,
        skipped: SkippedSteps::default(),
    };
    let began = Instant::now();
    for step in 1..=u64::from(STEPS) {
        observer.observe(Event::Step(progress(step), details));
    }
    let each = began.elapsed() / STEPS;
    println!("{each:?} per step");
    // Ten times what it takes without optimization, on a busy machine.
    assert!(each < Duration::from_micros(20), "{each:?}");
    let page = get(&monitor, "/metrics");
    assert_eq!(value(&page, "rankine_train_steps_total"), Some(f64::from(STEPS)));
    assert_eq!(value(&page, "rankine_train_samples_total"), Some(64.0 * f64::from(STEPS)));
    assert_eq!(value(&page, "rankine_train_step_seconds_bucket{le=\"0.002\"}"), Some(0.0));
    assert_eq!(value(&page, "rankine_train_step_seconds_bucket{le=\"0.003\"}"), Some(f64::from(STEPS)));
}

#[test]
fn readiness_is_a_status_code_with_the_reason() {
    let ready = get(&monitor(Command::Train, Some(Readiness::Ready)), "/readyz");
    assert!(ready.starts_with("HTTP/1.1 200 ") && ready.ends_with("\r\n\r\nready\n"), "{ready}");
    let why = Readiness::NotReady("no progress for 9 s".into());
    let monitor = monitor(Command::Train, Some(why));
    let standing = get(&monitor, "/readyz");
    assert!(standing.starts_with("HTTP/1.1 503 ") && standing.ends_with("\r\n\r\nno progress for 9 s\n"));
    assert!(get(&monitor, "/healthz").starts_with("HTTP/1.1 200 "), "it is alive nevertheless");
    assert!(get(&monitor, "/other").starts_with("HTTP/1.1 404 "));
}

#[test]
fn a_port_in_use_is_an_error_that_says_so() {
    let first = monitor(Command::Train, None);
    let error = Monitor::start(MonitorOptions {
        info: RunInfo::default(),
        listen: first.address().and_then(|address| address.to_string().parse().ok()),
        textfile: None,
        readiness: None,
        processes: None,
    });
    let error = error.expect_err("the port is in use").to_string();
    let address = first.address().expect("it listens");
    let expected = format!("cannot serve metrics on {address}: another process uses this port");
    assert!(error.starts_with(&expected), "{error}");
}

/// The node exporter refuses series that two files have, and has metrics of its own process.
#[test]
fn a_textfile_names_job_and_process_and_leaves_the_values_of_the_process_out() {
    let place = tempfile::tempdir().expect("there is room");
    let path = place.path().join("rankine.prom");
    let info = RunInfo { command: Command::Train, name: "ads".into(), process: Process(3), processes: 4 };
    drop(
        Monitor::start(MonitorOptions {
            info,
            listen: None,
            textfile: Some(path.clone()),
            readiness: None,
            processes: None,
        })
        .expect("the folder is writable"),
    );
    let text = std::fs::read_to_string(place.path().join("rankine-rank3.prom")).expect("it was written");
    assert!(!path.exists());
    assert_eq!(value(&text, "rankine_train_steps_total{name=\"ads\",rank=\"3\"}"), Some(0.0), "{text}");
    assert!(text.contains("rankine_run_info{command=\"train\",device=\"\",name=\"ads\","), "{text}");
    assert!(!text.contains("process_"), "{text}");
}

#[test]
fn tables_beyond_the_limit_share_a_label() {
    let names: Vec<String> = (0..70).map(|number| format!("C{number}")).collect();
    let labels = TableLabels::new(names.iter().map(String::as_str));
    assert_eq!((labels.of("C63"), labels.of("C64"), labels.of("C69")), ("C63", "other", "other"));
}

/// `docs/reference/metrics.md` lists every metric; `UPDATE_EXPECT=1` rewrites it. A metric, type or label that
/// disappears from it breaks dashboards and alerts.
#[test]
fn the_reference_lists_every_metric() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let page = std::fs::read_to_string(&path).expect("the page exists");
    let (before, after) =
        (page.find("| name |").expect("a table"), page.find("\n\n## Stability").expect("the end"));
    let expected = table(&families());
    let made = format!("{}{}{}", &page[..before], expected, &page[after..]);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, made).expect("the page can be written");
    } else {
        assert_eq!(page, made, "run the test with UPDATE_EXPECT=1, and review the difference");
    }
}

fn table(families: &[Family]) -> String {
    let row = |family: &Family| {
        let Family { name, kind, labels, meaning } = family;
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{name}` | {kind} | {} | {} | {meaning} |", labels.join(", "), unit(name))
    };
    let mut rows =
        vec!["| name | type | labels | unit | meaning |".to_owned(), "|---|---|---|---|---|".to_owned()];
    rows.extend(families.iter().map(row));
    rows.join("\n")
}

/// Returns the unit that a name ends in.
fn unit(name: &str) -> &'static str {
    let stem = name.strip_suffix("_total").unwrap_or(name);
    let units = ["seconds", "bytes", "ratio", "watts", "joules", "samples", "steps", "batches", "ids"];
    units.into_iter().find(|unit| stem.ends_with(unit)).unwrap_or("")
}
