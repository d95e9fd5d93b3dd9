//! Models for which there are no kernels.

use half::{bf16, f16};
use rankine_cuda::kernels::{Dot, Element, GROUP_KEYS, Head, RANKS_MAX, Route, SparseUpdate};
use rankine_job::{Conflict, Job, Precision};
use rankine_model::{Layer, ModelSpec};

use super::network::{Fp8Layers, VectorLayout, has_pairs};
use crate::limits::{DIM_MAX, FEATURES_MAX, GPUS_PER_NODE_MAX, GROUP_ROWS, HEADS_MAX, ON_CPU};

const _: () = assert!(GPUS_PER_NODE_MAX == RANKS_MAX && HEADS_MAX == Head::<f32>::HEADS_MAX);
const _: () = assert!(FEATURES_MAX == Route::FEATURES_MAX && GROUP_ROWS == GROUP_KEYS as u64);
const _: () = assert!(DIM_MAX == 4 * SparseUpdate::<f32>::VECTORS_MAX as usize);

/// Returns the settings of a job for which there are no kernels.
pub(crate) fn refused_by_kernels(job: &Job, spec: &ModelSpec) -> Vec<Conflict> {
    let mut found = Vec::new();
    let mut refuse = |key: String, message: String| found.push(Conflict::new(key, message));
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
                "the dot interaction of {vectors} vectors of {dim} elements is too large for a GPU: {ON_CPU}"
            ),
        );
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
            features: vec![FeatureSpec {
                column: "c".into(),
                table: 0,
                pooling: Pooling::Sum,
                weighted: false,
            }],
            tables: vec![TableSpec { name: "t".into(), rows: 3, dim, dtype: Dtype::Fp32, dynamic: None }],
            attention: Vec::new(),
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
