//! The state of a network besides its tables, saved and restored, so that training resumes with the same bits.

use rankine_checkpoint::{DenseState, DeviceState, Fp8State, LossScale};
use rankine_cuda::Lane;
use rankine_cuda::kernels::{Element, Fp8Scaling, Guard};
use rankine_embedding::cuda::Result;

use super::Network;

impl<T: Element> Network<T> {
    /// Whether each rank keeps only the optimizer state of some dense parameters.
    pub(in crate::cuda) fn is_sharded(&self) -> bool {
        self.resources.dense.is_sharded()
    }

    /// Returns the dense parameters whose optimizer state this rank keeps, with that state, after the lane has
    /// finished all work enqueued before.
    pub(in crate::cuda) fn dense_state(&self, lane: &Lane) -> Result<Vec<DenseState>> {
        self.resources.dense.read(lane)
    }

    /// Returns the state besides parameters, after the lane has finished all work enqueued before.
    pub(in crate::cuda) fn device_state(&self, lane: &Lane) -> Result<DeviceState> {
        let guard = self.resources.guard.read(lane)?[0];
        let Guard { loss_scale: scale, steady, skipped, .. } = guard;
        let scalings = self.resources.fp8.as_ref().map_or(Ok(Vec::new()), |fp8| fp8.scalings().read(lane))?;
        Ok(DeviceState {
            loss_scale: Self::SCALED.then_some(LossScale { scale, steady, skipped }),
            fp8: scalings.iter().map(fp8_state).collect(),
        })
    }

    /// Restores dense parameters with their optimizer state, and the other state, as far as this precision uses it and
    /// the checkpoint has it.
    pub(in crate::cuda) fn restore(
        &self,
        lane: &Lane,
        dense: &DenseState,
        device: Option<&DeviceState>,
    ) -> Result<()> {
        self.resources.dense.write(lane, &dense.parameters, &dense.state)?;
        let mut guard = Self::guard();
        if let Some(LossScale { scale, steady, skipped }) =
            device.and_then(|device| device.loss_scale).filter(|_| Self::SCALED)
        {
            guard = Guard { steady, skipped, ..Guard::new(scale) };
        }
        self.resources.guard.write(lane, &[guard])?;
        let Some(fp8) = &self.resources.fp8 else { return Ok(()) };
        let scalings: Vec<_> =
            device.map(|device| &device.fp8[..]).unwrap_or_default().iter().map(scaling).collect();
        if scalings.len() == fp8.scalings().len() {
            fp8.scalings().write(lane, &scalings)?;
        }
        // SAFETY: the parameters are complete, and the lane is waited for.
        unsafe { fp8.quantize_weights(lane) }?;
        Ok(lane.synchronize()?)
    }
}

fn fp8_state(&Fp8Scaling { scale, largest, steps, history, .. }: &Fp8Scaling) -> Fp8State {
    Fp8State { scale, largest: f32::from_bits(largest), steps, history }
}

/// Scales are powers of two, so their inverses are exact.
fn scaling(&Fp8State { scale, largest, steps, history }: &Fp8State) -> Fp8Scaling {
    Fp8Scaling { inverse: 1.0 / scale, scale, largest: largest.to_bits(), steps, history }
}
