//! What of a job cannot be trained on a GPU yet.

use half::bf16;
use rankine_cuda::kernels::{Dot, Element};
use rankine_embedding::{Optimizer, UpdateRule};
use rankine_reader::Schema;
use rankine_reader::schema::Hotness;

use crate::job::{Conflict, Job, Precision};
use crate::model::{Interaction, ModelSpec, TrainingRules};

/// Elements of a vector must be a multiple of it: tensor cores take as many.
const DIM_MULTIPLE: usize = 16;

/// Everything about a job that GPUs do not do, each with what they do.
pub fn refusals(job: &Job, schema: &Schema, spec: &ModelSpec, rules: &TrainingRules) -> Vec<Conflict> {
    let mut found = Vec::new();
    let mut refuse = |key: String, message: String| found.push(Conflict::new(key, message));
    let on_cpu = "set device.kind to \"cpu\" for this job";
    let sgd = |optimizer: &Optimizer| optimizer.rule == UpdateRule::Sgd && optimizer.weight_decay == 0.0;
    if job.device.ranks.get() > 1 {
        refuse(
            "device.ranks".into(),
            format!("one GPU trains a model alone so far: use 1 rank, or {on_cpu}"),
        );
    }
    if spec.interaction != Interaction::Dot || spec.wide {
        let kind = job.model.kind();
        refuse("model.kind".into(), format!("GPUs train the kind dlrm so far, and not {kind}: {on_cpu}"));
    }
    if spec.heads.len() != 1 {
        let heads = spec.heads.len();
        refuse(
            "head".into(),
            format!("GPUs train one head so far, and not {heads}: name one label, or {on_cpu}"),
        );
    }
    if !sgd(&rules.dense) {
        refuse(
            "optimizer.dense".into(),
            format!("GPUs update by plain sgd so far, without weight_decay: {on_cpu}"),
        );
    }
    if rules.dense_clip_norm.is_some() {
        refuse(
            "optimizer.dense_clip_norm".into(),
            format!("GPUs do not clip gradients so far: leave it out, or {on_cpu}"),
        );
    }
    if let Some(column) = schema.categorical.iter().find(|column| column.hotness != Hotness::Fixed(1)) {
        let name = &column.name;
        refuse(
            "data".into(),
            format!("GPUs take columns of one id a sample so far, and column {name} has bags: {on_cpu}"),
        );
    }
    let dim = job.model.embedding_dim().get() as usize;
    if !dim.is_multiple_of(DIM_MULTIPLE) {
        refuse(
            "model.embedding_dim".into(),
            format!(
                "on GPUs it must be a multiple of {DIM_MULTIPLE}, and is {dim}: choose another, or {on_cpu}"
            ),
        );
    } else if spec.interaction == Interaction::Dot && !fits(job.device.precision, spec, dim) {
        let vectors = spec.vectors();
        refuse(
            "model.embedding_dim".into(),
            format!("{vectors} vectors of {dim} elements are more than a GPU interacts so far: {on_cpu}"),
        );
    }
    found
}

fn fits(precision: Precision, spec: &ModelSpec, dim: usize) -> bool {
    fn of<T: Element>(spec: &ModelSpec, dim: usize) -> bool {
        let sizes = (u32::try_from(spec.vectors()), u32::try_from(spec.top_inputs().next_multiple_of(8)));
        let (Ok(vectors), Ok(stride)) = sizes else { return false };
        vectors <= 512 && dim <= 1 << 16 && Dot::<T>::fits(vectors, dim as u32, stride)
    }
    match precision {
        Precision::Fp32 | Precision::Tf32 => of::<f32>(spec, dim),
        Precision::Bf16 => of::<bf16>(spec, dim),
    }
}
