//! The power of the GPUs of this process while it trains: a thread reads their meters twice a second.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use rankine_backend::DeviceMemory;
use rankine_engine_gpu::{GpuMeter, GpuReading, NvmlMeter};
use rankine_launch::ProcessGroup;
use serde::{Deserialize, Serialize};

use super::error::TrainError;

/// The time between two readings. Meters average over about a second, or count energy exactly.
const INTERVAL: Duration = Duration::from_millis(500);

/// GPUs, and the meter that reads them.
#[derive(Debug, Clone)]
pub struct MeteredGpus {
    /// The meter.
    pub meter: Arc<dyn GpuMeter>,
    /// The UUIDs of the GPUs.
    pub uuids: Vec<String>,
}

impl MeteredGpus {
    /// The devices that a process trains on, read by NVML; `None` on the CPU.
    pub(super) fn of(devices: &[DeviceMemory]) -> Option<Self> {
        // Several ranks may share a GPU.
        let uuids: BTreeSet<_> = devices.iter().map(|device| device.uuid.clone()).collect();
        let uuids: Vec<_> = uuids.into_iter().collect();
        (!uuids.is_empty()).then(|| Self { meter: Arc::new(NvmlMeter::default()), uuids })
    }
}

/// The power of the GPUs of a training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PowerSummary {
    /// Watts of all GPUs together, the mean from the first step to the last one, with the evaluations and checkpoints
    /// in between.
    pub watts: f64,
    /// Watts that the power limits of all GPUs allow together; absent if one is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_watts: Option<f64>,
    /// Joules in that time, divided by the samples that were trained on.
    pub joules_per_sample: f64,
    /// The share of the steps in which a GPU was at its power limit; absent if that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_step_share: Option<f64>,
}

/// Reads the GPUs of this process until it is dropped.
#[derive(Debug)]
pub(super) struct PowerSampler {
    began: Instant,
    /// Steps so far.
    steps: Arc<AtomicU64>,
    gpus: MeteredGpus,
    record: Arc<Mutex<PowerRecord>>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl PowerSampler {
    /// Starts to read these GPUs, or without them the devices of this process; `None` on the CPU.
    pub(super) fn of(gpus: Option<&MeteredGpus>, devices: &[DeviceMemory]) -> Option<Self> {
        gpus.cloned().or_else(|| MeteredGpus::of(devices)).map(Self::start)
    }

    /// Starts to read GPUs. If they cannot be read, that is logged once.
    pub(super) fn start(gpus: MeteredGpus) -> Self {
        let (began, steps, record) = (Instant::now(), Arc::<AtomicU64>::default(), Arc::default());
        let (stop, stopped) = channel();
        let thread = {
            let (gpus, steps, record) = (gpus.clone(), Arc::clone(&steps), Arc::clone(&record));
            let run = move || {
                if let Some(why) = gpus.meter.absence() {
                    tracing::info!("the power of GPUs is not measured: {why}");
                    return;
                }
                loop {
                    take(&gpus, &record, began, &steps);
                    if stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            };
            thread::Builder::new().name("rankine-power".into()).spawn(run).ok()
        };
        Self { began, steps, gpus, record, thread: thread.map(|thread| (stop, thread)) }
    }

    /// Counts a step.
    pub(super) fn count_step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// The power up to the last reading.
    pub(super) fn so_far(&self) -> PowerUse {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).power(self.began.elapsed())
    }

    /// Reads the GPUs once more, and returns the power up to now.
    pub(super) fn up_to_now(&self) -> PowerUse {
        if self.gpus.meter.absence().is_none() {
            take(&self.gpus, &self.record, self.began, &self.steps);
        }
        self.so_far()
    }
}

impl Drop for PowerSampler {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // It panics only if the meter does, and then figures are missing.
            drop(thread.join());
        }
    }
}

/// Reads all GPUs once.
fn take(gpus: &MeteredGpus, record: &Mutex<PowerRecord>, began: Instant, steps: &AtomicU64) {
    let readings: Vec<_> = gpus.uuids.iter().map(|uuid| gpus.meter.read(uuid).unwrap_or_default()).collect();
    let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
    record.add(began.elapsed(), steps.load(Ordering::Relaxed), readings);
}

/// The readings so far, added up.
#[derive(Debug, Default)]
struct PowerRecord {
    /// The latest readings: when, after how many steps, and one for each GPU.
    last: Option<(Duration, u64, Vec<GpuReading>)>,
    /// From the first readings to the latest.
    time: Duration,
    joules: f64,
    /// Whether the energy of each interval and GPU is known.
    is_partial: bool,
    /// Steps, and seconds, of which it is known whether a GPU was at its limit.
    known: Weight,
    /// Those in which one was.
    limited: Weight,
}

/// How much a number of steps and their time count.
#[derive(Debug, Clone, Copy, Default)]
struct Weight {
    steps: u64,
    seconds: f64,
}

impl PowerRecord {
    fn add(&mut self, at: Duration, steps: u64, readings: Vec<GpuReading>) {
        let Some((before, steps_before, earlier)) = &self.last else {
            self.last = Some((at, steps, readings));
            return;
        };
        let Some(interval) = at.checked_sub(*before) else { return };
        let seconds = interval.as_secs_f64();
        for (earlier, now) in earlier.iter().zip(&readings) {
            let counted = earlier.joules.zip(now.joules).map(|(earlier, now)| now - earlier);
            let drawn = || earlier.watts.zip(now.watts).map(|(earlier, now)| (earlier + now) / 2.0 * seconds);
            match counted.filter(|joules| *joules >= 0.0).or_else(drawn) {
                Some(joules) => self.joules += joules,
                None => self.is_partial = true,
            }
        }
        let limited: Vec<_> = readings.iter().filter_map(GpuReading::is_at_power_limit).collect();
        if !limited.is_empty() {
            let weight = Weight { steps: steps.saturating_sub(*steps_before), seconds };
            self.known.add(weight);
            if limited.contains(&true) {
                self.limited.add(weight);
            }
        }
        self.time += interval;
        self.last = Some((at, steps, readings));
    }

    /// The power over a time that began at zero; what was not read had the same mean.
    fn power(&self, time: Duration) -> PowerUse {
        let Some((_, _, last)) = self.last.as_ref().filter(|_| !self.is_partial && !self.time.is_zero())
        else {
            return PowerUse::default();
        };
        let watts = self.joules / self.time.as_secs_f64();
        // Steps take turns with other work, but some owners do not count them.
        let count = |weight: Weight| match self.known.steps {
            0 => weight.seconds,
            _ => weight.steps as f64,
        };
        PowerUse {
            joules: watts * time.as_secs_f64(),
            watts,
            limit_watts: last.iter().map(|reading| reading.limit_watts.unwrap_or(f64::NAN)).sum(),
            limited_share: count(self.limited) / count(self.known),
        }
    }
}

impl Weight {
    fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.seconds += other.seconds;
    }
}

/// The power of the GPUs of a process. NaN is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct PowerUse {
    joules: f64,
    watts: f64,
    limit_watts: f64,
    /// The share of its steps.
    limited_share: f64,
}

impl Default for PowerUse {
    fn default() -> Self {
        Self { joules: f64::NAN, watts: f64::NAN, limit_watts: f64::NAN, limited_share: f64::NAN }
    }
}

impl PowerUse {
    /// The power of all processes, each of which calls this.
    ///
    /// # Errors
    /// [`TrainError::Processes`].
    pub(super) fn of_all(own: Option<Self>, processes: &ProcessGroup) -> Result<Self, TrainError> {
        let own = own.unwrap_or_default();
        let all = processes.gather("the power of the GPUs", bytemuck::bytes_of(&own))?;
        Ok(all.iter().map(|bytes| bytemuck::pod_read_unaligned(bytes)).reduce(Self::beside).unwrap_or(own))
    }

    /// Of two groups of GPUs that train together: a step is limited if a GPU is.
    fn beside(self, other: Self) -> Self {
        Self {
            joules: self.joules + other.joules,
            watts: self.watts + other.watts,
            limit_watts: self.limit_watts + other.limit_watts,
            limited_share: self.limited_share.max(other.limited_share),
        }
    }

    /// `None` if the power is unknown, or no sample was trained on.
    pub(super) fn summary(self, samples: u64) -> Option<PowerSummary> {
        let known = |value: f64| Some(value).filter(|value| value.is_finite());
        Some(PowerSummary {
            watts: known(self.watts)?,
            limit_watts: known(self.limit_watts),
            joules_per_sample: known(self.joules / samples as f64)?,
            limited_step_share: known(self.limited_share),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use rankine_engine_gpu::Throttling;

    use super::*;

    fn reading(watts: f64, joules: Option<f64>, is_limited: bool) -> GpuReading {
        GpuReading {
            watts: Some(watts),
            limit_watts: Some(700.0),
            joules,
            throttling: Some(Throttling::from_bits(if is_limited { 0x4 } else { 0x1 })),
            ..GpuReading::default()
        }
    }

    fn record(readings: impl IntoIterator<Item = (u64, u64, Vec<GpuReading>)>) -> PowerRecord {
        let mut record = PowerRecord::default();
        for (second, steps, readings) in readings {
            record.add(Duration::from_secs(second), steps, readings);
        }
        record
    }

    #[test]
    fn energy_is_counted_if_a_gpu_counts_it_and_integrated_otherwise() {
        // One GPU counts 300 J and 900 J; the other draws 200 W, then 400 W, then 400 W.
        let record = record([
            (1, 0, vec![reading(1.0, Some(5000.0), false), reading(200.0, None, false)]),
            (2, 10, vec![reading(1.0, Some(5300.0), false), reading(400.0, None, true)]),
            (4, 40, vec![reading(1.0, Some(6200.0), false), reading(400.0, None, false)]),
        ]);
        // 1200 J, and 300 J + 800 J, in 3 s. The first second was not read.
        let power = record.power(Duration::from_secs(4));
        let watts = 2300.0 / 3.0;
        assert_eq!((power.watts, power.joules, power.limit_watts), (watts, watts * 4.0, 1400.0));
        assert_eq!(power.limited_share, 10.0 / 40.0, "by steps, and in one of three seconds");
        let summary = power.summary(1000).unwrap();
        assert_eq!(summary.joules_per_sample, watts * 4.0 / 1000.0);
        assert_eq!((summary.limit_watts, summary.limited_step_share), (Some(1400.0), Some(0.25)));
        assert_eq!(power.summary(0), None);
    }

    #[test]
    fn a_driver_that_is_loaded_anew_and_owners_that_count_no_steps_are_no_problem() {
        let record = record([
            (0, 0, vec![reading(100.0, Some(9000.0), true)]),
            (1, 0, vec![reading(100.0, Some(9100.0), true)]),
            (5, 0, vec![reading(300.0, Some(10.0), false)]),
        ]);
        // 100 J counted, then the mean of 100 W and 300 W for 4 s.
        let power = record.power(Duration::from_secs(5));
        assert_eq!((power.joules, power.limited_share), (900.0, 0.2));
    }

    #[test]
    fn what_one_gpu_does_not_report_is_unknown_of_all() {
        let silent = GpuReading::default();
        let at = |second| (second, second, vec![reading(100.0, None, false), silent]);
        assert_eq!(record([at(0), at(1)]).power(Duration::from_secs(1)).summary(10), None);
        assert_eq!(record([at(0)]).power(Duration::from_secs(1)).summary(10), None, "no interval");

        let unlimited = GpuReading { limit_watts: None, throttling: None, ..reading(100.0, None, false) };
        let at = |second| (second, second, vec![unlimited]);
        let summary = record([at(0), at(2)]).power(Duration::from_secs(2)).summary(10).unwrap();
        assert_eq!(summary.joules_per_sample, 20.0);
        assert_eq!((summary.limit_watts, summary.limited_step_share), (None, None));
    }

    #[test]
    fn processes_add_their_power_and_the_most_limited_one_decides() {
        let of = |joules, limited_share| PowerUse { joules, watts: 2.0, limit_watts: 3.0, limited_share };
        let both = of(10.0, 0.25).beside(of(30.0, 0.75));
        assert_eq!(both, PowerUse { joules: 40.0, watts: 4.0, limit_watts: 6.0, limited_share: 0.75 });
        assert_eq!(both.beside(PowerUse::default()).summary(1), None);
    }

    /// Draws 400 W, or cannot be read.
    #[derive(Debug)]
    struct Meter {
        is_absent: bool,
        was_read: AtomicBool,
    }

    impl GpuMeter for Meter {
        fn read(&self, uuid: &str) -> Option<GpuReading> {
            assert!(!self.is_absent);
            self.was_read.store(true, Ordering::Relaxed);
            (uuid == "GPU-1").then(|| reading(400.0, None, true))
        }

        fn absence(&self) -> Option<String> {
            self.is_absent.then(|| "it is not installed".into())
        }
    }

    fn sampler(is_absent: bool, uuid: &str) -> (Arc<Meter>, PowerSampler) {
        let meter = Arc::new(Meter { is_absent, was_read: AtomicBool::new(false) });
        let gpus = MeteredGpus { meter: meter.clone(), uuids: vec![uuid.into()] };
        (meter, PowerSampler::start(gpus))
    }

    #[test]
    fn a_thread_reads_the_gpus_until_the_sampler_is_dropped() {
        let (meter, sampler) = sampler(false, "GPU-1");
        while !meter.was_read.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        // The step comes after the first reading, which may still be on its way to the record.
        thread::sleep(Duration::from_millis(20));
        sampler.count_step();
        let power = sampler.up_to_now();
        assert!((power.watts - 400.0).abs() < 1e-9, "{power:?}");
        let energy = power.summary(100).unwrap().joules_per_sample * 100.0;
        let seconds = sampler.began.elapsed().as_secs_f64();
        assert!(energy >= 400.0 * 0.02 && energy <= 400.0 * seconds, "{energy} J in {seconds} s");
        assert_eq!(power.limited_share, 1.0);
        drop(sampler);
        assert_eq!(Arc::strong_count(&meter), 1, "the thread has ended");
    }

    #[test]
    fn without_a_meter_or_a_gpu_the_power_is_unknown() {
        for (is_absent, uuid) in [(true, "GPU-1"), (false, "GPU-2")] {
            let (_, sampler) = sampler(is_absent, uuid);
            sampler.up_to_now();
            assert_eq!(sampler.up_to_now().summary(1), None);
        }
    }
}
