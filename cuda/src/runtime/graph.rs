//! Work that is captured once and replayed.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::device::Device;
use super::error::{DriverResult, Error, Result};
use super::lane::Lane;

/// A captured CUDA graph. It holds no buffers: those whose addresses it contains must live as long as it is replayed.
#[derive(Debug)]
pub struct Graph {
    device: Arc<Device>,
    /// None if the device was only measured.
    graph: Option<sys::CUgraphExec>,
}

// SAFETY: the driver allows the use of a graph from any thread, one at a time; `replay` takes it by `&mut`.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures what `enqueue` enqueues on the lane, and on other lanes that wait for it and that it waits for in
    /// turn. Nothing is executed yet.
    ///
    /// # Errors
    /// Those of `enqueue`, and an error if something was enqueued that cannot be captured.
    pub fn capture<E: From<Error>>(lane: &Lane, enqueue: impl FnOnce() -> Result<(), E>) -> Result<Self, E> {
        if lane.measures() {
            return Ok(Self { device: Arc::clone(lane.device()), graph: None });
        }
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as the lane.
        unsafe { result::stream::begin_capture(lane.stream(), mode) }.named("cuStreamBeginCapture")?;
        let enqueued = enqueue();
        // The capture must end in any case. If enqueueing failed, its error is returned.
        // SAFETY: the stream lives, and a capture was begun on it.
        let ended = unsafe { result::stream::end_capture(lane.stream()) }.named("cuStreamEndCapture");
        enqueued?;
        let captured = ended?;
        // Kernels keep the priorities of their lanes.
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        // SAFETY: the graph was just captured.
        let graph = unsafe { result::graph::instantiate(captured, flags) }.named("cuGraphInstantiate");
        // SAFETY: the graph was just captured; what was instantiated from it does not need it.
        let _ = unsafe { result::graph::destroy(captured) };
        let graph = graph?;
        let owned = Self { device: Arc::clone(lane.device()), graph: Some(graph) };
        // SAFETY: graph and stream live. Uploading now keeps the first replay from being slower.
        unsafe { result::graph::upload(graph, lane.stream()) }.named("cuGraphUpload")?;
        Ok(owned)
    }

    /// Enqueues the work on the lane.
    ///
    /// # Safety
    /// The buffers that the graph was captured with must still exist.
    ///
    /// # Errors
    /// If the driver reports an error. Errors in the work itself appear when the lane is waited for.
    pub unsafe fn replay(&mut self, lane: &Lane) -> Result<()> {
        let Some(graph) = self.graph else { return Ok(()) };
        // SAFETY: graph and stream live; the caller vouches for the buffers.
        unsafe { result::graph::launch(graph, lane.stream()) }.named("cuGraphLaunch")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let Some(graph) = self.graph else { return };
        let _ = self.device.bind();
        // SAFETY: the graph was instantiated by `capture` and is destroyed once.
        let _ = unsafe { result::graph::exec_destroy(graph) };
    }
}
