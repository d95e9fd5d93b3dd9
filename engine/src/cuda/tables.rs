//! A rank's part of the tables: all of them where a GPU trains alone, and else its rows and the exchange of others.

use std::sync::Arc;

use rankine_cuda::kernels::{Element, Rate, Step};
use rankine_cuda::{Device, Lane, Pointer};
use rankine_embedding::cuda::{DeviceRows, Feature, Hotness, Ids, Layout, LocalTables, NodeTables, Result};
use rankine_reader::schema;

use super::network::Places;
use super::rank::{SLOTS, Shape};
use super::together::Member;
use crate::model::{FeatureSpec, ModelSpec, TrainingRules};

/// The tables as one rank has them.
#[derive(Debug)]
pub(super) enum Tables {
    /// All of them.
    Local(Box<LocalTables>),
    /// Those of its rows.
    Node(Box<NodeTables>),
}

/// A batch's ids, and which of the routes is theirs where there are several.
#[derive(Debug, Clone, Copy)]
pub(super) struct Routed {
    pub(super) ids: Ids,
    pub(super) place: usize,
    /// The size of its messages between nodes; 0 with one node.
    pub(super) size: usize,
}

/// What gradients are multiplied by, and whether nothing is to be written.
pub(super) type Told = (Pointer<f32>, Pointer<u32>);

impl Tables {
    /// The tables of a model as training starts with them, for batches of so many samples of this rank. With other
    /// ranks this is a collective call.
    pub(super) fn initialized<T: Element>(
        (device, member): (&Arc<Device>, Option<&Member>),
        lane: &Lane,
        (spec, rules): (&ModelSpec, &TrainingRules),
        (places, seed): (&Places, u64),
        Shape { samples, hotness, plan, keeps_book, .. }: Shape<'_>,
    ) -> Result<Self> {
        let columns: Vec<_> = hotness.iter().copied().map(of_column).collect();
        let features = table_features(spec, places);
        let (all, optimizers): (Vec<_>, Vec<_>) = rules.all_tables(spec).into_iter().unzip();
        let (ranks, nodes) = member.map_or((1, 1), |member| (member.cluster.ranks(), member.cluster.nodes()));
        let layout = Layout::new(ranks, samples, places.stride, &all, &columns, &features)?;
        let mut layout = layout.with_optimizers(&optimizers).with_nodes(nodes)?;
        if let (Some(plan), Some(_)) = (plan, member) {
            layout = layout.with_plan(plan)?;
        }
        // First-order terms begin with zeros.
        let drawn = spec.tables.len();
        Ok(match member {
            None => {
                let mut tables = LocalTables::initialized(device, layout, lane, seed, drawn)?;
                keeps_book.then(|| tables.keep_book()).transpose()?;
                Self::Local(tables.into())
            }
            Some(Member { cluster, rails }) => {
                let rails = rails.as_ref().map(|rails| (&rails.routes, &rails.rows));
                let mut tables =
                    NodeTables::initialized::<T>((cluster, rails), layout, lane, seed, drawn, SLOTS)?;
                keeps_book.then(|| tables.keep_book()).transpose()?;
                Self::Node(tables.into())
            }
        })
    }

    pub(super) fn layout(&self) -> &Layout {
        match self {
            Self::Local(tables) => tables.layout(),
            Self::Node(tables) => tables.layout(),
        }
    }

    /// Enqueues making a batch's route. Over ranks it meets all of them.
    ///
    /// # Safety
    /// The ids must be those of the layout; see [`Lane::launch`].
    pub(super) unsafe fn route(&self, lane: &Lane, batch: Routed) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match self {
                Self::Local(tables) => tables.route(lane, batch.ids),
                Self::Node(tables) => tables.route(lane, batch.ids, batch.place),
            }
        }
    }

    /// Sizes that messages between nodes have: 1 where there is one node.
    pub(super) fn sizes(&self) -> usize {
        match self {
            Self::Local(_) => 1,
            Self::Node(tables) => tables.sizes(),
        }
    }

    /// The size of its messages between nodes that a batch needs whose route is made.
    pub(super) fn size_needed(&self, place: usize) -> usize {
        match self {
            Self::Local(_) => 0,
            Self::Node(tables) => tables.size_needed(place),
        }
    }

    /// Enqueues the rest of a route, where its batch needs another size than the first.
    ///
    /// # Safety
    /// As for [`Tables::route`].
    pub(super) unsafe fn route_rest(&self, lane: &Lane, batch: Routed) -> Result<()> {
        match self {
            Self::Node(tables) if batch.size > 0 => {
                // SAFETY: the caller vouches for it.
                unsafe { tables.route_rest(lane, batch.place, batch.size) }
            }
            _ => Ok(()),
        }
    }

    /// Enqueues the look-up of the first samples of a batch, which over ranks must be routed.
    ///
    /// # Safety
    /// As for [`Tables::route`]; there must be as many of the layout's stride in `vectors`.
    pub(super) unsafe fn look_up<T: Element>(
        &self,
        lane: &Lane,
        batch: Routed,
        samples: usize,
        vectors: Pointer<T>,
    ) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match self {
                Self::Local(tables) => tables.look_up(lane, batch.ids, samples, vectors),
                Self::Node(tables) => {
                    tables.look_up(lane, batch.ids, (batch.place, batch.size), samples, vectors)
                }
            }
        }
    }

    /// Enqueues sending the sums of a routed batch's gradients to the rows' owners, and waiting until all ranks have;
    /// nothing where all rows are here.
    ///
    /// # Safety
    /// As for [`Tables::update`].
    pub(super) unsafe fn reduce<T: Element>(
        &self,
        lane: &Lane,
        batch: Routed,
        gradients: Pointer<T>,
    ) -> Result<()> {
        if let Self::Node(tables) = self {
            // SAFETY: the caller vouches for it.
            unsafe { tables.reduce(lane, batch.ids, batch.place, gradients) }?;
        }
        // SAFETY: as above.
        unsafe { self.meet(lane) }?;
        match self {
            Self::Local(_) => Ok(()),
            // SAFETY: as above.
            Self::Node(tables) => unsafe { tables.carry_back(lane, batch.place, batch.size) },
        }
    }

    /// Enqueues waiting for all ranks, which must come between the look-ups of two batches; nothing where there is one.
    ///
    /// # Safety
    /// The lane must be that of all else but routes; see [`Lane::launch`].
    pub(super) unsafe fn meet(&self, lane: &Lane) -> Result<()> {
        match self {
            Self::Local(_) => Ok(()),
            // SAFETY: the caller vouches for it.
            Self::Node(tables) => unsafe { tables.meet(lane) },
        }
    }

    /// Enqueues the update of the rows here that a routed batch looks up, once its gradients are reduced.
    ///
    /// # Safety
    /// The ids must be those of the routed batch; `gradients` must have the layout's stride for each of its samples,
    /// and `rates` one for each table; see [`Lane::launch`].
    pub(super) unsafe fn update<T: Element>(
        &self,
        lane: &Lane,
        batch: Routed,
        gradients: Pointer<T>,
        (rates, step): (Pointer<Rate>, Pointer<Step>),
        told: Told,
    ) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match self {
                Self::Local(tables) => tables.update(lane, batch.ids, gradients, rates, step, told),
                Self::Node(tables) => tables.update(lane, (batch.place, batch.size), rates, step, told),
            }
        }
    }

    /// The look-ups of a routed batch, and the distinct rows among them.
    pub(super) fn counts(&self, lane: &Lane, place: usize) -> Result<[u64; 2]> {
        match self {
            Self::Local(tables) => tables.counts(lane),
            Self::Node(tables) => tables.counts(lane, place),
        }
    }

    /// The rows that lie here, to be read and changed once the lane has done all that was enqueued on it.
    pub(super) fn rows<'a>(&'a self, lane: &'a Lane) -> DeviceRows<'a> {
        match self {
            Self::Local(tables) => tables.rows(lane),
            Self::Node(tables) => tables.rows(lane),
        }
    }

    /// Tells whether a rank waited in vain for another, as far as is known now.
    pub(super) fn check_now(&self) -> Result<()> {
        match self {
            Self::Local(_) => Ok(()),
            Self::Node(tables) => tables.check_now(),
        }
    }

    /// Waits for the lane, and tells what went wrong on the GPU.
    pub(super) fn check(&self, lane: &Lane) -> Result<()> {
        match self {
            Self::Local(tables) => tables.check(lane),
            Self::Node(tables) => tables.check(lane),
        }
    }
}

/// What looks up the tables of a model: of each column its vectors, then of each its first-order terms, where the model
/// has such.
fn table_features(spec: &ModelSpec, places: &Places) -> Vec<Feature> {
    let columns = || spec.features.iter().enumerate();
    let vector = |((column, feature), &place): ((usize, &FeatureSpec), _)| {
        let &FeatureSpec { table, pooling, .. } = feature;
        Feature { column, table, place, pooling }
    };
    let terms = |((column, feature), &place): ((usize, &FeatureSpec), _)| Feature {
        column,
        table: spec.tables.len() + column,
        place,
        pooling: feature.pooling,
    };
    let vectors = columns().zip(&places.features).map(vector);
    vectors.chain(columns().zip(&places.wide).map(terms)).collect()
}

fn of_column(hotness: schema::Hotness) -> Hotness {
    match hotness {
        schema::Hotness::Fixed(ids) => Hotness::Fixed(ids as usize),
        schema::Hotness::Ragged { max } => Hotness::Ragged { max: max as usize },
    }
}
