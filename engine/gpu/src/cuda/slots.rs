//! Slots of batches on a GPU: their input, and the graphs that build their routes.

use std::sync::Arc;

use rankine_cuda::{Device, Graph, Lane, Moment};
use rankine_embedding::cuda::Result;
use rankine_reader::Schema;

use super::input::{InputLayout, InputSlot, Unpacker};

/// The slots of batches in one layout, and what unpacks batches into them.
#[derive(Debug)]
pub(super) struct BatchSlots {
    pub(super) slots: Vec<BatchSlot>,
    /// Created by the first batch that is unpacked on the GPU.
    pub(super) unpacker: Option<Unpacker>,
}

/// A slot for a batch.
#[derive(Debug)]
pub(super) struct BatchSlot {
    pub(super) route: RouteGraphs,
    pub(super) input: InputSlot,
    /// When the route is built, if look-ups need it.
    pub(super) routed: Moment,
    pub(super) done: Moment,
}

/// The graphs that build a batch's route.
#[derive(Debug)]
pub(super) struct RouteGraphs {
    /// The route, if look-ups need it.
    pub(super) first: Option<Graph>,
    /// For each size class of messages between nodes, the rest of the route; the first class has none.
    pub(super) rests: Vec<Option<Graph>>,
}

impl BatchSlots {
    /// Allocates the input of each of `slots` slots.
    pub(super) fn inputs(device: &Arc<Device>, layout: &InputLayout, slots: usize) -> Result<Vec<InputSlot>> {
        let _input = device.purpose("input");
        (0..slots).map(|_| InputSlot::new(device, layout.clone())).collect()
    }

    /// Creates slots from their input and the graphs of their routes.
    pub(super) fn new(
        device: &Arc<Device>,
        inputs: Vec<InputSlot>,
        routes: Vec<RouteGraphs>,
    ) -> Result<Self> {
        let slot = |(input, route)| {
            Ok(BatchSlot { route, input, routed: Moment::new(device)?, done: Moment::new(device)? })
        };
        let slots = std::iter::zip(inputs, routes).map(slot).collect::<Result<_>>()?;
        Ok(Self { slots, unpacker: None })
    }

    /// Returns a slot, what unpacks batches of a schema into it, and the moment at which the step of another slot is
    /// done, if that is given.
    pub(super) fn slot_to_fill(
        &mut self,
        slot: usize,
        running: Option<usize>,
    ) -> (&mut InputSlot, &mut Option<Unpacker>, Option<&Moment>) {
        let Self { slots, unpacker } = self;
        match running {
            None => (&mut slots[slot].input, unpacker, None),
            Some(running) => {
                let [next, running] = slots
                    .get_disjoint_mut([slot, running])
                    .expect("the slot of a step that is running is not free");
                (&mut next.input, unpacker, Some(&running.done))
            }
        }
    }
}

impl BatchSlot {
    /// If look-ups need a route: enqueues building it. [`BatchSlot::routed`] says when it is done.
    ///
    /// # Safety
    /// The buffers that the graph was captured with must live; see [`Lane::launch`].
    pub(super) unsafe fn enqueue_route(&mut self, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe { replay(&mut self.route.first, &self.routed, lane) }
    }

    /// The same for the rest of the route, if messages of this size class have one.
    ///
    /// # Safety
    /// As for [`BatchSlot::enqueue_route`].
    pub(super) unsafe fn enqueue_rest(&mut self, size: usize, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe { replay(&mut self.route.rests[size], &self.routed, lane) }
    }
}

/// # Safety
/// As for [`BatchSlot::enqueue_route`].
unsafe fn replay(graph: &mut Option<Graph>, done: &Moment, lane: &Lane) -> Result<()> {
    if let Some(graph) = graph {
        // SAFETY: the caller vouches for it.
        unsafe { graph.replay(lane) }?;
        lane.record(done)?;
    }
    Ok(())
}

/// Returns the unpacker for batches of a schema, created if there is none yet.
pub(super) fn unpacker_of<'a>(
    unpacker: &'a mut Option<Unpacker>,
    input: &InputSlot,
    device: &Arc<Device>,
    schema: &Schema,
) -> Result<&'a Unpacker> {
    Ok(match unpacker {
        Some(unpacker) => unpacker,
        none => none.insert(input.unpacker(device, schema)?),
    })
}
