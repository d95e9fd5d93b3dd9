//! GPUs in a build without CUDA: there are none.

use rankine_job::Job;
use rankine_model::Model;
use rankine_model::overlap::Overlap;
use rankine_reader::Dataset;
use rankine_reader::stream::Position;

use super::device::InitializedDevice;
use super::measurements::Measurements;
use super::refusal::{GpuSelectionError, Refusal};
use crate::training::error::TrainError;
use crate::training::processes::RankAssignment;

/// The GPUs that are to train a job.
pub(super) enum Gpus {}

/// A batch that GPUs unpack.
pub(in crate::training) enum FeedBatch {}

/// The GPUs that would train a job, in words.
pub(super) fn device_of(_: &Job, _: &RankAssignment, _: &Model) -> Result<String, GpuSelectionError> {
    Err(Refusal::OnlyCpu.into())
}

impl Gpus {
    pub(super) fn select(
        _: &Job,
        assignment: &RankAssignment,
        _: &Dataset,
        _: &Model,
        _: &Measurements,
    ) -> Result<Self, GpuSelectionError> {
        if assignment.processes.size() > 1 {
            let why = "several processes train on GPUs, and this build does not support GPUs";
            return Err(TrainError::Device(why.into()).into());
        }
        Err(Refusal::OnlyCpu.into())
    }

    pub(super) fn disable(&mut self, _: &[Overlap]) {
        match *self {}
    }

    pub(super) fn machine(&self) -> Option<&str> {
        match *self {}
    }

    pub(super) fn initialize(
        self,
        _: &Job,
        _: &Dataset,
        _: &Model,
        _: &Measurements,
    ) -> Result<InitializedDevice, GpuSelectionError> {
        match self {}
    }
}

impl FeedBatch {
    pub(super) fn len(&self) -> usize {
        match *self {}
    }

    pub(super) fn start(&self) -> Position {
        match *self {}
    }
}
