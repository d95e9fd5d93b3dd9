//! The results of benchmarks as text.

use std::fmt::{self, Display};

use bytesize::ByteSize;
use rankine_embedding::TierTraffic;
use rankine_engine::training::{
    Ceilings, EvalBench, Input, MeasuredPhase, MemoryPart, PowerSummary, Reading, TimeToAuc, TimedEvaluation,
    Times, TraceSummary, TrainBench,
};
use rankine_reader::bench::ReadBench;

use super::baseline::{Baseline, change};
use crate::table::TextTable;

/// A benchmark of evaluations.
pub(super) struct Passes<'a>(pub(super) &'a EvalBench);

impl Display for Passes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bench = self.0;
        let EvalBench { device, samples, batch_size, first_seconds, seconds, seconds_median, .. } = bench;
        writeln!(f, "device              {device}")?;
        writeln!(f, "samples             {samples}, in batches of {batch_size}")?;
        writeln!(f, "first evaluation    {first_seconds:.4} s")?;
        let passes = seconds.len();
        writeln!(f, "later evaluations   {seconds_median:.4} s, median of {passes}")?;
        writeln!(f, "samples/s           {:.0}", bench.samples_per_second)?;
        match bench.metrics.first.and_then(|metrics| metrics.auc) {
            Some(auc) => writeln!(f, "auc                 {auc:.5}"),
            None => Ok(()),
        }
    }
}

/// The time to an AUC.
pub(super) struct ToAuc<'a>(pub(super) &'a TimeToAuc);

impl Display for ToAuc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TimeToAuc { device, precision, target_auc, reached, seconds, .. } = self.0;
        let TimeToAuc { batch_size, steps, samples, epochs, .. } = self.0;
        let precision = precision.iter().map(|precision| format!(", {precision}")).collect::<String>();
        writeln!(f, "device              {device}{precision}")?;
        let best = self.0.auc_achievable.map(|best| format!("; the best possible AUC is {best:.5}"));
        writeln!(f, "target AUC          {target_auc:.5}{}", best.unwrap_or_default())?;
        let mut table = TextTable::new(["step", "epochs", "seconds", "AUC"], &[]);
        for TimedEvaluation { step, epochs, auc, seconds, .. } in &self.0.evaluations {
            let auc = auc.map_or("-".into(), |auc| format!("{auc:.5}"));
            table.row([step, &format!("{epochs:.3}"), &format!("{seconds:.3}"), &auc]);
        }
        write!(f, "\n{table}\n")?;
        let end = if *reached { "" } else { "; the target was not reached" };
        let TimeToAuc { eval_seconds, first_step_seconds, .. } = self.0;
        write!(f, "seconds             {seconds:.3}: {eval_seconds:.3} for evaluations, ")?;
        writeln!(f, "{first_step_seconds:.3} for the first step{end}")?;
        writeln!(f, "steps               {steps} of {batch_size} samples: {samples}, {epochs:.3} epochs")?;
        writeln!(f, "samples/s           {:.0}, without evaluations", self.0.samples_per_second)?;
        match (self.0.joules, self.0.watts) {
            (Some(joules), Some(watts)) => writeln!(f, "energy              {joules:.0} J, {watts:.0} W"),
            _ => Ok(()),
        }?;
        match &self.0.run_dir {
            Some(run) => writeln!(f, "run                 {run}"),
            None => Ok(()),
        }
    }
}

/// A benchmark of training.
pub(super) struct Steps<'a> {
    pub(super) bench: &'a TrainBench,
    /// What to compare it with.
    pub(super) baseline: Option<&'a Baseline>,
}

impl Display for Steps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self { bench, baseline } = self;
        let times = |times: &Times| {
            let Times { ms_per_iteration, ms_p10, ms_p99, ms_mean } = times;
            format!("{ms_per_iteration:.3} (p10 {ms_p10:.3}, p99 {ms_p99:.3}, mean {ms_mean:.3})")
        };
        writeln!(f, "device              {}", bench.device)?;
        match &bench.input {
            Input::Resident { batches } => {
                writeln!(f, "input               {batches} batches in device memory")?
            }
            Input::Read(Reading { rung, samples, reader_wait_share }) => writeln!(
                f,
                "input               {samples} samples read with {rung}; waited {:.1}% of the time",
                100.0 * reader_wait_share
            )?,
        }
        if !bench.without.is_empty() {
            writeln!(f, "not overlapped      {}", bench.without.join(", "))?;
        }
        writeln!(f, "ms/step             {}, {} steps", times(&bench.iteration), bench.steps)?;
        if let Some(on_device) = &bench.on_device {
            writeln!(f, "  on the GPU        {}", times(on_device))?;
        }
        if let Some(baseline) = baseline {
            let (before, now) = (baseline.ms_per_iteration, bench.iteration.ms_per_iteration);
            let differences = baseline.differences(bench);
            let note =
                if differences.is_empty() { String::new() } else { format!(", {}", differences.join(", ")) };
            writeln!(f, "  before            {before:.3}{note}; now {}", change(before, now))?;
        }
        writeln!(f, "samples/s           {:.0}, {} per step", bench.samples_per_second, bench.batch_size)?;
        if let Some(tier) = &bench.tier {
            writeln!(f, "rows from the host  {}", rows_from_host(tier))?;
        }
        if let Some(power) = &bench.power {
            writeln!(f, "power               {}", power_of(power))?;
        }
        if let (Some(begin), Some(end)) = (bench.loss_at_begin, bench.loss_at_end) {
            writeln!(f, "loss                {begin:.5} at the start, {end:.5} at the end")?;
        }
        if let Some(trace) = &bench.trace {
            let TraceSummary { path, iterations, kernels_per_iteration, kernel_free_share } = trace;
            writeln!(
                f,
                "trace               {path}: {iterations} steps of {kernels_per_iteration:.0} kernels; no kernel runs \
                 {:.1}% of the time",
                100.0 * kernel_free_share
            )?;
        }
        if let Some(memory) = &bench.memory {
            let rows = memory.parts.iter().map(|MemoryPart { purpose, bytes }| (purpose.as_str(), *bytes));
            let all = [("free", memory.free_bytes), ("total", memory.total_bytes)];
            let mut lines = TextTable::new(["memory", ""], &[0]);
            for (purpose, bytes) in rows.chain(all) {
                lines.row([&purpose, &ByteSize(bytes)]);
            }
            write!(f, "\n{lines}")?;
        }
        let Some(ceilings) = bench.ceilings else { return Ok(()) };
        write!(f, "\n{}", self.parts(ceilings))?;
        let sum = bench.phases_ms();
        let share = 100.0 * bench.iteration.ms_per_iteration / sum;
        if sum > 0.0 { writeln!(f, "\nA step takes {share:.0}% of the sum of its parts.") } else { Ok(()) }
    }
}

/// Writes the power of GPUs.
fn power_of(power: &PowerSummary) -> String {
    let PowerSummary { watts, limit_watts, joules_per_sample, limited_step_share, .. } = power;
    let mut text = format!("{watts:.0} W");
    if let Some(limit) = limit_watts {
        text += &format!(" of {limit:.0} W");
    }
    text += &format!(", {:.1} J per million samples", joules_per_sample * 1e6);
    if let Some(share) = limited_step_share {
        text += &format!("; at the power limit in {:.0}% of the steps", 100.0 * share);
    }
    text
}

impl Steps<'_> {
    /// Returns the table of the parts of a step.
    fn parts(&self, ceilings: Ceilings) -> TextTable {
        let &Self { bench, baseline } = self;
        let Ceilings { gb_per_s, tflop_per_s, fp8_tflop_per_s } = ceilings;
        let before: &[&str] = if baseline.is_some() { &["before", "change"] } else { &[] };
        let headings = [&["part, timed alone", "ms"], before, &["GB/s", "TFLOP/s", "roofline"]].concat();
        let mut lines = TextTable::of(headings, &[0]);
        let timed = |name: &str, ms: f64, before: Option<f64>| {
            let mut cells = vec![name.to_owned(), format!("{ms:.3}")];
            if baseline.is_some() {
                cells.push(before.map_or(String::new(), |before| format!("{before:.3}")));
                cells.push(before.map_or(String::new(), |before| change(before, ms)));
            }
            cells
        };
        for phase in &bench.phases {
            let MeasuredPhase { name, ms, gb_per_s, tflop_per_s, roofline_share, .. } = phase;
            let mut cells = timed(name, *ms, baseline.and_then(|baseline| baseline.ms_of(name)));
            let share = 100.0 * roofline_share;
            cells.extend([format!("{gb_per_s:.0}"), format!("{tflop_per_s:.1}"), format!("{share:.0}%")]);
            lines.cells(cells);
        }
        for (name, before) in baseline.iter().flat_map(|baseline| baseline.gone(bench)) {
            lines.row([&name, &"", &format_args!("{before:.3}")]);
        }
        lines.cells(timed("sum", bench.phases_ms(), baseline.map(Baseline::parts_ms)));
        let mut limit = |name: &str, rates: [String; 2]| {
            let empty = if baseline.is_some() { 3 } else { 1 };
            lines.cells([name.to_owned()].into_iter().chain(vec![String::new(); empty]).chain(rates));
        };
        limit("limit", [format!("{gb_per_s:.0}"), format!("{tflop_per_s:.1}")]);
        if let Some(fp8) = fp8_tflop_per_s {
            limit("limit in fp8", [String::new(), format!("{fp8:.1}")]);
        }
        lines
    }
}

/// A benchmark of reading.
pub(super) struct Rungs<'a>(pub(super) &'a ReadBench);

impl Display for Rungs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReadBench { part, depth, block_bytes, device, rungs } = self.0;
        writeln!(f, "{part} part, blocks of {block_bytes:.0} bytes, {depth} reads in flight")?;
        let raw = device.rate.gb_per_s;
        let reads =
            format!("{}, {} reads of {}", device.rung, device.depth, ByteSize(device.read_bytes.into()));
        writeln!(f, "device          {raw:>6.2} GB/s  ({reads})\n")?;
        let headings = [
            "",
            "read GB/s",
            "of device",
            "checked GB/s",
            "unpacked GB/s",
            "unpacked samp/s",
            "for GPUs samp/s",
        ];
        let mut lines = TextTable::new(headings, &[0]);
        let mut refused = Vec::new();
        for rung in rungs {
            match &rung.outcome {
                Ok(rates) => lines.row([
                    &rung.rung,
                    &format_args!("{:.2}", rates.packed.gb_per_s),
                    &format_args!("{:.0}%", 100.0 * rates.share_of_device),
                    &format_args!("{:.2}", rates.verified.gb_per_s),
                    &format_args!("{:.2}", rates.decoded.gb_per_s),
                    &format_args!("{:.0}", rates.decoded.samples_per_s),
                    &format_args!("{:.0}", rates.packed_batches.samples_per_s),
                ]),
                Err(why) => refused.push(format!("{}: refused: {why}", rung.rung)),
            }
        }
        lines.fmt(f)?;
        refused.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// What a batch copies between GPUs and host memory.
fn rows_from_host(tier: &TierTraffic) -> String {
    let each = |total: u64| total as f64 / tier.batches.max(1) as f64;
    let TierTraffic { cold_rows, forwarded_rows, bytes_to_device, bytes_to_host, waited_s, batches, .. } =
        *tier;
    format!(
        "{:.0} per batch, of which {:.0} are on the GPU; {:.1} MB to the GPU, {:.1} MB back; a step waited {:.3} ms",
        each(cold_rows),
        each(forwarded_rows),
        each(bytes_to_device) / 1e6,
        each(bytes_to_host) / 1e6,
        1e3 * waited_s / batches.max(1) as f64
    )
}

#[cfg(test)]
mod tests {
    use rankine_engine::training::DeviceMemory;
    use rankine_model::evaluation::{EvalMetrics, Metrics};
    use rankine_reader::Part;
    use rankine_reader::bench::{DeviceRate, Rate, RungBench, RungRates};
    use rankine_reader::io::Rung;

    use super::*;

    fn trained() -> TrainBench {
        let times = |first| Times {
            ms_per_iteration: first,
            ms_p10: first + 0.125,
            ms_p99: first + 0.25,
            ms_mean: first + 0.5,
        };
        TrainBench {
            name: "job".into(),
            device: "the CPU".into(),
            batch_size: 300,
            without: Vec::new(),
            embedding_parameters: 7,
            dense_parameters: 8,
            input: Input::Read(Reading { rung: "pread".into(), samples: 1000, reader_wait_share: 0.123 }),
            steps: 9,
            iteration: times(1.0),
            on_device: None,
            samples_per_second: 12_345.6,
            seconds: 2.5,
            loss_at_begin: Some(0.7),
            loss_at_end: Some(0.6),
            memory: None,
            tier: None,
            power: None,
            ceilings: None,
            phases: Vec::new(),
            trace: None,
        }
    }

    #[test]
    fn a_benchmark_of_training_has_these_lines() {
        let tier = TierTraffic {
            batches: 10,
            cold_rows: 12_345,
            forwarded_rows: 54,
            bytes_to_device: 123_000_000,
            bytes_to_host: 125_000_000,
            waited_s: 0.02,
            ..TierTraffic::default()
        };
        assert_eq!(
            rows_from_host(&tier),
            "1234 per batch, of which 5 are on the GPU; 12.3 MB to the GPU, 12.5 MB back; a step waited 2.000 ms"
        );
        let text = "device              the CPU\n\
                    input               1000 samples read with pread; waited 12.3% of the time\n\
                    ms/step             1.000 (p10 1.125, p99 1.250, mean 1.500), 9 steps\n\
                    samples/s           12346, 300 per step\n\
                    loss                0.70000 at the start, 0.60000 at the end\n";
        assert_eq!(Steps { bench: &trained(), baseline: None }.to_string(), text);
        let part = |purpose: &str, bytes| MemoryPart { purpose: purpose.into(), bytes };
        let parts = vec![part("tables", 2_000_000_000), part("routes", 1_000_000)];
        let (gb_per_s, tflop_per_s, roofline_share) = (2000.0, 100.0, 0.5);
        let phase = MeasuredPhase {
            name: "update",
            ms: 0.25,
            bytes: 1,
            flops: 2,
            gb_per_s,
            tflop_per_s,
            roofline_share,
        };
        let on_gpu = TrainBench {
            input: Input::Resident { batches: 3 },
            without: vec!["routes".into(), "input".into()],
            on_device: Some(trained().iteration),
            loss_at_begin: None,
            memory: Some(DeviceMemory {
                gpu: 0,
                uuid: String::new(),
                parts,
                free_bytes: 3_000_000_000,
                total_bytes: 5_001_000_000,
            }),
            power: serde_json::from_str(
                r#"{"watts": 650.6, "limit_watts": 700, "joules_per_sample": 2.84e-5, "limited_step_share": 0.25}"#,
            )
            .unwrap(),
            ceilings: Some(Ceilings { gb_per_s: 4000.0, tflop_per_s: 700.0, fp8_tflop_per_s: Some(1300.0) }),
            phases: vec![phase],
            trace: Some(TraceSummary {
                path: "t.json".into(),
                iterations: 4,
                kernels_per_iteration: 55.0,
                kernel_free_share: 0.25,
            }),
            ..trained()
        };
        let times = "1.000 (p10 1.125, p99 1.250, mean 1.500)";
        assert_eq!(
            Steps { bench: &on_gpu, baseline: None }.to_string(),
            format!(
                "device              the CPU\ninput               3 batches in device memory\n\
                 not overlapped      routes, input\nms/step             {times}, 9 steps\n  on the GPU        {times}\n\
                 samples/s           12346, 300 per step\n\
                 power               651 W of 700 W, 28.4 J per million samples; at the power limit in 25% of the \
                 steps\n\
                 trace               t.json: 4 steps of 55 kernels; no kernel runs 25.0% of the time\n\n\
                 memory\ntables    1.9 GiB\nroutes  976.6 KiB\nfree      2.8 GiB\ntotal     4.7 GiB\n\n\
                 part, timed alone     ms  GB/s  TFLOP/s  roofline\n\
                 update             0.250  2000    100.0       50%\n\
                 sum                0.250\n\
                 limit                     4000    700.0\n\
                 limit in fp8                     1300.0\n\n\
                 A step takes 400% of the sum of its parts.\n"
            )
        );

        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("before.json");
        let mut before = TrainBench { device: "a GPU".into(), batch_size: 200, ..on_gpu.clone() };
        before.iteration.ms_per_iteration = 0.8;
        before.phases[0].ms = 0.2;
        before.phases.push(MeasuredPhase { name: "look-ups", ms: 0.5, ..before.phases[0].clone() });
        std::fs::write(&path, serde_json::to_vec(&before).unwrap()).unwrap();
        let baseline = Baseline::read(&path).unwrap();
        let text = Steps { bench: &on_gpu, baseline: Some(&baseline) }.to_string();
        let (lines, parts) = text.split_once("\npart").unwrap();
        let before = "  before            0.800, on a GPU, with 200 samples per step; now +25.0%";
        assert!(lines.lines().any(|line| line == before), "{lines}");
        assert_eq!(
            parts,
            ", timed alone     ms  before  change  GB/s  TFLOP/s  roofline\n\
             update             0.250   0.200  +25.0%  2000    100.0       50%\n\
             look-ups                   0.500\n\
             sum                0.250   0.700  -64.3%\n\
             limit                                     4000    700.0\n\
             limit in fp8                                     1300.0\n\n\
             A step takes 400% of the sum of its parts.\n"
        );
        std::fs::write(&path, "{}").unwrap();
        let error = Baseline::read(&path).unwrap_err().to_string();
        assert!(error.contains("before.json: missing field `name`") && error.contains("--json"), "{error}");
    }

    #[test]
    fn a_benchmark_of_evaluations_has_these_lines() {
        let metrics = Metrics {
            samples: 500,
            auc: Some(0.75),
            log_loss: 0.5,
            normalized_entropy: None,
            calibration: None,
            calibration_uncorrected: None,
            label_rate: 0.25,
        };
        let bench = EvalBench {
            name: "job".into(),
            device: "the CPU".into(),
            samples: 500,
            batch_size: 64,
            first_seconds: 1.5,
            seconds: vec![0.5, 0.25, 0.125],
            seconds_median: 0.25,
            samples_per_second: 2000.0,
            metrics: EvalMetrics { first: Some(metrics), ..EvalMetrics::default() },
            memory: None,
        };
        let text = "device              the CPU\nsamples             500, in batches of 64\n\
                    first evaluation    1.5000 s\nlater evaluations   0.2500 s, median of 3\n\
                    samples/s           2000\nauc                 0.75000\n";
        assert_eq!(Passes(&bench).to_string(), text);
    }

    #[test]
    fn a_benchmark_of_reading_has_a_line_per_mode() {
        let rate =
            |gb_per_s, samples_per_s| Rate { bytes: 1, samples: 2, seconds: 3.0, gb_per_s, samples_per_s };
        let rates = RungRates {
            packed: rate(1.5, 1.0),
            share_of_device: 0.75,
            verified: rate(1.25, 2.0),
            decoded: rate(0.5, 1234.0),
            packed_batches: rate(0.25, 5678.0),
        };
        let device = DeviceRate { rung: Rung::Pread, depth: 8, read_bytes: 1 << 18, rate: rate(2.0, 3.0) };
        let rungs = vec![
            RungBench { rung: Rung::Pread, outcome: Ok(rates) },
            RungBench { rung: Rung::Mmap, outcome: Err("no".to_owned().into()) },
        ];
        let bench = ReadBench { part: Part::Eval, depth: 16, block_bytes: 1000.4, device, rungs };
        let text = Rungs(&bench).to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "eval part, blocks of 1000 bytes, 16 reads in flight");
        assert_eq!(lines[1], "device            2.00 GB/s  (pread, 8 reads of 256.0 KiB)");
        let cells: Vec<_> = lines[4].split_whitespace().collect();
        assert_eq!(cells, ["pread", "1.50", "75%", "1.25", "0.50", "1234", "5678"]);
        assert_eq!(lines[5], "mmap: refused: no");
    }
}
