//! `[embedding]`: where the rows of tables are stored: on which ranks, and whether on a GPU or in host memory.

use std::fmt;

use serde::de::Error;
use serde::de::value::StringDeserializer;
use serde::{Deserialize, Deserializer};

use super::data::ByteSize;
use super::values::Count;

/// `[embedding]`: how the rows of tables are distributed over the ranks, what the ranks exchange, and how much memory
/// rows may take. A single rank stores all rows. Placement and exchange affect the trained model only through the
/// rounding of sums; the memory budgets do not affect it at all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
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
    /// How much memory of a GPU rows may take with their optimizer state: a size, such as `"96GB"`, or `"auto"`, what
    /// everything else leaves. If the tables need more, the GPU stores the rows with the most look-ups per byte, and
    /// host memory has the others. Without it, the GPU stores all rows. No effect on the CPU, where all rows are in
    /// host memory.
    pub device_memory: Option<MemoryBudget>,
    /// How much host memory such rows may take with their optimizer state and copies of a batch's rows, such as
    /// `"128GB"`. Without it, what is free on the machine and within the limit of the cgroup.
    pub host_memory: Option<ByteSize>,
    /// After how many steps the rows that GPUs store are chosen again: those that most batches have looked up since the
    /// last time. Without it, they are chosen once, by the dataset's statistics. Choosing again takes tenths of a
    /// second, and changes no bit of the trained model.
    pub refresh_steps: Option<Count>,
}

/// An amount of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryBudget {
    /// What everything else leaves.
    Auto,
    /// A size.
    Bytes(ByteSize),
}

impl fmt::Display for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Bytes(bytes) => bytes.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for MemoryBudget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let size = ByteSize::deserialize(StringDeserializer::<D::Error>::new(text));
        size.map(Self::Bytes).map_err(|error| D::Error::custom(format!("{error}, or \"auto\"")))
    }
}

#[cfg(test)]
impl serde::Serialize for MemoryBudget {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_string().serialize(serializer)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for MemoryBudget {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "MemoryBudget".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": "^(auto|[0-9]+(\\.[0-9]+)? ?([kKMGT]i?)?B?)$"
        })
    }
}

/// Which memory has the rows of a table while a GPU trains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// The GPU has the hottest rows that fit into `embedding.device_memory`, and host memory the others.
    #[default]
    Auto,
    /// The GPU has all rows.
    Device,
    /// Host memory has all rows.
    Host,
}

impl Tier {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Device => "device",
            Self::Host => "host",
        }
    }
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
