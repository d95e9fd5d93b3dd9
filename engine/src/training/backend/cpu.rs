//! The CPU as a back end. A step is complete when `train_step` returns.

use std::sync::Arc;
use std::time::Instant;

use rankine_embedding::RankTraffic;
use rankine_reader::Samples;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::StreamOptions;

use super::super::TrainError;
use super::super::report::ReportDetails;
use super::batches::{Batch, Batches};
use super::device::{Backend, RankVisit};
use super::look_ups;
use super::scorer::{Scorer, ScoringProgress};
use crate::checkpoint::{CheckpointError, StateSource};
use crate::cpu::CpuModel;
use crate::evaluation::HeadMetrics;
use crate::guard::StepOutcome;
use crate::job::DeviceKind;
use crate::model::ModelSpec;
use crate::saved::{SavedModelError, Weights};

/// A model in host memory, with the outcomes of steps that were not taken yet.
pub(super) struct CpuBackend {
    pub(super) model: CpuModel,
    pub(super) outcomes: Vec<StepOutcome>,
}

impl Backend for CpuBackend {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn open(&self, part: DatasetPart, options: &StreamOptions) -> Result<Batches, TrainError> {
        Batches::unpacked(part, options)
    }

    fn train_step(&mut self, batch: &Batch, rate_factor: f64) -> Result<(), TrainError> {
        let Batch::Unpacked(batch) = batch else { unreachable!("batches are opened for the back end") };
        self.outcomes.push(self.model.train_step(&batch.samples, rate_factor));
        Ok(())
    }

    fn take_outcomes(&mut self, _: bool, visit: &mut dyn FnMut(StepOutcome)) -> Result<(), TrainError> {
        self.outcomes.drain(..).for_each(visit);
        Ok(())
    }

    fn time_steps(
        &mut self,
        batches: &[Samples],
        rate_factor: f64,
        count: usize,
    ) -> Result<Vec<f64>, TrainError> {
        let step = |batch| {
            let began = Instant::now();
            self.model.train_step(batch, rate_factor);
            began.elapsed().as_secs_f64() * 1e3
        };
        Ok(batches.iter().cycle().take(count).map(step).collect())
    }

    fn diverged_ranks(&self) -> Result<Vec<usize>, TrainError> {
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
        self.model.restore(from.optimizer_steps(), &from.dense()?, |rows| from.load_rows(rows))
    }

    fn traffic(&self) -> Result<RankTraffic, TrainError> {
        Ok(self.model.traffic())
    }

    fn report_details(&self, batch: &Batch) -> Result<ReportDetails, TrainError> {
        let Batch::Unpacked(batch) = batch else { unreachable!("batches are opened for the back end") };
        let look_ups = look_ups::count(self.model.spec(), &batch.samples);
        let exchanged = self.model.traffic().into();
        Ok(ReportDetails { exchanged, look_ups, ..ReportDetails::default() })
    }
}

impl Scorer for CpuBackend {
    fn judge(
        &mut self,
        part: DatasetPart,
        options: &StreamOptions,
        progress: &mut dyn FnMut(ScoringProgress<'_>) -> Result<(), TrainError>,
    ) -> Result<Option<Vec<HeadMetrics>>, TrainError> {
        self.model.judge(part, options, progress)
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
}
