//! Measurements on a device: what it does in an iteration, phase by phase and kernel by kernel.

use serde::Serialize;

use super::error::BackendError;

/// The highest rates that a GPU reaches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ceilings {
    /// Bytes read and written by a copy of memory, in GB/s.
    pub gb_per_s: f64,
    /// A large product of matrices, in TFLOP/s.
    pub tflop_per_s: f64,
    /// The same product in fp8, if layers use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp8_tflop_per_s: Option<f64>,
}

/// A part of an iteration, by itself on the GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredPhase {
    /// Its name.
    pub name: &'static str,
    /// How long it takes.
    pub ms: f64,
    /// The least bytes that it must read and write.
    pub bytes: u64,
    /// Multiplications and additions of matrix products.
    pub flops: u64,
    /// Bytes over time.
    pub gb_per_s: f64,
    /// Operations over time.
    pub tflop_per_s: f64,
    /// The roofline time over the measured time: the time in which the GPU's ceilings (that of fp8 for fp8 layers)
    /// allow its bytes or its operations, whichever is longer.
    pub roofline_share: f64,
}

/// An activity of a GPU, as traces show it.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceEvent {
    /// The name of the kernel or copy.
    pub name: String,
    /// Whether it is a kernel, not a copy.
    pub is_kernel: bool,
    /// The device, as the driver numbers them.
    pub device: u32,
    /// The lane on which it ran.
    pub lane: u32,
    /// When it began, in nanoseconds of the trace's clock.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Bytes that a copy moved.
    pub bytes: u64,
}

/// A device that can measure itself.
pub trait Profile {
    /// Marks the moment at which all started steps will be complete.
    ///
    /// # Errors
    /// [`BackendError::Failed`].
    fn mark(&mut self) -> Result<(), BackendError>;

    /// Returns the milliseconds from each marked moment to the next, once all steps are complete.
    ///
    /// # Errors
    /// [`BackendError::Failed`].
    fn ms_between_marks(&self) -> Result<Vec<f64>, BackendError>;

    /// Returns the time that each phase of an iteration takes by itself, and the ceilings of that GPU. Requires a
    /// completed step; weights change.
    ///
    /// # Errors
    /// [`BackendError::Failed`].
    fn time_phases(&mut self) -> Result<(Vec<MeasuredPhase>, Ceilings), BackendError>;

    /// Trains this many steps on the batches that are resident, and waits for them.
    ///
    /// # Errors
    /// [`BackendError::Failed`].
    fn repeat_steps(&mut self, steps: usize) -> Result<(), BackendError>;

    /// Starts to record the device's activity, kernel by kernel.
    ///
    /// # Errors
    /// [`BackendError::Trace`].
    fn begin_trace(&mut self) -> Result<(), BackendError>;

    /// Ends the recording, and returns the activity since it began.
    ///
    /// # Errors
    /// [`BackendError::Trace`].
    fn end_trace(&mut self) -> Result<Vec<TraceEvent>, BackendError>;
}
