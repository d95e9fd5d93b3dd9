//! Where the rows of tables lie among ranks, as far as a job says.

use serde::Deserialize;

use super::values::Count;

/// `[embedding]`: where the rows of tables lie among the ranks, and what crosses between them. With one rank all rows
/// lie there. What the model learns does not depend on it, but for the rounding of sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Embedding {
    /// How tables are placed, where a `[[table]]` says nothing else.
    pub placement: Placement,
    /// What crosses between ranks for the rows of others, where a `[[table]]` says nothing else.
    pub exchange: Exchange,
    /// What tables' weights are stored as, where a `[[table]]` says nothing else.
    pub dtype: Dtype,
    /// How many rows of a hybrid table every rank has, the most frequent ones, where a `[[table]]` says nothing else:
    /// fewer where some that follow are about as frequent. Without it, the cost model says which are frequent.
    pub frequent_rows: Option<Count>,
    /// Samples by which the frequencies of rows are estimated, drawn from the whole training part. Without it, all
    /// samples count where the dataset has their statistics, and 1000000 samples are drawn where it has none.
    pub sample_samples: Option<Count>,
}

/// What the weights of a table are stored as. Updates are computed in single precision, as is all optimizer state; what
/// they write back is rounded up or down at random, so that small steps count on average. On a GPU halves take half
/// the memory; on the CPU they are kept in single precision, as the same numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Dtype {
    /// Single precision.
    #[default]
    Fp32,
    /// bfloat16, which has 8 bits.
    Bf16,
    /// Half precision, which has 11 bits, from 6e-8 to 65504: larger weights become 65504.
    Fp16,
}

/// A way to place a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Whichever of the others makes an iteration the shortest, as `rankine plan` predicts it.
    #[default]
    Auto,
    /// Every rank has the whole table.
    Replicated,
    /// Every rank has the frequent rows, and each of the others has one owner.
    Hybrid,
    /// Each row has one owner; owners take turns.
    RowWise,
    /// One rank has the whole table.
    TableWise,
    /// Several ranks have some columns of every row each.
    ColumnWise,
}

/// What crosses between ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// Whichever of the others makes an iteration the shorter.
    #[default]
    Auto,
    /// The distinct rows that a rank's samples name.
    Rows,
    /// Bags that owners have pooled, as far as their rows go.
    Pooled,
}

impl Dtype {
    /// The tables' own word for it.
    pub fn of_tables(self) -> rankine_embedding::Dtype {
        use rankine_embedding::Dtype as OfTables;
        match self {
            Self::Fp32 => OfTables::Fp32,
            Self::Bf16 => OfTables::Bf16,
            Self::Fp16 => OfTables::Fp16,
        }
    }

    /// The name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        }
    }
}

impl Placement {
    /// The placement that is asked for; none where the planner chooses.
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

    /// The name in a job file.
    pub fn name(self) -> &'static str {
        self.chosen().map_or("auto", rankine_embedding::Placement::name)
    }
}

impl Exchange {
    /// What is asked for; nothing where the planner chooses.
    pub fn chosen(self) -> Option<rankine_embedding::Exchange> {
        use rankine_embedding::Exchange as Chosen;
        match self {
            Self::Auto => None,
            Self::Rows => Some(Chosen::Rows),
            Self::Pooled => Some(Chosen::Pooled),
        }
    }

    /// The name in a job file.
    pub fn name(self) -> &'static str {
        self.chosen().map_or("auto", rankine_embedding::Exchange::name)
    }
}
