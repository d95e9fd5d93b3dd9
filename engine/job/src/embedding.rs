//! `[embedding]`: how the rows of tables are distributed over ranks.

use serde::Deserialize;

use super::values::Count;

/// `[embedding]`: how the rows of tables are distributed over the ranks, and what the ranks exchange. A single rank
/// stores all rows. The choice affects the trained model only through the rounding of sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Embedding {
    /// Placement of tables. A `[[table]]` can override it.
    pub placement: Placement,
    /// What ranks exchange for rows that other ranks own. A `[[table]]` can override it.
    pub exchange: Exchange,
    /// Type of the weights of tables. A `[[table]]` can override it.
    pub dtype: Dtype,
    /// Number of frequent rows of a hybrid table, which every rank stores. The number is reduced if the next rows are
    /// about as frequent. Without it, the cost model chooses. A `[[table]]` can override it.
    pub frequent_rows: Option<Count>,
    /// Number of samples, drawn from the whole training part, from which the frequencies of rows are estimated. Without
    /// it, the statistics of the dataset are used; for a dataset without statistics, 1000000 samples are drawn.
    pub sample_samples: Option<Count>,
}

/// Type of the weights of a table. Updates are computed in single precision, and optimizer state is single precision.
/// Updated weights are rounded stochastically, so that small updates count on average. On a GPU, `bf16` and `fp16` take
/// half the memory of `fp32`; on the CPU the same values are stored in single precision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Dtype {
    /// Single precision.
    #[default]
    Fp32,
    /// bfloat16, with a significand of 8 bits.
    Bf16,
    /// Half precision, with a significand of 11 bits and a range from 6e-8 to 65504. Larger weights become 65504.
    Fp16,
}

/// Placement of a table: which ranks store its rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The placement with the shortest predicted step, as `rankine plan` shows.
    #[default]
    Auto,
    /// Every rank stores the whole table.
    Replicated,
    /// Every rank stores the frequent rows; each other row has one owner.
    Hybrid,
    /// Each row has one owner; rows are assigned to ranks in turn.
    RowWise,
    /// One rank stores the whole table.
    TableWise,
    /// The vectors are split: each of several ranks stores some elements of every row.
    ColumnWise,
}

/// What ranks exchange for a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// Whichever has the shorter predicted step.
    #[default]
    Auto,
    /// The distinct rows that a rank's samples look up.
    Rows,
    /// Bags that the owners have partially pooled, each over its own rows.
    Pooled,
}

impl Dtype {
    /// Returns the corresponding type of the embedding crate.
    pub fn of_tables(self) -> rankine_embedding::Dtype {
        use rankine_embedding::Dtype as OfTables;
        match self {
            Self::Fp32 => OfTables::Fp32,
            Self::Bf16 => OfTables::Bf16,
            Self::Fp16 => OfTables::Fp16,
        }
    }

    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        }
    }
}

impl Placement {
    /// Returns the chosen placement, or `None` if the planner chooses.
    pub fn chosen(self) -> Option<rankine_embedding::Placement> {
        use rankine_embedding::Placement as Chosen;
        match self {
            Self::Auto => None,
            Self::Replicated => Some(Chosen::Replicated),
            Self::Hybrid => Some(Chosen::Hybrid),
            Self::RowWise => Some(Chosen::RowWise),
            Self::TableWise => Some(Chosen::TableWise),
            Self::ColumnWise => Some(Chosen::ColumnWise),
        }
    }

    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        self.chosen().map_or("auto", rankine_embedding::Placement::name)
    }
}

impl Exchange {
    /// Returns the chosen exchange, or `None` if the planner chooses.
    pub fn chosen(self) -> Option<rankine_embedding::Exchange> {
        use rankine_embedding::Exchange as Chosen;
        match self {
            Self::Auto => None,
            Self::Rows => Some(Chosen::Rows),
            Self::Pooled => Some(Chosen::Pooled),
        }
    }

    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        self.chosen().map_or("auto", rankine_embedding::Exchange::name)
    }
}
