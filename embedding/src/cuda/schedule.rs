//! The order of a rank's operations on its lanes.

use rankine_cuda::{Lane, Moment};

use super::error::Result;
use super::rank::{Rank, Routing};

/// A rank's lanes. What prepares the next batch runs on a lane of its own unless told otherwise. Its kernels are short
/// and wait for the memory more than they use it: so their blocks go before those of the iteration, which fill the GPU
/// and would let none in between.
#[derive(Debug)]
pub struct Schedule {
    main: Lane,
    side: Lane,
    forked: Moment,
    joined: Moment,
    overlap: bool,
}

impl Schedule {
    /// Lanes for a rank, whose GPU must be the current one of this thread. Without `overlap` all is done in order.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn new(rank: &Rank, overlap: bool) -> Result<Self> {
        let device = rank.device();
        Ok(Self {
            main: Lane::new(device)?,
            side: Lane::of_high_priority(device)?,
            forked: Moment::new(device)?,
            joined: Moment::new(device)?,
            overlap,
        })
    }

    /// The lane that iterations are enqueued on, and captured from.
    pub fn lane(&self) -> &Lane {
        &self.main
    }

    /// Makes the route of the first batch.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn begin(&self, rank: &Rank, first: Routing) -> Result<()> {
        rank.route(&self.main, first)?;
        rank.barrier(&self.main)?;
        rank.merge(&self.main, first.route)
    }

    /// Enqueues an iteration over the batch whose route is `current`, and makes the route of the next. `model` enqueues
    /// what turns vectors into their gradients.
    ///
    /// # Errors
    /// Where the driver refuses, and those of `model`.
    pub fn iteration(
        &self,
        rank: &Rank,
        current: usize,
        next: Routing,
        model: impl FnOnce(&Lane) -> Result<()>,
    ) -> Result<()> {
        self.aside(|lane| rank.route(lane, next))?;
        rank.send(&self.main, current)?;
        rank.barrier(&self.main)?;
        rank.gather(&self.main, current)?;
        model(&self.main)?;
        rank.reduce(&self.main, current)?;
        self.rejoin()?;
        rank.barrier(&self.main)?;
        self.aside(|lane| rank.merge(lane, next.route))?;
        rank.update(&self.main, current)?;
        self.rejoin()
    }

    /// Enqueues work on the lane aside, to begin when the main lane is here.
    fn aside(&self, work: impl FnOnce(&Lane) -> Result<()>) -> Result<()> {
        if !self.overlap {
            return work(&self.main);
        }
        self.main.record(&self.forked)?;
        self.side.wait(&self.forked)?;
        work(&self.side)?;
        Ok(self.side.record(&self.joined)?)
    }

    /// Lets the main lane wait for the work aside.
    fn rejoin(&self) -> Result<()> {
        if self.overlap {
            self.main.wait(&self.joined)?;
        }
        Ok(())
    }
}
