//! Why there is no plan, and what would help.

use bytesize::ByteSize;

use crate::placement::Placement;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// There is not enough memory.
    #[error("{0}")]
    Memory(Box<MemoryShortage>),
}

/// How much memory is missing, and what would help.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryShortage {
    /// Number of ranks.
    pub ranks: usize,
    /// Bytes that the fullest rank would need in the plan that needs the least.
    pub needed_bytes: u64,
    /// Bytes that it has.
    pub memory_bytes: u64,
    /// How much of the need is not for tables.
    pub rest_bytes: u64,
    /// The fewest ranks, with as many per node as now, on which the tables fit, if any.
    pub ranks_that_fit: Option<usize>,
    /// Bytes that the fullest rank would need with one number of state per row, if that is less.
    pub rowwise_state_bytes: Option<u64>,
    /// Whether all ranks share one memory.
    pub memory_is_shared: bool,
    /// Tables whose required placement needs more memory than spreading their rows, largest first.
    pub forced: Vec<(String, Placement)>,
}

impl std::fmt::Display for MemoryShortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the model does not fit: with {} ranks, a rank needs up to {:.2} ({:.2} without tables) but has {:.2}",
            self.ranks,
            ByteSize(self.needed_bytes),
            ByteSize(self.rest_bytes),
            ByteSize(self.memory_bytes)
        )?;
        if !self.forced.is_empty() {
            let names: Vec<_> =
                self.forced.iter().map(|(name, how)| format!("{name} ({})", how.name())).collect();
            write!(
                f,
                ". A rank would need less if the rows of {} were distributed: set their placement to \"auto\"",
                list(&names)
            )?;
        }
        match self.ranks_that_fit {
            Some(ranks) => write!(f, ". {ranks} ranks would suffice")?,
            None if self.memory_is_shared => {
                f.write_str(". More ranks would not help: they share one memory")?
            }
            None => f.write_str(
                ". More ranks would not help: the part that every rank needs is already too large",
            )?,
        }
        if let Some(bytes) = self.rowwise_state_bytes {
            let fits = if bytes <= self.memory_bytes { "which fits" } else { "which is still too much" };
            write!(
                f,
                ". With optimizer.sparse.kind = \"rowwise-adagrad\", one number of state per row, a rank would need \
                 {:.2}, {fits}",
                ByteSize(bytes)
            )?;
        }
        Ok(())
    }
}

pub(super) fn list(names: &[String]) -> String {
    const NAMED: usize = 5;
    let mut text = names[..names.len().min(NAMED)].join(", ");
    if names.len() > NAMED {
        text += &format!(" and {} more", names.len() - NAMED);
    }
    text
}
