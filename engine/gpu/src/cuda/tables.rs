//! A rank's part of the tables: all of them on a single GPU, otherwise its rows and the exchange with other ranks.

use rankine_cuda::kernels::{Element, TableRows, Vectors};
use rankine_cuda::{Lane, Pointer};
use rankine_embedding::cuda::{
    BatchExchange, DeviceRows, Feature, Hotness, Ids, InitialWeights, KeyPart, KeySequence, Layout,
    LocalTables, LookUpCounts, LookUps, NodeTables, Result, RoutedBatch, TieredTables, UpdateInputs,
};
use rankine_embedding::{RankTraffic, TierTraffic};
use rankine_model::{FeatureSpec, ModelSpec};
use rankine_reader::schema;

use super::context::{RankContext, RankLinks};
use super::input::{SLOTS, SLOTS_WITH_COLD_ROWS};
use super::network::{Network, VectorLayout};
use super::setup::ModelSetup;

/// The tables of one rank.
#[derive(Debug)]
pub(super) enum Tables {
    /// All rows of all tables.
    Local(Box<LocalTables>),
    /// All rows: the hot ones, and in host memory the others.
    Tiered(Box<TieredTables>),
    /// The rows of this rank.
    Node(Box<NodeTables>),
}

/// What looks up batches that are scored, which may have more samples than a training batch.
#[derive(Debug)]
pub(super) struct ScoredTables {
    layout: Layout,
    source: ScoredRows,
}

/// Where the rows of batches that are scored come from.
#[derive(Debug)]
enum ScoredRows {
    /// All rows are on this GPU.
    Local(Box<LookUps>),
    /// Ranks exchange them, by messages for these batches.
    Node(Box<BatchExchange>),
    /// Ranks exchange them as in training, with the same number of samples.
    AsTrained,
}

impl ScoredTables {
    /// Returns the layout of the batches.
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl Tables {
    /// Creates the tables of a model as they are at the start of training, for batches of `samples` samples of this
    /// rank. With several ranks this is a collective call.
    pub(super) fn initialized<T: Element>(
        context: &RankContext,
        setup: &ModelSetup,
        vector_layout: &VectorLayout,
        lane: &Lane,
    ) -> Result<Self> {
        let RankContext { device, links } = context;
        let ModelSetup { model, seed, plan, tracks_updates, batches, .. } = setup;
        let columns: Vec<_> = batches.hotness.iter().copied().map(of_column).collect();
        let features = table_features(&model.spec, vector_layout);
        let (all, optimizers): (Vec<_>, Vec<_>) = model.all_tables().into_iter().unzip();
        let (samples, stride) = (setup.rank_samples(), vector_layout.stride);
        let weighted: Vec<_> = model.spec.features.iter().map(|feature| feature.weighted).collect();
        let layout = Layout::new(context.ranks(), samples, stride, &all, &columns, &features)?;
        let (sequences, keys) = keys(&model.spec, vector_layout, features.len());
        let layout =
            layout.with_weights(&weighted)?.with_keys(&sequences, &keys)?.with_optimizers(&optimizers);
        let mut layout = layout.with_nodes(context.nodes())?;
        if let (Some(plan), Some(_)) = (plan, links) {
            layout = layout.with_plan(plan)?;
        }
        // First-order terms start at zero.
        let weights = InitialWeights { seed: *seed, drawn: model.spec.tables.len() };
        let tier = setup.tier.as_ref();
        Ok(match links {
            None if let Some(tier) = tier => {
                let mut tables =
                    TieredTables::initialized(device, layout, lane, weights, (tier, SLOTS_WITH_COLD_ROWS))?;
                tracks_updates.then(|| tables.track_updates()).transpose()?;
                Self::Tiered(tables.into())
            }
            None => {
                let mut tables = LocalTables::initialized(device, layout, lane, weights)?;
                tracks_updates.then(|| tables.track_updates()).transpose()?;
                Self::Local(tables.into())
            }
            Some(RankLinks { cluster, rails }) => {
                let rails = rails.as_ref().map(|rails| (&rails.routes, &rails.rows));
                let slots = if tier.is_some() { SLOTS_WITH_COLD_ROWS } else { SLOTS };
                let mut tables =
                    NodeTables::initialized::<T>(cluster, rails, layout, lane, weights, slots, tier)?;
                tracks_updates.then(|| tables.track_updates()).transpose()?;
                Self::Node(tables.into())
            }
        })
    }

    pub(super) fn layout(&self) -> &Layout {
        match self {
            Self::Local(tables) => tables.layout(),
            Self::Tiered(tables) => tables.layout(),
            Self::Node(tables) => tables.layout(),
        }
    }

    /// Creates what looks up batches of `samples` samples that are scored; with rows in host memory, no other number
    /// than a training batch has. With several ranks this is a collective call.
    pub(super) fn scored<T: Element>(&self, context: &RankContext, samples: usize) -> Result<ScoredTables> {
        let layout = self.layout().clone().with_samples(samples)?;
        let source = match (self, &context.links) {
            (Self::Local(_), _) => ScoredRows::Local(LookUps::new(&context.device, &layout)?.into()),
            (Self::Node(tables), Some(links)) if samples != tables.layout().samples() => {
                ScoredRows::Node(tables.exchange_for::<T>(&links.cluster, samples, self.slots())?.into())
            }
            (Self::Tiered(_) | Self::Node(_), _) => ScoredRows::AsTrained,
        };
        Ok(ScoredTables { layout, source })
    }

    /// Whether look-ups need a route: unless all rows are on this GPU.
    pub(super) fn are_routed(&self) -> bool {
        !matches!(self, Self::Local(_))
    }

    /// Returns the rows of ids of a batch that is scored, as [`Tables::rows_for`] does.
    pub(super) fn rows_scored<T: Element>(
        &self,
        scored: &ScoredTables,
        network: &Network<T>,
        ids: Ids,
    ) -> Option<TableRows> {
        match (self, &scored.source) {
            (Self::Local(tables), ScoredRows::Local(look_ups)) => {
                tables.single_rows_with(look_ups, ids, network.looks_up(false)?)
            }
            _ => None,
        }
    }

    /// Enqueues what looking up a batch needs: a training batch unless it is `scored`. With several ranks it is
    /// collective.
    ///
    /// # Safety
    /// The ids must be those of the layout; see [`Lane::launch`].
    pub(super) unsafe fn route(
        &self,
        lane: &Lane,
        scored: Option<&ScoredTables>,
        batch: RoutedBatch,
    ) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match self {
                // Only updates need it.
                Self::Local(tables) if scored.is_none() => tables.route(lane, batch.ids),
                Self::Local(_) => Ok(()),
                Self::Tiered(tables) => tables.route(lane, batch),
                Self::Node(tables) => of_node(tables, scored).route(tables, lane, batch.ids, batch.slot),
            }
        }
    }

    /// Returns the number of size classes of messages between nodes, for training batches unless they are `scored`: 1
    /// with one node.
    pub(super) fn sizes(&self, scored: Option<&ScoredTables>) -> usize {
        match self {
            Self::Local(_) | Self::Tiered(_) => 1,
            Self::Node(tables) => of_node(tables, scored).sizes(),
        }
    }

    /// Returns the size class that the routed batch of a slot needs for its messages between nodes.
    pub(super) fn size_needed(&self, scored: Option<&ScoredTables>, slot: usize) -> usize {
        match self {
            Self::Local(_) | Self::Tiered(_) => 0,
            Self::Node(tables) => of_node(tables, scored).size_needed(slot),
        }
    }

    /// Enqueues the rest of a route, if its batch needs another size class than the first.
    ///
    /// # Safety
    /// As for [`Tables::route`].
    pub(super) unsafe fn route_rest(
        &self,
        lane: &Lane,
        scored: Option<&ScoredTables>,
        batch: RoutedBatch,
    ) -> Result<()> {
        match self {
            Self::Node(tables) if batch.size > 0 => {
                // SAFETY: the caller vouches for it.
                unsafe { of_node(tables, scored).route_rest(tables, lane, batch.slot, batch.size) }
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of batches that are on the GPU at once, each in a slot.
    pub(super) fn slots(&self) -> usize {
        if self.have_cold_rows() { SLOTS_WITH_COLD_ROWS } else { SLOTS }
    }

    /// Whether rows have to be copied from host memory for each batch ([`Tables::land`]).
    pub(super) fn have_cold_rows(&self) -> bool {
        self.tier_traffic().is_some()
    }

    /// Copies the rows of a slot's batch that are in host memory to the GPU, once its route is built, and makes the
    /// main lane wait for them.
    pub(super) fn land(&mut self, main: &Lane, slot: usize) -> Result<()> {
        match self {
            Self::Local(_) => Ok(()),
            Self::Tiered(tables) => tables.land(main, slot),
            Self::Node(tables) => tables.land(main, slot),
        }
    }

    /// Notes that the step of a slot's batch was enqueued on the main lane.
    pub(super) fn learned(&mut self, main: &Lane, slot: usize) -> Result<()> {
        match self {
            Self::Local(_) => Ok(()),
            Self::Tiered(tables) => tables.learned(main, slot),
            Self::Node(tables) => tables.learned(main, slot),
        }
    }

    /// Waits until all rows that steps have changed are back in host memory. All batches must be done.
    pub(super) fn finish(&mut self, main: &Lane) -> Result<()> {
        match self {
            Self::Local(_) => Ok(()),
            Self::Tiered(tables) => tables.finish(main),
            Self::Node(tables) => tables.finish(main),
        }
    }

    /// Chooses again which rows this GPU stores. All batches must be done, and their rows back in host memory.
    pub(super) fn refresh(&mut self, main: &Lane) -> Result<()> {
        match self {
            Self::Local(_) => Ok(()),
            Self::Tiered(tables) => tables.refresh(main),
            Self::Node(tables) => tables.refresh(main),
        }
    }

    /// Whether [`Tables::refresh`] is due before a step.
    pub(super) fn refreshes_before(&self, step: u64) -> bool {
        match self {
            Self::Local(_) => false,
            Self::Tiered(tables) => tables.refreshes_before(step),
            Self::Node(tables) => tables.refreshes_before(step),
        }
    }

    /// Returns what was copied between this GPU and host memory, if it stores the hot rows only.
    pub(super) fn tier_traffic(&self) -> Option<TierTraffic> {
        match self {
            Self::Local(_) => None,
            Self::Tiered(tables) => Some(tables.traffic()),
            Self::Node(tables) => tables.tier_traffic(),
        }
    }

    /// Enqueues the look-up of the first samples of a training batch, unless it is `scored`. The batch must be routed
    /// unless all rows are on this GPU.
    ///
    /// # Safety
    /// As for [`Tables::route`]; `vectors` must have the layout's stride for each of the samples, or in fp8 hold all
    /// vectors.
    pub(super) unsafe fn look_up<T: Element>(
        &self,
        lane: &Lane,
        scored: Option<&ScoredTables>,
        batch: RoutedBatch,
        samples: usize,
        vectors: Vectors<T>,
    ) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match (self, scored.map(|scored| &scored.source)) {
                (Self::Local(tables), Some(ScoredRows::Local(look_ups))) => {
                    tables.look_up_with(look_ups, lane, batch.ids, samples, vectors)
                }
                (Self::Local(tables), _) => tables.look_up(lane, batch.ids, samples, vectors),
                (Self::Tiered(tables), _) => tables.look_up(lane, batch, samples, vectors),
                (Self::Node(tables), _) => {
                    of_node(tables, scored).look_up(tables, lane, batch, samples, vectors)
                }
            }
        }
    }

    /// Whether look-ups can write vectors in fp8.
    pub(super) fn pools_to_fp8(&self) -> bool {
        match self {
            Self::Local(tables) => tables.pools_to_fp8(),
            Self::Tiered(tables) => tables.pools_to_fp8(),
            Self::Node(tables) => tables.pools_to_fp8(),
        }
    }

    /// Returns the rows of ids if the network's interaction looks them up itself in training: if it does, and each
    /// vector but the first is one f32 row on this GPU.
    pub(super) fn rows_for<T: Element>(&self, network: &Network<T>, ids: Ids) -> Option<TableRows> {
        match self {
            Self::Local(tables) => tables.single_rows(ids, network.looks_up(true)?),
            Self::Tiered(_) | Self::Node(_) => None,
        }
    }

    /// Enqueues sending the sums of a routed batch's gradients to the rows' owners, and waiting until all ranks have
    /// done so; nothing if all rows are on this rank.
    ///
    /// # Safety
    /// As for [`Tables::update`].
    pub(super) unsafe fn reduce<T: Element>(
        &self,
        lane: &Lane,
        batch: RoutedBatch,
        gradients: Pointer<T>,
    ) -> Result<()> {
        if let Self::Node(tables) = self {
            // SAFETY: the caller vouches for it.
            unsafe { tables.reduce(lane, batch, gradients) }?;
        }
        // SAFETY: as above.
        unsafe { self.barrier(lane) }?;
        match self {
            Self::Local(_) | Self::Tiered(_) => Ok(()),
            // SAFETY: as above.
            Self::Node(tables) => unsafe { tables.carry_back(lane, batch) },
        }
    }

    /// Enqueues a barrier of all ranks, which is needed between the look-ups of two batches; nothing with one rank.
    ///
    /// # Safety
    /// The lane must be the one of all work but routes; see [`Lane::launch`].
    pub(super) unsafe fn barrier(&self, lane: &Lane) -> Result<()> {
        match self {
            Self::Local(_) | Self::Tiered(_) => Ok(()),
            // SAFETY: the caller vouches for it.
            Self::Node(tables) => unsafe { tables.meet(lane) },
        }
    }

    /// Enqueues the update of this rank's rows that a routed batch looks up, after its gradients are reduced.
    ///
    /// # Safety
    /// The ids must be those of the routed batch; `gradients` must have the layout's stride for each of its samples,
    /// and `inputs` one rate per table; see [`Lane::launch`].
    pub(super) unsafe fn update<T: Element>(
        &self,
        lane: &Lane,
        batch: RoutedBatch,
        gradients: Pointer<T>,
        inputs: UpdateInputs,
    ) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match self {
                Self::Local(tables) => tables.update(lane, batch.ids, gradients, inputs),
                Self::Tiered(tables) => tables.update(lane, batch, gradients, inputs),
                Self::Node(tables) => tables.update(lane, batch, inputs),
            }
        }
    }

    /// Counts the look-ups of this rank in a routed batch, table by table, those of first-order terms last.
    pub(super) fn counts(&self, lane: &Lane, slot: usize) -> Result<Vec<LookUpCounts>> {
        match self {
            Self::Local(tables) => tables.counts(lane),
            Self::Tiered(tables) => tables.counts(lane, slot),
            Self::Node(tables) => tables.counts(lane, slot),
        }
    }

    /// Enqueues counting what this rank exchanges in a step of training over a routed batch.
    ///
    /// # Safety
    /// As for [`Tables::look_up`].
    pub(super) unsafe fn count_traffic(&self, lane: &Lane, batch: RoutedBatch) -> Result<()> {
        match self {
            Self::Local(_) | Self::Tiered(_) => Ok(()),
            // SAFETY: the caller vouches for it.
            Self::Node(tables) => unsafe { tables.count_traffic(lane, batch) },
        }
    }

    /// Returns what this rank has exchanged in the steps that were counted; see [`NodeTables::traffic`].
    pub(super) fn traffic(&self, lane: &Lane) -> Result<RankTraffic> {
        match self {
            Self::Local(_) | Self::Tiered(_) => Ok(RankTraffic::default()),
            Self::Node(tables) => tables.traffic(lane),
        }
    }

    /// Forgets what was counted.
    pub(super) fn forget_traffic(&self, lane: &Lane) -> Result<()> {
        match self {
            Self::Local(_) | Self::Tiered(_) => Ok(()),
            Self::Node(tables) => tables.forget_traffic(lane),
        }
    }

    /// Returns this rank's rows, to be read and changed after the lane has finished all work enqueued before.
    pub(super) fn rows<'a>(&'a self, lane: &'a Lane) -> DeviceRows<'a> {
        match self {
            Self::Local(tables) => tables.rows(lane),
            Self::Tiered(tables) => tables.rows(lane),
            Self::Node(tables) => tables.rows(lane),
        }
    }

    /// Returns an error if a rank has timed out waiting for another, as far as known now.
    pub(super) fn check_now(&self) -> Result<()> {
        match self {
            Self::Local(_) | Self::Tiered(_) => Ok(()),
            Self::Node(tables) => tables.check_now(),
        }
    }

    /// Waits for the lane, and returns an error if ids of batches that were scored are out of range.
    pub(super) fn check_scored(lane: &Lane, scored: &ScoredTables) -> Result<()> {
        match &scored.source {
            ScoredRows::Node(exchange) => exchange.check(lane),
            ScoredRows::Local(_) | ScoredRows::AsTrained => Ok(()),
        }
    }

    /// Waits for the lane, and returns the error of the GPU, if any.
    pub(super) fn check(&self, lane: &Lane) -> Result<()> {
        match self {
            Self::Local(tables) => tables.check(lane),
            Self::Tiered(tables) => tables.check(lane),
            Self::Node(tables) => tables.check(lane),
        }
    }
}

/// Returns what ranks exchange for training batches, unless they are `scored`.
fn of_node<'a>(tables: &'a NodeTables, scored: Option<&'a ScoredTables>) -> &'a BatchExchange {
    match scored.map(|scored| &scored.source) {
        Some(ScoredRows::Node(exchange)) => exchange,
        _ => tables.exchange(),
    }
}

/// Returns the features that look up a model's tables: for each column its vectors, then for each column its
/// first-order terms, if the model has any.
fn table_features(spec: &ModelSpec, vector_layout: &VectorLayout) -> Vec<Feature> {
    let columns = || spec.features.iter().enumerate();
    let vector = |((column, feature), &vector_offset): ((usize, &FeatureSpec), _)| {
        let &FeatureSpec { table, pooling, .. } = feature;
        Feature { column, table, vector_offset, pooling }
    };
    let terms = |((column, feature), &vector_offset): ((usize, &FeatureSpec), _)| Feature {
        column,
        table: spec.tables.len() + column,
        vector_offset,
        pooling: feature.pooling,
    };
    let vectors = columns().zip(&vector_layout.features).map(vector);
    vectors.chain(columns().zip(&vector_layout.wide).map(terms)).collect()
}

/// Returns the sequences that attention reads, and the part of their keys that each of `count` features looks up.
fn keys(
    spec: &ModelSpec,
    vector_layout: &VectorLayout,
    count: usize,
) -> (Vec<KeySequence>, Vec<Option<KeyPart>>) {
    let (mut sequences, mut parts) = (Vec::new(), vec![None; count]);
    for (number, (attention, key)) in spec.attention.iter().zip(&vector_layout.keys).enumerate() {
        sequences.push(KeySequence { column: attention.features[0], stride: key.len });
        for (&feature, (offset, _)) in attention.features.iter().zip(key.padded_parts()) {
            parts[feature] = Some(KeyPart { sequence: number, offset });
        }
    }
    (sequences, parts)
}

fn of_column(hotness: schema::Hotness) -> Hotness {
    match hotness {
        schema::Hotness::Fixed(ids) => Hotness::Fixed(ids as usize),
        schema::Hotness::Ragged { max } => Hotness::Ragged { max: max as usize },
    }
}
