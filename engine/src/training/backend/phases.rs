//! What a device does in an iteration: phase by phase, each by itself, and kernel by kernel, as in a trace.

use serde::Serialize;

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
pub(in crate::training) struct TraceEvent {
    pub(in crate::training) name: String,
    pub(in crate::training) is_kernel: bool,
    pub(in crate::training) device: u32,
    pub(in crate::training) lane: u32,
    pub(in crate::training) begin_ns: u64,
    pub(in crate::training) end_ns: u64,
    pub(in crate::training) bytes: u64,
}
