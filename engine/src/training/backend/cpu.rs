//! The CPU as a back end. A step is complete when `train_step` returns.

use std::sync::Arc;
use std::time::Instant;

use rankine_backend::{
    Backend, BackendError, Batch, Batches, RankVisit, ReportDetails, ResidentPart, Scored, Scorer,
    ScoringProgress, score_on_cpu,
};
use rankine_base::StopCause;
use rankine_checkpoint::{CheckpointError, StateSource};
use rankine_cpu::Arithmetic;
use rankine_embedding::{Membership, RankTraffic};
use rankine_engine_cpu::CpuModel;
use rankine_job::{Device, DeviceKind, Job, Precision};
use rankine_model::ModelSpec;
use rankine_model::evaluation::JudgedHead;
use rankine_model::guard::StepOutcome;
use rankine_reader::Samples;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::StreamOptions;
use rankine_saved::{SavedModelError, Weights};
use rankine_topology::Rank;

use super::look_ups;
use super::refusal::Refusal;

/// The unpacked samples of a part that stay in memory between evaluations. Of a larger part, reading takes a small
/// share of an evaluation.
const RESIDENT_BYTES: usize = 128 << 20;

/// A model in host memory, with the outcomes of steps that were not taken yet.
pub(super) struct CpuBackend {
    model: CpuModel,
    precision: Option<Precision>,
    outcomes: Vec<StepOutcome>,
    /// The part that was scored last.
    resident: ResidentPart,
}

impl CpuBackend {
    /// Creates the back end of a model, which computes in the job's precision if the processor can. If not, it warns.
    pub(super) fn new(mut model: CpuModel, device: &Device) -> Self {
        let precision =
            supported(device.precision_on_cpus(), rankine_cpu::has_bf16()).unwrap_or_else(|why| {
                tracing::warn!("{why}: computing in fp32");
                None
            });
        if precision.is_some() {
            model.set_arithmetic(Arithmetic::Bf16);
        }
        Self { model, precision, outcomes: Vec::new(), resident: ResidentPart::default() }
    }

    /// Returns the device in words.
    pub(super) fn name(&self, why: &Refusal) -> String {
        why.cpu(self.precision.map(Precision::name))
    }
}

/// Returns the precision of a CPU for a job in `precision`, or `None` for fp32; or why it does not have the job's.
fn supported(precision: Precision, has_bf16: bool) -> Result<Option<Precision>, String> {
    match precision {
        Precision::Fp32 => Ok(None),
        Precision::Bf16 if has_bf16 => Ok(Some(precision)),
        Precision::Bf16 => Err("this CPU has no AVX512-BF16".into()),
        Precision::Tf32 | Precision::Fp16 | Precision::Fp8 => {
            Err(format!("CPUs do not compute in {}", precision.name()))
        }
    }
}

impl Backend for CpuBackend {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn precision(&self, _: &Job) -> Option<Precision> {
        self.precision
    }

    fn open(&self, part: DatasetPart, options: &StreamOptions) -> Result<Batches, BackendError> {
        Batch::unpacked(part, options)
    }

    fn train_step(&mut self, batch: &Batch, rate_factor: f64) -> Result<(), BackendError> {
        let batch = batch.as_unpacked();
        let outcome = self.model.train_step(&batch.samples, rate_factor);
        self.outcomes.push(outcome.map_err(BackendError::full_table)?);
        Ok(())
    }

    fn take_outcomes(&mut self, _: bool, visit: &mut dyn FnMut(StepOutcome)) -> Result<(), BackendError> {
        self.outcomes.drain(..).for_each(visit);
        Ok(())
    }

    fn time_steps(
        &mut self,
        batches: &[Samples],
        rate_factor: f64,
        count: usize,
    ) -> Result<Vec<f64>, BackendError> {
        let step = |batch| {
            let began = Instant::now();
            self.model.train_step(batch, rate_factor).map_err(BackendError::full_table)?;
            Ok(began.elapsed().as_secs_f64() * 1e3)
        };
        batches.iter().cycle().take(count).map(step).collect()
    }

    fn diverged_ranks(&self) -> Result<Vec<Rank>, BackendError> {
        Ok(self.model.diverged_ranks())
    }

    fn visit_ranks(&self, visit: RankVisit) -> Result<(), CheckpointError> {
        self.model.on_each_rank(|rank, state| visit(rank, state)).map(drop)
    }

    fn begin_tracking(&mut self) -> Result<(), CheckpointError> {
        self.model.begin_tracking();
        Ok(())
    }

    fn restore(&mut self, from: &Arc<dyn StateSource>) -> Result<(), CheckpointError> {
        let (dense, memberships) = (from.dense()?, from.memberships()?);
        self.model.restore(from.optimizer_steps(), &dense, memberships, |rows| from.load_rows(rows))
    }

    fn traffic(&self) -> Result<RankTraffic, BackendError> {
        Ok(self.model.traffic())
    }

    fn report_details(&self, batch: &Batch) -> Result<ReportDetails, BackendError> {
        let batch = batch.as_unpacked();
        let look_ups = look_ups::count(self.model.spec(), &batch.samples);
        let exchanged = self.model.traffic().into();
        let dynamic_tables = self.model.dynamic_tables();
        Ok(ReportDetails { exchanged, look_ups, dynamic_tables, ..ReportDetails::default() })
    }
}

impl Scorer for CpuBackend {
    fn score(
        &mut self,
        part: DatasetPart,
        heads: &[JudgedHead],
        options: &StreamOptions,
        progress: &mut dyn FnMut(ScoringProgress<'_>) -> Result<(), StopCause>,
    ) -> Result<Scored, BackendError> {
        score_on_cpu(&mut self.model, &mut self.resident, RESIDENT_BYTES, (part, heads), options, progress)
    }
}

impl Weights for CpuBackend {
    fn spec(&self) -> &ModelSpec {
        self.model.spec()
    }

    fn try_for_each_run(
        &self,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        self.model.try_for_each_run(visit)
    }

    fn memberships(&self) -> Result<Vec<(usize, Membership)>, SavedModelError> {
        Weights::memberships(&self.model)
    }
}

#[cfg(test)]
mod tests {
    use super::Precision::{Bf16, Fp8, Fp16, Fp32, Tf32};
    use super::*;

    #[test]
    fn cpus_compute_in_fp32_or_bf16_and_say_so_if_the_job_asks_for_more() {
        for has_bf16 in [false, true] {
            assert_eq!(supported(Fp32, has_bf16), Ok(None));
            for precision in [Tf32, Fp16, Fp8] {
                let why = format!("CPUs do not compute in {}", precision.name());
                assert_eq!(supported(precision, has_bf16), Err(why));
            }
        }
        assert_eq!(supported(Bf16, true), Ok(Some(Bf16)));
        assert_eq!(supported(Bf16, false), Err("this CPU has no AVX512-BF16".into()));
    }
}
