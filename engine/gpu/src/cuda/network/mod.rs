//! A model's parts on a GPU, and the work of a forward and a backward pass.
//!
//! The matrix of vectors connects the parts: the bottom MLP and the look-ups write it, attention reads queries there
//! and writes its sums, the interaction reads it, and the heads read its first-order terms; [`vector_layout`] describes
//! its layout. Each part plans its products once and enqueues them, with the kernels around them, whenever a graph is
//! captured.

mod attention;
mod cross;
mod dense;
mod fp8;
mod head;
mod hidden;
mod interaction;
mod layers;
mod mlp;
mod positions;
mod quantization;
mod resources;
mod rows;
mod squares;
mod state;
mod vector_layout;

use std::sync::Arc;

use rankine_cuda::blas::{Blas, Epilogue, Tuning};
use rankine_cuda::kernels::{
    DenseInput, Element, ElementKind, Fp8RankMagnitudes, Guard, Outcome, TableRows, Tally, Vectors,
};
use rankine_cuda::{Buffer, Lane, Pointer};
use rankine_embedding::Traffic;
use rankine_embedding::cuda::Result;
use rankine_job::Precision;
use rankine_model::{Layer, Model, ModelSpec, initial_parameters};
use rankine_topology::Rank;

use super::context::RankContext;
use super::input::Input;
use super::setup::ModelSetup;
use attention::Attention;
use dense::Dense;
use head::{Head, HeadInput};
use hidden::Hidden;
use interaction::{Interaction, TopInput};
use layers::{Layers, Layouts};
use mlp::Mlp;
use quantization::Fp8Builder;
use resources::{ActivationMatrices, Activations, Resources};
use rows::NetworkRows;
pub(super) use vector_layout::{VectorLayout, has_pairs};

/// The first loss scale, for precisions that scale the loss, and the number of steps without a skipped one after which
/// it is doubled: those of PyTorch's `GradScaler`.
const FIRST_SCALE: f32 = 65536.0;
const SCALE_INTERVAL: u32 = 2000;

/// A model's weights, and the activations of a batch. Forward passes may take more samples than a training batch has:
/// there is memory for their activations, but not for gradients.
#[derive(Debug)]
pub(super) struct Network<T> {
    resources: Resources<T>,
    dense_columns: usize,
    rank: Rank,
    /// The largest norm of all dense gradients.
    norm_max: Option<f32>,
    /// The dense columns as the bottom MLP reads them, or as the first of the vectors without a bottom MLP.
    dense_input: ActivationMatrices<T>,
    /// `[sample]`, with rows laid out as [`VectorLayout`] describes.
    vectors: Activations<T>,
    bottom: Mlp<T>,
    attention: Option<Attention<T>>,
    interaction: Interaction<T>,
    hidden: Hidden<T>,
    head: Head<T>,
    _input_buffers: Option<Activations<T>>,
}

/// The products of a forward pass over some samples.
#[derive(Debug)]
pub(super) struct Forward {
    samples: usize,
    /// Whether a backward pass follows.
    learns: bool,
    bottom: mlp::Forward,
    interaction: interaction::Forward,
    hidden: hidden::Forward,
}

/// The products of a backward pass over a batch.
#[derive(Debug)]
pub(super) struct Backward {
    bottom: mlp::Backward,
    interaction: interaction::Backward,
    hidden: hidden::Backward,
}

/// The layers that are in fp8 if the job asks for fp8, with their sizes on the GPU: cross layers, and the hidden
/// layers of the top MLP.
#[derive(Debug)]
pub(super) struct Fp8Layers {
    pub(super) cross: Vec<Layer>,
    pub(super) hidden: Vec<Layer>,
}

impl Fp8Layers {
    pub(super) fn new(spec: &ModelSpec, vector_layout: &VectorLayout) -> Self {
        let Layers { cross, hidden, .. } = Layers::new(spec, vector_layout);
        // Cross layers are in fp8 only if the layers after them are.
        let cross = if hidden.is_empty() { Vec::new() } else { cross };
        Self { cross: cross.into_iter().flatten().collect(), hidden }
    }

    /// Whether their sizes allow fp8.
    pub(super) fn fit(&self) -> bool {
        quantization::takes(&self.cross) && quantization::takes(&self.hidden)
    }
}

impl Forward {
    /// Returns the number of its samples.
    pub(super) fn samples(&self) -> usize {
        self.samples
    }
}

impl<T: Element> Network<T> {
    /// Whether correct gradients can exceed the range of the element type. Then the loss is scaled, so that gradients
    /// do not become too small either, and steps with gradients beyond the range are skipped.
    const SCALED: bool = matches!(T::KIND, ElementKind::F16);

    /// Creates a network as it is at the start of training, with memory for forward passes over `scored` samples;
    /// `pooled_to_fp8` is whether look-ups can write vectors in fp8. With several ranks this is a collective call.
    pub(super) fn new(
        context: &RankContext,
        setup: &ModelSetup,
        vector_layout: &VectorLayout,
        scored: usize,
        pooled_to_fp8: bool,
    ) -> Result<Self> {
        let device = &context.device;
        let ModelSetup { model: Model { spec, rules }, execution, batches, .. } = setup;
        // Hidden layers and cross layers multiply in fp8, while other elements are bf16.
        let fp8 = execution.precision == Precision::Fp8;
        let parameters = &initial_parameters(spec, setup.seed);
        let rows = NetworkRows { trained: setup.rank_samples(), scored };
        let memory = (device, rows);
        let _activations = device.purpose("activations");
        let layers = Layers::new(spec, vector_layout);
        let ranks = context.ranks();
        let tally_numbers = Tally::numbers(spec.heads.len());
        let tensors_max = quantization::tensors_max(&layers);
        let numbers = tally_numbers + if fp8 { ranks * tensors_max } else { 0 };
        let sharded = execution.shard_dense_update;
        let dense = Dense::new(context, layers, parameters, &rules.dense, numbers, sharded)?;
        let layers = &dense.layers;
        let layouts = Layouts { vectors: vector_layout, layers };
        let vectors = Attention::vectors(memory, spec, vector_layout)?;
        let of_samples = vectors.matrices();
        let inputs = of_samples.first_columns(vector_layout.vectors.len);
        let attention = Attention::new(memory, spec, layouts, of_samples, &batches.hotness)?;
        let mut builder = (fp8 && !layers.hidden.is_empty())
            .then(|| Fp8Builder::new(memory, layers.pad(parameters), dense.parameters.pointer(), ranks));
        // The heads read first-order terms as elements, and attention the query.
        let pooled_to_fp8 = pooled_to_fp8 && vector_layout.wide.is_empty() && attention.is_none();
        let interaction = Interaction::new(memory, spec, layouts, inputs, builder.as_mut(), pooled_to_fp8)?;
        let first = of_samples.first_columns(vector_layout.first);
        let inputs_of = |layer: &Layer| Activations::new(device, rows, layer.inputs);
        let input_buffers = layers.bottom.first().map(inputs_of).transpose()?;
        let dense_input = input_buffers.as_ref().map_or(first, Activations::matrices);
        let bottom = (dense_input.values, None);
        let bottom = Mlp::new(memory, &layers.bottom, bottom, Some(first), interaction.through_relu())?;
        let hidden = Hidden::new(memory, &layers.hidden, interaction.output(), builder.as_mut())?;
        let head_input = match (hidden.output(), interaction.output()) {
            (Some(matrices), _) => HeadInput { matrices, relu: true },
            (None, TopInput::Elements(matrices)) => HeadInput { matrices, relu: false },
            (None, TopInput::Fp8 { .. }) => unreachable!("an interaction in fp8 implies hidden layers"),
        };
        let head = Head::new(memory, spec, layouts, head_input, of_samples)?;
        let of_ranks = dense.gradients.sums().map(|sums| Fp8RankMagnitudes {
            largest: sums.numbers().pointer().element(tally_numbers),
            rank: context.rank().0 as u32,
            ranks: ranks as u32,
        });
        let fp8 = builder.map(|builder| builder.finish(of_ranks, tensors_max)).transpose()?;
        if let Some(fp8) = &fp8 {
            fp8.quantize_first_weights(device)?;
        }
        let resources = Resources {
            device: Arc::clone(device),
            blas: Blas::new(device, execution.algorithms.clone())?,
            weights_blas: Blas::new(device, execution.algorithms.clone())?,
            compute: execution.compute(),
            samples: rows.trained,
            dense,
            guard: Buffer::of(device, &[Self::guard()])?,
            fp8,
        };
        Ok(Self {
            resources,
            dense_columns: spec.dense_columns,
            rank: context.rank(),
            norm_max: rules.dense_clip_norm,
            dense_input,
            vectors,
            bottom,
            attention,
            interaction,
            hidden,
            head,
            _input_buffers: input_buffers,
        })
    }

    /// Returns the algorithms that products use.
    pub(super) fn tuning(&self) -> Tuning {
        let mut tuning = self.resources.blas.tuning();
        tuning.algorithms.extend(self.resources.weights_blas.tuning().algorithms);
        tuning
    }

    /// Returns the dense parameters with their padding, after the lane has finished all work enqueued before.
    pub(super) fn all_parameters(&self, lane: &Lane) -> Result<Vec<f32>> {
        Ok(self.resources.dense.parameters.read(lane)?)
    }

    /// Returns the dense parameters of the model, after the lane has finished all work enqueued before.
    pub(super) fn parameters(&self, lane: &Lane) -> Result<Vec<f32>> {
        Ok(self.resources.dense.layers.unpad(&self.resources.dense.parameters.read(lane)?))
    }

    /// Returns the logits of the first samples of the last forward pass.
    pub(super) fn logits(&self, lane: &Lane, samples: usize) -> Result<Vec<f32>> {
        Ok(self.head.logits.read_part(lane, 0, samples * self.head.heads())?)
    }

    /// Returns the address of the logits of the last forward pass: `[sample][head]`.
    pub(super) fn logits_pointer(&self) -> Pointer<f32> {
        self.head.logits.pointer()
    }

    /// Returns the guard as it is at the start of training.
    fn guard() -> Guard {
        Guard::new(if Self::SCALED { FIRST_SCALE } else { 1.0 })
    }

    /// Returns the number of steps skipped because their gradients exceeded the range of the element type, after the
    /// lane has finished all work enqueued before; `None` if the precision cannot exceed it.
    pub(super) fn overflow_steps(&self, lane: &Lane) -> Result<Option<u64>> {
        Ok(if Self::SCALED { Some(self.resources.guard.read(lane)?[0].skipped) } else { None })
    }

    /// Returns the factor of the gradients, as [`Network::overflow_steps`] does.
    pub(super) fn loss_scale(&self, lane: &Lane) -> Result<Option<f64>> {
        Ok(if Self::SCALED { Some(f64::from(self.resources.guard.read(lane)?[0].loss_scale)) } else { None })
    }

    /// Blocks or allows all updates, and resets the guard to its state at the start of training.
    pub(super) fn hold(&self, lane: &Lane, hold: bool) -> Result<()> {
        Ok(self.resources.guard.write(lane, &[Guard { held: u32::from(hold), ..Self::guard() }])?)
    }

    /// Returns what this rank sends in each step for the sums of dense gradients, and for the parameters.
    pub(super) fn traffic(&self) -> Traffic {
        self.resources.dense.gradients.traffic()
    }

    /// Clears all dense gradients, and the findings on them.
    pub(super) fn forget_gradients(&self, lane: &Lane) -> Result<()> {
        let gradients = &self.resources.dense.gradients;
        gradients.write(lane, &vec![0.0; gradients.len()])?;
        self.hold(lane, false)
    }

    /// Whether hidden and cross layers are in fp8.
    pub(super) fn multiplies_fp8(&self) -> bool {
        self.resources.fp8.is_some()
    }

    /// Plans the products of a forward pass over `samples` samples; `learns` is whether a backward pass follows.
    pub(super) fn plan_forward(&self, samples: usize, learns: bool) -> Result<Forward> {
        let resources = &self.resources;
        Ok(Forward {
            samples,
            learns,
            bottom: self.bottom.plan_forward(resources, samples, learns)?,
            interaction: self.interaction.plan_forward(resources, samples, learns)?,
            hidden: self.hidden.plan_forward(resources, samples, learns)?,
        })
    }

    /// Plans the products of a backward pass over a batch.
    pub(super) fn plan_backward(&self) -> Result<Backward> {
        let resources = &self.resources;
        Ok(Backward {
            bottom: self.bottom.plan_backward(resources, &resources.blas, Epilogue::None)?,
            interaction: self.interaction.plan_backward(resources)?,
            hidden: self.hidden.plan_backward(resources, self.interaction.input_epilogue(resources))?,
        })
    }

    /// Enqueues the bottom MLP, from a batch's dense columns to the first of the vectors.
    ///
    /// # Safety
    /// The input must have as many samples as the plan; see [`Lane::launch`].
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
        // SAFETY: all addresses but the input's are of this value's buffers, which hold a batch; the caller vouches
        // for the input.
        unsafe {
            lane.launch(&convert, self.resources.blocks())?;
            self.bottom.forward(lane, &self.resources, &plan.bottom)
        }
    }

    /// Returns where look-ups write the vectors of the features, and the keys of sequences, for a forward pass.
    pub(super) fn vectors(&self, plan: &Forward) -> Vectors<T> {
        let vectors = self.vectors.matrices().values.pointer;
        match (plan.interaction.vectors(), &self.attention) {
            (Some(vectors), _) => Vectors::Fp8(vectors),
            (None, None) => Vectors::Elements(vectors),
            (None, Some(attention)) => Vectors::WithKeys { vectors, keys: attention.keys() },
        }
    }

    /// Returns the address of the gradients with respect to them; those with respect to keys are behind those with
    /// respect to all vectors.
    pub(super) fn vector_gradients(&self) -> Pointer<T> {
        self.vectors.matrices().gradients.pointer
    }

    /// Returns the elements of a vector if the interaction looks up all vectors but the first itself; `learns` is
    /// whether a backward pass follows.
    pub(super) fn looks_up(&self, learns: bool) -> Option<usize> {
        self.interaction.looks_up(&self.resources.device, learns)
    }

    /// Enqueues attention: the sums over sequences become vectors. The vectors and keys of the features must be
    /// written.
    ///
    /// # Safety
    /// As for [`Network::bottom_forward`].
    pub(super) unsafe fn attend(&self, lane: &Lane, input: Input, plan: &Forward) -> Result<()> {
        let Some(attention) = &self.attention else { return Ok(()) };
        // SAFETY: as for `bottom_forward`.
        unsafe { attention.forward(lane, &self.resources, input, (plan.samples, plan.learns)) }
    }

    /// Enqueues the interaction of the vectors, after all of them are written; with `rows`, all but these.
    ///
    /// # Safety
    /// As for [`Network::bottom_forward`]; `rows` are allowed if [`Network::looks_up`].
    pub(super) unsafe fn interact(&self, lane: &Lane, plan: &Forward, rows: Option<TableRows>) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.interaction.forward(lane, &self.resources, &plan.interaction, rows) }
    }

    /// Enqueues the top MLP's hidden layers.
    ///
    /// # Safety
    /// As for [`Network::bottom_forward`].
    pub(super) unsafe fn hidden_forward(&self, lane: &Lane, plan: &Forward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.hidden.forward(lane, &self.resources, &plan.hidden) }
    }

    /// Enqueues the last layer: to logits if `back` is false, otherwise to losses and the gradients with respect to
    /// its input.
    ///
    /// # Safety
    /// As for [`Network::bottom_forward`]; the other parts must come before.
    pub(super) unsafe fn head(&self, lane: &Lane, input: Input, samples: usize, back: bool) -> Result<()> {
        let terms = self.interaction.terms();
        // SAFETY: as for `bottom_forward`.
        unsafe { self.head.enqueue(lane, &self.resources, input, samples, terms, back) }
    }

    /// Enqueues the backward pass of the top MLP's hidden layers, after [`Network::head`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn hidden_backward(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.hidden.backward(lane, &self.resources, &plan.hidden) }
    }

    /// Enqueues the backward pass of the interaction, to the gradients with respect to the vectors.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn interact_backward(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.interaction.backward(lane, &self.resources, &plan.interaction) }
    }

    /// Enqueues the backward pass of attention, after [`Network::interact_backward`]: the gradients with respect to
    /// keys and to its parameters, and adding its part of the gradients with respect to the vectors.
    ///
    /// # Safety
    /// As for [`Network::bottom_forward`].
    pub(super) unsafe fn attend_backward(&self, lane: &Lane, input: Input) -> Result<()> {
        let Some(attention) = &self.attention else { return Ok(()) };
        // SAFETY: as for `bottom_forward`.
        unsafe { attention.backward(lane, &self.resources, input) }
    }

    /// Enqueues the backward pass of the bottom MLP.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn bottom_backward(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.bottom.backward(lane, &self.resources, &plan.bottom) }
    }

    /// Enqueues the weight gradients of the top MLP's hidden layers, after [`Network::hidden_backward`]. They and
    /// those of the interaction may be computed in parallel with all other work, one after the other.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn hidden_weights(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.hidden.weights(lane, &self.resources, &plan.hidden) }
    }

    /// Enqueues the interaction's weight gradients, after [`Network::interact_backward`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn interact_weights(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.interaction.weights(lane, &self.resources, &plan.interaction) }
    }

    /// Enqueues the bottom MLP's weight gradients, after [`Network::bottom_backward`] and on its lane.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn bottom_weights(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.bottom.weights(lane, &self.resources.blas, &plan.bottom) }
    }

    /// Enqueues the bias gradients of the top MLP and the gradients of the heads' parameters, after [`Network::head`]
    /// and [`Network::hidden_backward`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn top_sums(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe {
            self.head.sums(lane, &self.resources)?;
            self.hidden.sums(lane, &self.resources, &plan.hidden)
        }
    }

    /// Enqueues the interaction's bias gradients, after [`Network::interact_backward`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn interact_sums(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.interaction.sums(lane, &self.resources, &plan.interaction) }
    }

    /// Enqueues the bottom MLP's bias gradients, after [`Network::bottom_backward`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn bottom_sums(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.bottom.sums(lane, &self.resources, &plan.bottom) }
    }

    /// Enqueues the all-reduce of the top MLP's gradients, after [`Network::hidden_backward`]; nothing with one rank.
    /// All ranks must all-reduce the parts in the same order, on one lane each.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn sum_top(&self, lane: &Lane) -> Result<()> {
        if let Some(sums) = self.resources.dense.gradients.sums() {
            // SAFETY: as for `bottom_forward`.
            unsafe { sums.enqueue(&sums.top, lane) }?;
        }
        Ok(())
    }

    /// The same for the interaction's gradients, after [`Network::interact_backward`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn sum_interaction(&self, lane: &Lane) -> Result<()> {
        if let Some(sums) = self.resources.dense.gradients.sums()
            && let Some(interaction) = &sums.interaction
        {
            // SAFETY: as for `bottom_forward`.
            unsafe { sums.enqueue(interaction, lane) }?;
        }
        Ok(())
    }

    /// The same for the bottom MLP's gradients, after [`Network::bottom_backward`], together with each rank's losses
    /// and findings.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn sum_bottom(&self, lane: &Lane) -> Result<()> {
        if let Some(sums) = self.resources.dense.gradients.sums() {
            // SAFETY: as for `bottom_forward`.
            unsafe {
                self.head.tally(lane, &self.resources, sums.numbers().pointer(), self.rank)?;
                self.resources
                    .fp8
                    .iter()
                    .try_for_each(|fp8| fp8.add_largest(lane, self.resources.guard.pointer()))?;
                sums.enqueue_bottom(lane)?;
            }
        }
        Ok(())
    }

    /// Returns an error if a rank has timed out waiting for another in an all-reduce of gradients, as far as known
    /// now.
    pub(super) fn check_now(&self) -> Result<()> {
        self.resources.dense.check_now()
    }

    /// Enqueues the verdict on a step, after all gradients are complete and all-reduced: whether the step is applied.
    /// The outcome is written to the step's position in `outcomes`.
    ///
    /// # Safety
    /// As for [`Network::head`]; `outcomes` must have the step's position.
    pub(super) unsafe fn verdict(&self, lane: &Lane, input: Input, outcomes: Pointer<Outcome>) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe {
            let gradients = self.resources.dense.gradients.pointer();
            self.resources.dense.squares.enqueue(lane, gradients)?;
            self.resources.fp8.iter().try_for_each(|fp8| fp8.check(lane, self.resources.guard.pointer()))?;
            let scale_interval = if Self::SCALED { SCALE_INTERVAL } else { 0 };
            self.head.verdict(lane, &self.resources, input, outcomes, self.norm_max, scale_interval)
        }
    }

    /// Enqueues the update of the dense parameters, after [`Network::verdict`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn update(&self, lane: &Lane, input: Input) -> Result<()> {
        let (resources, guard) = (&self.resources, self.resources.guard.pointer());
        // SAFETY: as for `bottom_forward`.
        unsafe {
            resources.dense.update(lane, input.step.dense_rate(), guard, resources.blocks())?;
            resources.fp8.iter().try_for_each(|fp8| fp8.update(lane, guard))
        }
    }

    /// Returns the address of the guard.
    pub(super) fn guard_pointer(&self) -> Pointer<Guard> {
        self.resources.guard.pointer()
    }

    /// Returns the addresses of the factor of gradients for tables, and of the verdict: not 0 if the step is skipped.
    pub(super) fn table_scale_and_stop(&self) -> (Pointer<f32>, Pointer<u32>) {
        let guard = self.resources.guard.pointer();
        (guard.table_scale(), guard.stop())
    }
}
