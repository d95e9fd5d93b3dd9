//! The memory and work of a rank apart from the tables: the dense part of the model, and the samples.

use rankine_embedding::plan::{Machine, NonTableLoad, NonTableMemory};
use rankine_topology::Topology;

use rankine_model::{Layer, Model};

/// The forward pass writes and reads activations; the backward pass writes and reads their gradients.
const ACTIVATION_PASSES: f64 = 4.0;
/// Batches in memory at a time: waiting, decoded, or in training.
const BATCHES: u64 = 6;
const F32_BYTES: u64 = 4;

/// Bytes of an id in memory, perhaps with its weight.
pub(super) fn id_bytes(weighted: bool) -> f64 {
    if weighted { 12.0 } else { 8.0 }
}

/// Estimates the memory and work of a rank apart from the tables, for a step on `batch_size` samples over all ranks
/// with `id_bytes` bytes of ids per sample.
///
/// Memory holds the dense parameters in fp32, and a second copy if another type computes; their gradients; the
/// optimizer state, or a share of it if updates are sharded; activations and their gradients; and batches.
pub fn rest(
    model: &Model,
    id_bytes: f64,
    batch_size: u64,
    topology: Topology,
    machine: &Machine,
    sharded_update: bool,
) -> NonTableLoad {
    let Model { spec, rules } = model;
    let samples = batch_size as f64 / topology.ranks() as f64;
    let layout = spec.dense_layout();
    let layers = layout.named_layers();
    // The first layers need no gradients with respect to their inputs, the dense columns.
    let first = [layout.bottom.layers.first(), layout.linear.layers.first()];
    let (mut flops, mut matmuls, mut activations) = (0.0, 0, 0);
    // The vectors of positions are added, not multiplied.
    let multiplied = |layer: &Layer| !layout.positions.contains(&Some(*layer));
    for (_, layer) in layers.iter().filter(|(_, layer)| multiplied(layer)) {
        let products = if first.contains(&Some(layer)) { 2 } else { 3 };
        flops += (products * 2 * layer.inputs * layer.outputs) as f64;
        matmuls += products as u64;
        activations += layer.outputs;
    }
    flops += spec.interaction.flops(spec.vector_sizes()) as f64;
    activations += spec.dense_columns + spec.vector_elements() + spec.top_inputs();

    let parameters = spec.dense_parameters() as u64;
    // The GPUs of one node store the whole state between them.
    let sharing = if machine.memory_is_shared { topology.ranks() } else { topology.ranks_per_node() };
    let share = if sharded_update { sharing as u64 } else { 1 };
    let state = rules.dense.rule.state_elements(parameters as usize) as u64;
    let computed = if machine.vector_element_bytes < F32_BYTES { machine.vector_element_bytes } else { 0 };
    let activation_bytes = samples * (activations as u64 * machine.vector_element_bytes) as f64;
    let columns = (spec.dense_columns + spec.heads.len() + spec.features.len()) as u64;
    let sample_bytes = (columns * F32_BYTES) as f64 + id_bytes;
    let memberships: u64 =
        spec.tables.iter().filter_map(|table| table.dynamic).map(|rows| rows.bytes()).sum();
    // Each GPU has all of them; ranks on the CPU share them.
    let sharing = if machine.memory_is_shared { topology.ranks() as u64 } else { 1 };
    // Gradients are read; state and weights are read and written.
    let updated = ((parameters * 3 + state * 2) / share * F32_BYTES) as f64;
    NonTableLoad {
        memory: NonTableMemory {
            parameter_bytes: parameters * (F32_BYTES + computed),
            gradient_bytes: parameters * machine.reduction_element_bytes,
            state_bytes: state.div_ceil(share) * F32_BYTES,
            activation_bytes: (2.0 * activation_bytes) as u64,
            batch_bytes: (BATCHES as f64 * samples * sample_bytes) as u64,
            membership_bytes: memberships.div_ceil(sharing),
        },
        flops: flops * samples,
        matmuls,
        memory_traffic_bytes: ACTIVATION_PASSES * activation_bytes + 2.0 * samples * sample_bytes + updated,
        reduced_elements: parameters,
    }
}

#[cfg(test)]
mod tests {
    use rankine_reader::generate::Shape;
    use rankine_reader::schema::Pooling;

    use super::*;
    use crate::training::translate;
    use rankine_job::Job;

    fn reference(config: &str) -> Model {
        let path = format!("{}/../configs/{config}.toml", env!("CARGO_MANIFEST_DIR"));
        let job = Job::load(path.as_ref(), &[""; 0]).unwrap();
        let shape = config.strip_prefix("mlperf-").unwrap();
        translate(&job, &Shape::load(shape).unwrap().schema(None)).unwrap()
    }

    /// The published FLOPs of the reference models, and the time of their products on one H200 in milliseconds.
    #[test]
    fn the_reference_models_have_the_published_costs() {
        let machine = Machine::h200();
        let measured = [
            ("mlperf-dlrm", 14.74e6_f64, [(65_536, 1.54), (32_768, 0.87), (16_384, 0.51), (6912, 0.27)]),
            ("mlperf-dlrm-dcnv2", 96.17e6, [(65_536, 10.2), (32_768, 5.5), (16_384, 2.50), (6912, 1.15)]),
        ];
        for (config, flops, times) in measured {
            let model = reference(config);
            for (batch, measured_ms) in times {
                let rest = rest(&model, 26.0 * 8.0, batch, Topology::ONE, &machine, false);
                assert!((rest.flops / batch as f64 / flops - 1.0).abs() < 0.01, "{config}: {}", rest.flops);
                let ms = 1e3 * (rest.flops / machine.flops + rest.matmuls as f64 * machine.matmul_latency_s);
                assert!((ms / measured_ms - 1.0).abs() < 0.13, "{config} at {batch}: {ms} for {measured_ms}");
            }
        }
    }

    /// A model of two dense columns, an MLP of 3 and 4 units, two tables of 4 elements, and an MLP of 5 and 1 units.
    fn small(kind: &str) -> Model {
        let text = format!(
            "name = \"small\"\ndata.dir = \"d\"\ntrain.batch_size = 8\n\
             model = {{ kind = \"{kind}\", embedding_dim = 4, bottom_mlp = [3, 4], top_mlp = [5] }}\n\
             optimizer.dense = {{ kind = \"adagrad\", learning_rate = 1 }}\n\
             optimizer.sparse = {{ kind = \"sgd\", learning_rate = 1 }}\n"
        );
        let job = Job::from_toml("small.toml", &text, &[""; 0]).unwrap();
        let (name, rows, pooling) = ("small".into(), vec![10, 20], Pooling::Sum);
        let (hotness, sequences) = (Vec::new(), Vec::new());
        let shape = Shape { name, dense: 2, rows, hotness, ragged: false, pooling, sequences, churn: None };
        translate(&job, &shape.schema(None)).unwrap()
    }

    #[test]
    fn the_costs_of_a_small_model_agree_with_a_count_by_hand() {
        let model = small("dlrm");
        // Two ranks of one node, with four samples each, of 28 bytes of ids.
        let topology = Topology::new(2, 1).unwrap();
        let of = |machine: &Machine, sharded| rest(&model, 28.0, 8, topology, machine, sharded);
        let NonTableLoad { memory, flops, matmuls, memory_traffic_bytes, reduced_elements } =
            of(&Machine::cpu(0), false);
        // Layers 2-3-4 and 7-5-1, where 7 is 4 units and the dot products of three pairs.
        let parameters = (2 * 3 + 3) + (3 * 4 + 4) + (7 * 5 + 5) + (5 + 1);
        assert_eq!((reduced_elements, memory.parameter_bytes), (parameters, 4 * parameters));
        assert_eq!((memory.gradient_bytes, memory.state_bytes), (4 * parameters, 4 * parameters));
        // Outputs of layers, dense columns, vectors and the top MLP's inputs, with their gradients.
        let activations = (3 + 4 + 5 + 1) + 2 + 3 * 4 + 7;
        assert_eq!(memory.activation_bytes, 2 * 4 * activations * 4);
        // Six batches of two dense columns, a label and two bags' ends, and of ids.
        let sample_bytes = (2 + 1 + 2) * 4 + 28;
        assert_eq!(memory.batch_bytes, 6 * 4 * sample_bytes);
        // Products of the forward pass, of the gradients with respect to weights, and of those with respect to inputs,
        // which the first layer does not need; the same for pairs of vectors.
        let products = 2 * (2 * 2 * 3) + 3 * 2 * (3 * 4 + 7 * 5 + 5) + 3 * 2 * (3 * 12);
        assert_eq!((flops, matmuls), (f64::from(4 * products), 2 + 3 * 3));
        let traffic = 4 * 4 * activations * 4 + 2 * 4 * sample_bytes + (3 + 2) * parameters * 4;
        assert_eq!(memory_traffic_bytes, traffic as f64);

        let sharded = of(&Machine::cpu(0), true);
        assert_eq!(sharded.memory.state_bytes, 4 * parameters.div_ceil(2));
        assert_eq!(
            sharded.memory_traffic_bytes,
            (traffic - (3 + 2) * parameters * 4 + (5 * parameters / 2) * 4) as f64
        );
        // GPUs store weights in half precision, too, and activations only in half precision. All-reduces are in fp32.
        let halves = of(&Machine::h200(), false).memory;
        assert_eq!(halves.parameter_bytes, (4 + 2) * parameters);
        assert_eq!((halves.gradient_bytes, halves.state_bytes), (4 * parameters, 4 * parameters));
        assert_eq!(
            (halves.activation_bytes, halves.batch_bytes),
            (memory.activation_bytes / 2, memory.batch_bytes)
        );
        // Each of two nodes stores the whole state.
        let four = Topology::new(4, 2).unwrap();
        let of_node = |machine| rest(&model, 28.0, 8, four, &machine, true).memory.state_bytes;
        assert_eq!(of_node(Machine::h200()), 4 * parameters.div_ceil(2));
        assert_eq!(of_node(Machine::cpu(0)), 4 * parameters.div_ceil(4));
        // Concatenated vectors are not multiplied pair by pair.
        let model = small("wide-deep");
        let wide = rest(&model, 28.0, 8, topology, &Machine::cpu(0), false);
        let of_layers = 2 * (2 * 2 * 3) + 3 * 2 * (3 * 4 + 12 * 5 + 5) + 2 * 2 * 2;
        assert_eq!((wide.flops, wide.matmuls), (f64::from(4 * of_layers), 2 + 3 * 3 + 2));
    }

    #[test]
    fn a_sharded_update_keeps_a_share_of_the_state() {
        let model = reference("mlperf-dlrm-dcnv2");
        let topology = Topology::new(4, 1).unwrap();
        let machine = Machine::cpu(0);
        let of = |sharded| rest(&model, 214.0 * 8.0, 4096, topology, &machine, sharded).memory.state_bytes;
        let elements = model.spec.dense_parameters() as u64;
        assert_eq!(of(false) - of(true), 4 * (elements - elements.div_ceil(4)));
    }
}
