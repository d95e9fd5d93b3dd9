//! Settings of a job that GPUs do not support yet.

use half::{bf16, f16};
use rankine_cuda::kernels::{Dot, Element, Head, RANKS_MAX};
use rankine_job::{Conflict, Exchange, Job, Optimizer, Placement, Precision};
use rankine_model::{Layer, ModelSpec};

use super::network::{Fp8Layers, VectorLayout, has_pairs};

/// Returns every setting of a job that GPUs do not support, each with what they support.
pub(super) fn refusals(job: &Job, spec: &ModelSpec) -> Vec<Conflict> {
    let mut found = Vec::new();
    let mut refuse = |key: String, message: String| found.push(Conflict::new(key, message));
    let on_cpu = "set device.kind to \"cpu\" for this job";
    let ranks = job.device.ranks.get() as usize;
    let nodes = job.device.nodes.get() as usize;
    if ranks.div_ceil(nodes) > RANKS_MAX {
        let why = format!("at most {RANKS_MAX} GPUs per node are supported, not {}: {on_cpu}", ranks / nodes);
        refuse("device.ranks".into(), why);
    }
    if nodes > RANKS_MAX {
        let why = format!("GPU training supports at most {RANKS_MAX} nodes, not {nodes}: {on_cpu}");
        refuse("device.nodes".into(), why);
    }
    if nodes > 1 {
        let pooled = format!(
            "GPUs on several nodes exchange rows, but not pooled bags yet: use \"auto\" or \"rows\", 1 node, or \
             {on_cpu}"
        );
        if job.embedding.exchange == Exchange::Pooled {
            refuse("embedding.exchange".into(), pooled.clone());
        }
        for (number, table) in job.tables.iter().enumerate() {
            if table.exchange == Some(Exchange::Pooled) {
                refuse(format!("table.{number}.exchange"), pooled.clone());
            }
        }
    }
    if ranks > 1 {
        if job.device.tune {
            let why = "device.tune is not supported on several GPUs, which must all use the same algorithms: remove \
            it, or set device.tuning to the tuning.json of a run on one GPU with the batch size of one rank";
            refuse("device.tune".into(), why.into());
        }
        for (key, table) in pooled_beyond(job, spec) {
            let why = format!(
                "exchange = \"pooled\" is not supported on GPUs for table {table}, which is hybrid, or column-wise \
                 with rowwise-adagrad: use exchange = \"rows\" or \"auto\" for it, or {on_cpu}"
            );
            refuse(key, why);
        }
    }
    let heads = spec.heads.len();
    if heads > Head::<f32>::HEADS_MAX {
        let most = Head::<f32>::HEADS_MAX;
        refuse("head".into(), format!("GPU training supports at most {most} heads, not {heads}: {on_cpu}"));
    }
    let sizes = layers_for_fp8(spec);
    if let (Some(Precision::Fp8), Err(sizes)) = (job.device.precision, sizes) {
        refuse(
            "device.precision".into(),
            format!(
                "fp8 needs layers whose widths, padded to multiples of 8, are multiples of 16, but {sizes}: set \
                 other widths, or use \"bf16\""
            ),
        );
    }
    let dim = job.model.embedding_dim().get() as usize;
    if has_pairs(spec) && !fits(job.device.precision_on_gpus(), spec) {
        let vectors = spec.vectors();
        refuse(
            "model.embedding_dim".into(),
            format!(
                "the dot interaction of {vectors} vectors of {dim} elements is too large for a GPU: {on_cpu}"
            ),
        );
    }
    found
}

/// Returns the pooled tables that a job places hybrid, or column-wise with row-wise Adagrad: the key that says so, and
/// the tables' names.
fn pooled_beyond(job: &Job, spec: &ModelSpec) -> Vec<(String, String)> {
    let beyond = |placement: Placement, exchange: Exchange, rule: &Optimizer| {
        let rowwise = matches!(rule, Optimizer::RowwiseAdagrad(_));
        let by_columns = placement == Placement::ColumnWise && rowwise;
        exchange == Exchange::Pooled && (placement == Placement::Hybrid || by_columns)
    };
    let (placement, exchange) = (job.embedding.placement, job.embedding.exchange);
    let mut found = Vec::new();
    if beyond(placement, exchange, &job.optimizer.sparse) && !spec.tables.is_empty() {
        found.push(("embedding.exchange".into(), format!("`{}` and others", spec.tables[0].name)));
    }
    for (number, table) in job.tables.iter().enumerate() {
        let own = (table.placement.unwrap_or(placement), table.exchange.unwrap_or(exchange));
        let rule = table.optimizer.as_ref().unwrap_or(&job.optimizer.sparse);
        let says = table.placement.is_some() || table.exchange.is_some() || table.optimizer.is_some();
        if says && beyond(own.0, own.1, rule) {
            found.push((format!("table.{number}.exchange"), format!("`{}`", table.columns.join(", "))));
        }
    }
    found
}

/// Whether cross layers and hidden layers can be in fp8; otherwise returns their widths, in words.
fn layers_for_fp8(spec: &ModelSpec) -> Result<(), String> {
    let layers = Fp8Layers::new(spec, &VectorLayout::new(spec));
    if layers.fit() {
        return Ok(());
    }
    let widths = |layers: &[Layer]| {
        let inputs = layers.first().map(|layer| layer.inputs);
        let widths = inputs.into_iter().chain(layers.iter().map(|layer| layer.outputs));
        widths.map(|width| width.to_string()).collect::<Vec<_>>().join("-")
    };
    let hidden = format!("those of the top MLP (model.top_mlp) are {}", widths(&layers.hidden));
    let cross = widths(&layers.cross);
    Err(if cross.is_empty() {
        hidden
    } else {
        format!("those of the cross layers (model.embedding_dim, model.cross_rank) are {cross}, {hidden}")
    })
}

fn fits(precision: Precision, spec: &ModelSpec) -> bool {
    fn of<T: Element>(spec: &ModelSpec) -> bool {
        let (count, dim, stride) = VectorLayout::new(spec).dot(spec);
        // Within these limits no size overflows.
        count <= 512 && dim <= 1 << 16 && Dot::<T>::fits(count as u32, dim as u32, stride as u32)
    }
    match precision {
        Precision::Fp32 | Precision::Tf32 => of::<f32>(spec),
        Precision::Bf16 | Precision::Fp8 => of::<bf16>(spec),
        Precision::Fp16 => of::<f16>(spec),
    }
}

#[cfg(test)]
mod tests {
    use rankine_embedding::{Dtype, Pooling, TableSpec};

    use super::*;
    use rankine_model::{FeatureSpec, HeadSpec, Interaction};

    #[test]
    fn fp8_needs_widths_of_sixteens() {
        let spec = |interaction, top_mlp: &[usize], dim| ModelSpec {
            dense_columns: 13,
            bottom_mlp: vec![dim],
            interaction,
            wide: false,
            top_mlp: top_mlp.to_vec(),
            heads: vec![HeadSpec { label: "label".into(), label_number: 0, weight: 1.0 }],
            features: vec![FeatureSpec { column: "c".into(), table: 0, pooling: Pooling::Sum }],
            tables: vec![TableSpec { name: "t".into(), rows: 3, dim, dtype: Dtype::Fp32 }],
        };
        let fits = |interaction, top_mlp, dim| layers_for_fp8(&spec(interaction, top_mlp, dim));
        // The results of dot products are padded.
        assert_eq!(fits(Interaction::Dot, &[32, 48], 7), Ok(()));
        assert_eq!(fits(Interaction::Dot, &[9], 7), Ok(()));
        assert_eq!(
            fits(Interaction::Dot, &[32, 24, 16], 16),
            Err("those of the top MLP (model.top_mlp) are 32-32-24-16".into())
        );
        assert_eq!(fits(Interaction::Concat, &[32], 8), Ok(()));
        assert_eq!(fits(Interaction::Concat, &[], 8), Ok(()));
        let crossed = |rank| fits(Interaction::Cross { layers: 1, rank }, &[32], 16);
        assert_eq!([crossed(None), crossed(Some(16)), crossed(Some(9))], [Ok(()), Ok(()), Ok(())]);
        let both = "those of the cross layers (model.embedding_dim, model.cross_rank) are 32-24-32, those of the top \
                    MLP (model.top_mlp) are 32-32";
        assert_eq!(crossed(Some(20)), Err(both.into()));
    }
}
