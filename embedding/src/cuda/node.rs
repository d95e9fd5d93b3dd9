//! The ranks of a node, made together.

use std::sync::Arc;
use std::time::Duration;

use half::bf16;
use rankine_cuda::kernels::Flags;
use rankine_cuda::{Device, PeerBuffer};

use super::error::Result;
use super::layout::Layout;
use super::rank::Rank;
use super::route::SharedRoute;

/// What the ranks of a node have in common.
#[derive(Debug)]
pub struct Node {
    pub(super) layout: Layout,
    pub(super) deadline: Duration,
    pub(super) shared: Vec<Shared>,
}

/// What a rank's peers access of it.
#[derive(Debug)]
pub(super) struct Shared {
    /// `[row of this owner][dim]`
    pub(super) table: PeerBuffer<f32>,
    /// `[slot][dim]`: rows as they arrive.
    pub(super) landing: PeerBuffer<bf16>,
    /// `[rank][entries_max][dim]`: the gradients of each rank for this owner's rows.
    pub(super) gradients: PeerBuffer<bf16>,
    pub(super) flags: PeerBuffer<Flags>,
    pub(super) routes: Vec<SharedRoute>,
    /// One a batch that is held: ids, feature by feature.
    pub(super) ids: Vec<PeerBuffer<u32>>,
    /// `[sample][stride]`: vectors as the model reads them.
    pub(super) output: PeerBuffer<bf16>,
}

impl Node {
    /// Makes the ranks: rank `r` on `devices[r]`; a GPU may have several. `batches` is how many batches of ids each
    /// holds, `routes` how many routes, two at least; `deadline` is how long one waits for another.
    ///
    /// # Panics
    /// Where there are not as many devices as the layout has ranks, or no two routes.
    ///
    /// # Errors
    /// Where the layout is of what is not exchanged, where the memory does not suffice, or where GPUs cannot access
    /// each other's.
    pub fn ranks(
        layout: Layout,
        devices: &[Arc<Device>],
        batches: usize,
        routes: usize,
        deadline: Duration,
    ) -> Result<Vec<Rank>> {
        assert_eq!(devices.len(), layout.ranks, "a device a rank");
        layout.check_exchange()?;
        assert!(routes >= 2, "a route is made while the one before is in use");
        let mut shared = Vec::new();
        for device in devices {
            device.bind()?;
            let rows = |len: usize| PeerBuffer::filled(device, devices, len * layout.dim(), 0xff);
            shared.push(Shared {
                table: PeerBuffer::filled(device, devices, layout.owner_rows() * layout.dim(), 0xff)?,
                landing: rows(layout.ids())?,
                gradients: rows(layout.ranks * layout.entries_max())?,
                flags: PeerBuffer::filled(device, devices, 1, 0)?,
                routes: (0..routes)
                    .map(|_| SharedRoute::new(device, devices, &layout))
                    .collect::<Result<_>>()?,
                ids: (0..batches)
                    .map(|_| Ok(PeerBuffer::filled(device, devices, layout.ids(), 0)?))
                    .collect::<Result<_>>()?,
                output: PeerBuffer::filled(device, devices, layout.elements(), 0xff)?,
            });
        }
        let node = Arc::new(Self { layout, deadline, shared });
        devices.iter().enumerate().map(|(rank, device)| Rank::new(&node, device, rank)).collect()
    }
}
