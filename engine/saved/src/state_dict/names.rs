//! The names that PyTorch's models give their tensors.

use std::fmt;

/// Who wrote a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The reference implementation of DLRM (`facebookresearch/dlrm`).
    Reference,
    /// The `DLRM` of TorchRec.
    TorchRec,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reference => "the reference DLRM",
            Self::TorchRec => "TorchRec's DLRM",
        })
    }
}

/// A layer or table of a model. Layers count from 0.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Bottom(usize),
    Top(usize),
    /// The last layer of the top MLP, where it is not numbered.
    Last,
    /// A table, by its name or number.
    Table(String),
}

/// A tensor, as its name describes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TensorName {
    pub(super) part: Part,
    pub(super) is_bias: bool,
}

const TABLES: &str = "sparse_arch.embedding_bag_collection.embedding_bags.";

impl TensorName {
    pub(super) fn weight(part: Part) -> Self {
        Self { part, is_bias: false }
    }

    /// Parses a name, which may begin with the names of modules that wrap the model; `None` if no DLRM has it.
    pub(super) fn parse(name: &str) -> Option<(Origin, Self)> {
        let mut own = name;
        while let Some(inner) = own.strip_prefix("module.").or_else(|| own.strip_prefix("model.")) {
            own = inner;
        }
        let (of, kind) = own.rsplit_once('.')?;
        let is_bias = match kind {
            "weight" => false,
            "bias" => true,
            _ => return None,
        };
        let number = |text: &str| text.parse::<usize>().ok();
        // Between two layers of the reference is an activation.
        let layer = |text: &str| number(text).filter(|number| number % 2 == 0).map(|number| number / 2);
        let linear = |text: &str| number(text.strip_suffix("._linear")?);
        let (origin, part) = if let Some(number) = of.strip_prefix("bot_l.") {
            (Origin::Reference, Part::Bottom(layer(number)?))
        } else if let Some(number) = of.strip_prefix("top_l.") {
            (Origin::Reference, Part::Top(layer(number)?))
        } else if let Some(table) = of.strip_prefix("emb_l.") {
            (Origin::Reference, Part::Table(number(table)?.to_string()))
        } else if let Some(table) = of.strip_prefix(TABLES) {
            (Origin::TorchRec, Part::Table(table.to_owned()))
        } else if let Some(number) = of.strip_prefix("dense_arch.model._mlp.") {
            (Origin::TorchRec, Part::Bottom(linear(number)?))
        } else if let Some(number) = of.strip_prefix("over_arch.model.0._mlp.") {
            (Origin::TorchRec, Part::Top(linear(number)?))
        } else if of == "over_arch.model.1" {
            (Origin::TorchRec, Part::Last)
        } else {
            return None;
        };
        let is_table = matches!(part, Part::Table(_));
        (!(is_table && is_bias)).then_some((origin, Self { part, is_bias }))
    }

    /// Returns the name without modules that wrap the model.
    pub(super) fn of(&self, origin: Origin) -> String {
        let kind = if self.is_bias { "bias" } else { "weight" };
        let part = match (origin, &self.part) {
            (Origin::Reference, Part::Bottom(layer)) => format!("bot_l.{}", 2 * layer),
            (Origin::Reference, Part::Top(layer)) => format!("top_l.{}", 2 * layer),
            (Origin::Reference, Part::Table(number)) => format!("emb_l.{number}"),
            (Origin::TorchRec, Part::Bottom(layer)) => format!("dense_arch.model._mlp.{layer}._linear"),
            (Origin::TorchRec, Part::Top(layer)) => format!("over_arch.model.0._mlp.{layer}._linear"),
            (Origin::TorchRec, Part::Table(name)) => format!("{TABLES}{name}"),
            (_, Part::Last) => "over_arch.model.1".into(),
        };
        format!("{part}.{kind}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_their_models() {
        let table = |name: &str| Part::Table(name.into());
        for (name, origin, part, is_bias) in [
            ("emb_l.25.weight", Origin::Reference, table("25"), false),
            ("bot_l.4.bias", Origin::Reference, Part::Bottom(2), true),
            ("top_l.0.weight", Origin::Reference, Part::Top(0), false),
            ("dense_arch.model._mlp.1._linear.weight", Origin::TorchRec, Part::Bottom(1), false),
            ("over_arch.model.0._mlp.0._linear.bias", Origin::TorchRec, Part::Top(0), true),
            ("over_arch.model.1.weight", Origin::TorchRec, Part::Last, false),
            (
                "sparse_arch.embedding_bag_collection.embedding_bags.t_cat_0.weight",
                Origin::TorchRec,
                table("t_cat_0"),
                false,
            ),
        ] {
            let parsed = TensorName { part, is_bias };
            assert_eq!(parsed.of(origin), name);
            let expected = Some((origin, parsed));
            assert_eq!(TensorName::parse(name), expected, "{name}");
            for wrapper in ["model.", "module.", "module.model."] {
                assert_eq!(TensorName::parse(&format!("{wrapper}{name}")), expected, "{wrapper}{name}");
            }
        }
        for other in
            ["weight", "bot_l.1.weight", "emb_l.x.weight", "emb_l.0.bias", "top_l.0.scale", "fc.weight"]
        {
            assert_eq!(TensorName::parse(other), None, "{other}");
        }
    }
}
