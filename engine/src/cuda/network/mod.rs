//! A model's parts on a GPU, and the work of a pass forward and of a pass back.
//!
//! The matrix of vectors is where the parts meet: the bottom MLP and the look-ups write it, the interaction reads it,
//! and so do the heads, as far as first-order terms lie there; [`places`] says where. Each part plans its products once
//! and enqueues them, with the kernels around them, as often as a graph is captured.

mod cross;
mod dense;
mod fp8;
mod head;
mod hidden;
mod interaction;
mod layers;
mod mlp;
mod places;
mod shared;
mod squares;
mod state;

use std::sync::Arc;

use rankine_cuda::blas::{Algorithms, Blas, Compute, Epilogue, Tuning};
use rankine_cuda::kernels::{DenseInput, Element, ElementKind, Fp8OfRanks, Guard, Outcome, Tally};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::cuda::Result;

use super::input::Input;
use super::tables::{RoutedBatch, Tables};
use super::together::RankLinks;
use crate::model::{Layer, ModelSpec, TrainingRules};
use dense::Dense;
use fp8::{Fp8Mlp, Making};
use head::Head;
use hidden::Hidden;
use interaction::{Interaction, Seen};
use layers::Layers;
use mlp::Mlp;
pub(super) use places::Places;
use shared::{Activations, Both, Shared};

/// What the loss is multiplied by at first, where it is scaled, and the steps after which that is doubled unless one
/// was left out: those of PyTorch's `GradScaler`.
const FIRST_SCALE: f32 = 65536.0;
const SCALE_INTERVAL: u32 = 2000;

/// How products are computed, and what becomes of the gradients.
#[derive(Debug, Clone)]
pub(super) struct Products {
    pub(super) compute: Compute,
    /// Whether those of hidden layers and of cross layers are in fp8, behind elements of bf16.
    pub(super) fp8: bool,
    pub(super) algorithms: Algorithms,
    /// Whether each rank updates a part of the parameters for all.
    pub(super) shard_dense_update: bool,
}

/// A model's weights, and the activations of a batch.
#[derive(Debug)]
pub(super) struct Network<T> {
    shared: Shared<T>,
    dense_columns: usize,
    rank: usize,
    /// The longest norm of all dense gradients.
    norm_max: Option<f32>,
    /// The dense columns as the bottom MLP reads them, or as the first of the vectors where there is none.
    dense_input: Both<T>,
    /// `[sample]` rows as [`Places`] says.
    vectors: Activations<T>,
    bottom: Mlp<T>,
    interaction: Interaction<T>,
    hidden: Hidden<T>,
    head: Head<T>,
    _room: Option<Activations<T>>,
}

/// The products of a pass forward over some samples.
#[derive(Debug)]
pub(super) struct Forward {
    samples: usize,
    bottom: mlp::Forward,
    interaction: interaction::Forward,
    hidden: hidden::Forward,
}

/// The products of a pass back over a batch.
#[derive(Debug)]
pub(super) struct Backward {
    bottom: mlp::Backward,
    interaction: interaction::Backward,
    hidden: hidden::Backward,
}

/// The layers that are in fp8 where products are, with their sizes on the GPU: cross layers, and the hidden ones of the
/// top MLP.
#[derive(Debug)]
pub(super) struct Fp8Layers {
    pub(super) cross: Vec<Layer>,
    pub(super) hidden: Vec<Layer>,
}

impl Fp8Layers {
    pub(super) fn new(spec: &ModelSpec, places: &Places) -> Self {
        let Layers { cross, hidden, .. } = Layers::new(spec, places);
        // Cross layers are in fp8 where those behind them are.
        let cross = if hidden.is_empty() { Vec::new() } else { cross };
        Self { cross: cross.into_iter().flatten().collect(), hidden }
    }

    /// Whether their sizes allow it.
    pub(super) fn fit(&self) -> bool {
        fp8::takes(&self.cross) && fp8::takes(&self.hidden)
    }
}

impl Forward {
    /// Samples that it goes over.
    pub(super) fn samples(&self) -> usize {
        self.samples
    }
}

impl<T: Element> Network<T> {
    /// Whether gradients can be beyond the elements' range though nothing is wrong: then the loss is scaled, so that
    /// they are not too small either, and steps where they are too large are left out.
    const SCALED: bool = matches!(T::KIND, ElementKind::F16);

    /// A network for so many samples. With other ranks this is a collective call.
    pub(super) fn new(
        (device, links): (&Arc<Device>, Option<&RankLinks>),
        Products { compute, fp8, algorithms, shard_dense_update }: Products,
        (spec, rules): (&ModelSpec, &TrainingRules),
        places: &Places,
        samples: usize,
        parameters: &[f32],
    ) -> Result<Self> {
        let _activations = device.purpose("activations");
        let layers = Layers::new(spec, places);
        let ranks = links.map_or(1, |links| links.cluster.ranks());
        let (told, tensors_max) = (Tally::numbers(spec.heads.len()), fp8::tensors_max(&layers));
        let numbers = told + if fp8 { ranks * tensors_max } else { 0 };
        let together = (links, numbers, shard_dense_update);
        let dense = Dense::new(device, together, layers, parameters, &rules.dense)?;
        let layers = &dense.layers;
        let vectors = Activations::new(device, samples, places.stride)?;
        let rows = vectors.both();
        let seen = rows.first_columns(places.vectors.len);
        let mut making = (fp8 && !layers.hidden.is_empty())
            .then(|| Making::new(device, layers.fill_up(parameters), dense.parameters.pointer(), ranks));
        let interaction = Interaction::new(device, spec, (places, layers), seen, making.as_mut())?;
        let first = rows.first_columns(places.first);
        let (room, dense_input) = match layers.bottom.first() {
            Some(layer) => {
                let room = Activations::new(device, samples, layer.inputs)?;
                let input = room.both();
                (Some(room), input)
            }
            None => (None, first),
        };
        let bottom = (dense_input.values, None);
        let bottom = Mlp::new(device, &layers.bottom, bottom, Some(first), interaction.through_relu())?;
        let top = interaction.output();
        let hidden = match (&mut making, top.clone()) {
            (Some(making), top) => {
                let input = match top {
                    Seen::Elements(top) => fp8::Input::Elements(top.cast()),
                    Seen::Fp8(room) => fp8::Input::Fp8(room),
                };
                Hidden::Fp8(Fp8Mlp::new(making, &layers.hidden, input, samples)?.into())
            }
            (None, Seen::Elements(Both { values, gradients })) => {
                let input = (values, Some(gradients));
                Hidden::Elements(Mlp::new(device, &layers.hidden, input, None, true)?)
            }
            (None, Seen::Fp8(_)) => {
                unreachable!("interactions in fp8 are made with what layers in fp8 share")
            }
        };
        let head_input = match (hidden.output(), top) {
            (Some(output), _) => (output, true),
            (None, Seen::Elements(top)) => (top, false),
            (None, Seen::Fp8(_)) => unreachable!("interactions are in fp8 before hidden layers alone"),
        };
        let head = Head::new(device, spec, (places, layers), head_input, rows)?;
        let of_ranks = links.zip(dense.gradients.sums()).map(|(links, sums)| Fp8OfRanks {
            largest: sums.numbers().pointer().element(told),
            rank: links.cluster.rank() as u32,
            ranks: ranks as u32,
        });
        let fp8 = making.map(|making| making.finish(of_ranks, tensors_max)).transpose()?;
        if let Some(fp8) = &fp8 {
            let lane = Lane::new(device)?;
            // SAFETY: the parameters are there, and the lane is waited for.
            unsafe { fp8.quantize_weights(&lane) }?;
            lane.synchronize()?;
        }
        let shared = Shared {
            device: Arc::clone(device),
            blas: Blas::new(device, algorithms.clone())?,
            beside: Blas::new(device, algorithms)?,
            compute,
            samples,
            dense,
            guard: Buffer::of(device, &[Self::guard()])?,
            fp8,
        };
        Ok(Self {
            shared,
            dense_columns: spec.dense_columns,
            rank: links.map_or(0, |links| links.cluster.rank()),
            norm_max: rules.dense_clip_norm,
            dense_input,
            vectors,
            bottom,
            interaction,
            hidden,
            head,
            _room: room,
        })
    }

    /// The algorithms that products take.
    pub(super) fn tuning(&self) -> Tuning {
        let mut tuning = self.shared.blas.tuning();
        tuning.algorithms.extend(self.shared.beside.tuning().algorithms);
        tuning
    }

    /// The dense parameters as they lie here, filled up, once the lane has done all that was enqueued on it.
    pub(super) fn all_parameters(&self, lane: &Lane) -> Result<Vec<f32>> {
        Ok(self.shared.dense.parameters.read(lane)?)
    }

    /// The dense parameters of the model, once the lane has done all that was enqueued on it.
    pub(super) fn parameters(&self, lane: &Lane) -> Result<Vec<f32>> {
        Ok(self.shared.dense.layers.cut_out(&self.shared.dense.parameters.read(lane)?))
    }

    /// The logits of the first samples of the last pass forward.
    pub(super) fn logits(&self, lane: &Lane, samples: usize) -> Result<Vec<f32>> {
        let heads = self.head.logits.len() / self.shared.samples;
        Ok(self.head.logits.read_part(lane, 0, samples * heads)?)
    }

    /// Where the logits of the last pass forward lie: `[sample][head]`.
    pub(super) fn logits_pointer(&self) -> Pointer<f32> {
        self.head.logits.pointer()
    }

    /// The guard as training starts with it.
    fn guard() -> Guard {
        Guard::new(if Self::SCALED { FIRST_SCALE } else { 1.0 })
    }

    /// Steps that were left out since their gradients were beyond the elements' range, where they can be, once the lane
    /// has done all that was enqueued on it.
    pub(super) fn skipped_steps(&self, lane: &Lane) -> Result<Option<u64>> {
        Ok(if Self::SCALED { Some(self.shared.guard.read(lane)?[0].skipped) } else { None })
    }

    /// Lets nothing be updated until it is allowed again, with the guard as training starts with it.
    pub(super) fn hold(&self, lane: &Lane, hold: bool) -> Result<()> {
        Ok(self.shared.guard.write(lane, &[Guard { held: u32::from(hold), ..Self::guard() }])?)
    }

    /// Forgets all dense gradients, and what was found to be wrong with them.
    pub(super) fn forget_gradients(&self, lane: &Lane) -> Result<()> {
        let gradients = &self.shared.dense.gradients;
        gradients.write(lane, &vec![0.0; gradients.len()])?;
        self.hold(lane, false)
    }

    /// Whether hidden and cross layers are in fp8.
    pub(super) fn multiplies_fp8(&self) -> bool {
        self.shared.fp8.is_some()
    }

    /// The products of a pass forward over so many samples; `learns` says whether a way back follows.
    pub(super) fn plan_forward(&self, samples: usize, learns: bool) -> Result<Forward> {
        let shared = &self.shared;
        Ok(Forward {
            samples,
            bottom: self.bottom.plan_forward(shared, samples)?,
            interaction: self.interaction.plan_forward(shared, samples, learns)?,
            hidden: self.hidden.plan_forward(shared, samples, learns)?,
        })
    }

    /// The products of a pass back over a batch.
    pub(super) fn plan_backward(&self) -> Result<Backward> {
        let shared = &self.shared;
        Ok(Backward {
            bottom: self.bottom.plan_backward(shared, &shared.blas, Epilogue::None)?,
            interaction: self.interaction.plan_backward(shared)?,
            hidden: self.hidden.plan_backward(shared, self.interaction.entrance(shared))?,
        })
    }

    /// Enqueues the bottom MLP, from a batch's dense columns to the first of the vectors.
    ///
    /// # Safety
    /// The input must have as many samples as the plan says; see [`Lane::launch`].
    pub(super) unsafe fn bottom_forward(&self, lane: &Lane, input: Input, plan: &Forward) -> Result<()> {
        if self.dense_columns == 0 {
            return Ok(());
        }
        let output = self.dense_input.values;
        let convert = DenseInput {
            dense: input.dense,
            output: output.pointer,
            samples: plan.samples as u32,
            columns: self.dense_columns as u32,
            filled: output.columns as u32,
            stride: output.stride as u32,
        };
        // SAFETY: all addresses but the input's are of this value's buffers, which have room for a batch; the caller
        // vouches for the input.
        unsafe {
            lane.launch(&convert, self.shared.blocks())?;
            self.bottom.forward(lane, &self.shared, &plan.bottom)
        }
    }

    /// Enqueues the look-ups, from a batch's ids to the other vectors and to first-order terms.
    ///
    /// # Safety
    /// As for [`Network::bottom_forward`].
    pub(super) unsafe fn look_up(
        &self,
        lane: &Lane,
        tables: &Tables,
        batch: RoutedBatch,
        samples: usize,
    ) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { tables.look_up(lane, batch, samples, self.vectors.both().values.pointer) }
    }

    /// Enqueues the interaction of the vectors, once all are there.
    ///
    /// # Safety
    /// As for [`Network::bottom_forward`].
    pub(super) unsafe fn interact(&self, lane: &Lane, plan: &Forward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.interaction.forward(lane, &self.shared, &plan.interaction) }
    }

    /// Enqueues the top MLP's hidden layers.
    ///
    /// # Safety
    /// As for [`Network::bottom_forward`].
    pub(super) unsafe fn hidden_forward(&self, lane: &Lane, plan: &Forward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.hidden.forward(lane, &self.shared, &plan.hidden) }
    }

    /// Enqueues the last layer: to logits, where `back` is false, or to losses and the gradients by its input.
    ///
    /// # Safety
    /// As for [`Network::bottom_forward`]; the other parts must come before.
    pub(super) unsafe fn head(&self, lane: &Lane, input: Input, samples: usize, back: bool) -> Result<()> {
        let terms = self.interaction.terms();
        // SAFETY: as for `bottom_forward`.
        unsafe { self.head.enqueue(lane, &self.shared, (input, samples), terms, back) }
    }

    /// Enqueues the way back through the top MLP's hidden layers, after [`Network::head`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn hidden_backward(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.hidden.backward(lane, &self.shared, &plan.hidden) }
    }

    /// Enqueues the way back to the gradients by the vectors.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn interact_backward(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.interaction.backward(lane, &self.shared, &plan.interaction) }
    }

    /// Enqueues the way back through the bottom MLP.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn bottom_backward(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.bottom.backward(lane, &self.shared, &plan.bottom) }
    }

    /// Enqueues the gradients by the weights of the top MLP's hidden layers, after [`Network::hidden_backward`]. They
    /// and those of the interaction may be computed beside all else, one after the other.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn hidden_weights(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.hidden.weights(lane, &self.shared, &plan.hidden) }
    }

    /// Enqueues the gradients by the interaction's weights, after [`Network::interact_backward`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn interact_weights(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.interaction.weights(lane, &self.shared, &plan.interaction) }
    }

    /// Enqueues the gradients by the weights of the bottom MLP, after [`Network::bottom_backward`] and on its lane.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn bottom_weights(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.bottom.weights(lane, &self.shared.blas, &plan.bottom) }
    }

    /// Enqueues the gradients by the biases of the top MLP and by the heads' parameters, after [`Network::head`] and
    /// [`Network::hidden_backward`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn top_sums(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe {
            self.head.sums(lane, &self.shared)?;
            self.hidden.sums(lane, &self.shared, &plan.hidden)
        }
    }

    /// Enqueues the gradients by the interaction's biases, after [`Network::interact_backward`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn interact_sums(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.interaction.sums(lane, &self.shared, &plan.interaction) }
    }

    /// Enqueues the gradients by the bottom MLP's biases, after [`Network::bottom_backward`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn bottom_sums(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.bottom.sums(lane, &self.shared, &plan.bottom) }
    }

    /// Enqueues adding up the top MLP's gradients over all ranks, after [`Network::hidden_backward`]; nothing where
    /// there is one rank. All ranks must add up the parts in the same order, on one lane each.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn sum_top(&self, lane: &Lane) -> Result<()> {
        if let Some(sums) = self.shared.dense.gradients.sums() {
            // SAFETY: as for `bottom_forward`.
            unsafe { sums.enqueue(&sums.top, lane) }?;
        }
        Ok(())
    }

    /// The same of the interaction's gradients, after [`Network::interact_backward`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn sum_interaction(&self, lane: &Lane) -> Result<()> {
        if let Some(sums) = self.shared.dense.gradients.sums()
            && let Some(interaction) = &sums.interaction
        {
            // SAFETY: as for `bottom_forward`.
            unsafe { sums.enqueue(interaction, lane) }?;
        }
        Ok(())
    }

    /// The same of the bottom MLP's gradients, after [`Network::bottom_backward`], and with them of what each rank has
    /// come to.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn sum_bottom(&self, lane: &Lane) -> Result<()> {
        if let Some(sums) = self.shared.dense.gradients.sums() {
            // SAFETY: as for `bottom_forward`.
            unsafe {
                self.head.tally(lane, &self.shared, (sums.numbers().pointer(), self.rank))?;
                self.shared.fp8.iter().try_for_each(|fp8| fp8.tell(lane, self.shared.guard.pointer()))?;
                sums.enqueue_bottom(lane)?;
            }
        }
        Ok(())
    }

    /// Tells whether a rank waited in vain for another as gradients were added up, as far as is known now.
    pub(super) fn check_now(&self) -> Result<()> {
        self.shared.dense.check_now()
    }

    /// Enqueues the verdict on a step, once all gradients are there and added up: whether it is written. What it came
    /// to goes to its place among `outcomes`.
    ///
    /// # Safety
    /// As for [`Network::head`]; `outcomes` must have the step's place.
    pub(super) unsafe fn verdict(&self, lane: &Lane, input: Input, outcomes: Pointer<Outcome>) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe {
            let gradients = self.shared.dense.gradients.pointer();
            self.shared.dense.squares.enqueue(lane, gradients)?;
            self.shared.fp8.iter().try_for_each(|fp8| fp8.check(lane, self.shared.guard.pointer()))?;
            let rules = (self.norm_max, if Self::SCALED { SCALE_INTERVAL } else { 0 });
            self.head.verdict(lane, &self.shared, input, outcomes, rules)
        }
    }

    /// Enqueues the update of the dense parameters, after [`Network::verdict`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn update(&self, lane: &Lane, input: Input) -> Result<()> {
        let (shared, guard) = (&self.shared, self.shared.guard.pointer());
        // SAFETY: as for `bottom_forward`.
        unsafe {
            shared.dense.update(lane, input.step.dense_rate(), guard, shared.blocks())?;
            shared.fp8.iter().try_for_each(|fp8| fp8.update(lane, guard))
        }
    }

    /// Enqueues sending the gradients of rows to their owners, after [`Network::interact_backward`]; the batch must be
    /// routed.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn reduce(&self, lane: &Lane, tables: &Tables, batch: RoutedBatch) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { tables.reduce(lane, batch, self.vectors.both().gradients.pointer) }
    }

    /// Enqueues the update of the tables, after [`Network::verdict`] and [`Network::reduce`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn update_tables(
        &self,
        lane: &Lane,
        tables: &Tables,
        (batch, input): (RoutedBatch, Input),
    ) -> Result<()> {
        let (gradients, guard) = (self.vectors.both().gradients.pointer, self.shared.guard.pointer());
        // SAFETY: as for `bottom_forward`.
        unsafe {
            let verdict = (guard.table_scale(), guard.stop());
            tables.update(lane, batch, gradients, (input.rates, input.step), verdict)
        }
    }
}
