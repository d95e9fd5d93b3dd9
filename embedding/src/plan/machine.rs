//! What a machine does in a second, as far as planning asks.

/// The ranks' share of a machine, every rank alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// What it is called.
    pub name: String,
    /// Memory of a rank, in bytes.
    pub memory_bytes: u64,
    /// Whether that is its share of one memory, which more ranks only cut smaller.
    pub memory_is_shared: bool,
    /// Bytes that a rank reads and writes a second, rows at random places.
    pub memory_bytes_per_s: f64,
    /// Operations of large matrix products that a rank does in a second, a multiplication and an addition counting two.
    pub flops: f64,
    /// What each matrix product takes beside its operations, in seconds.
    pub matmul_latency_s: f64,
    /// What each shard of a table takes that is exchanged, beside its bytes, in seconds.
    pub shard_latency_s: f64,
    /// Between ranks of one node.
    pub within_nodes: LinkSpeed,
    /// Between ranks of different nodes.
    pub between_nodes: LinkSpeed,
    /// Bytes of an element of tables and their state.
    pub table_element_bytes: u64,
    /// Whether weights of tables of bf16 or fp16 take two bytes there; else they take as many as all others.
    pub narrow_tables: bool,
    /// Bytes of an element of a vector or a gradient that is exchanged, and of activations.
    pub vector_element_bytes: u64,
    /// Bytes of an element of gradients that are summed over all ranks.
    pub reduction_element_bytes: u64,
    /// Bytes of memory traffic that take as long as putting a look-up in its row's order, of each shard, beside all
    /// else.
    pub lookup_bytes: f64,
    /// How the gradients of frequent rows are summed over ranks.
    pub frequent_sums: FrequentSums,
    /// Whether owners also pool bags of which other rows are frequent, of rows whose columns share squares, and over
    /// several nodes. GPUs do not.
    pub pools_all: bool,
    /// The share of the shorter of computing and communicating that happens beside the longer: 0 one after the other, 1
    /// at the same time.
    pub overlap: f64,
}

/// How the gradients of rows that every rank has are summed over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrequentSums {
    /// Of all of them, with the dense gradients: also of those that no sample names.
    Reduced,
    /// Of those that a rank's samples name: it sends its sums to all others of its node, and what these have summed to
    /// its rail's ranks in other nodes; each adds up what it gets.
    Sent,
}

/// What a rank sends in a second, while it receives as much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkSpeed {
    /// Bytes of an exchange.
    pub bytes_per_s: f64,
    /// What an exchange takes beside its bytes, in seconds.
    pub latency_s: f64,
    /// The share of `bytes_per_s` that a sum over all ranks reaches.
    pub reduction_efficiency: f64,
    /// What a sum over all ranks takes beside its bytes, in seconds.
    pub reduction_latency_s: f64,
}

impl Machine {
    /// Ranks that are threads of one process, one core each, with so much memory each.
    ///
    /// Matrix products as `docs/benchmarks.md` has them of one core; the rest is stated: what one core of a common
    /// server copies. Nodes are of the same process, so both links are its memory. Nothing overlaps.
    pub fn cpu(memory_bytes: u64) -> Self {
        let memory = LinkSpeed {
            bytes_per_s: 4e9,
            latency_s: 20e-6,
            reduction_efficiency: 1.0,
            reduction_latency_s: 20e-6,
        };
        Self {
            name: "cpu".into(),
            memory_bytes,
            memory_is_shared: true,
            memory_bytes_per_s: 5e9,
            flops: 134e9,
            matmul_latency_s: 0.0,
            shard_latency_s: 10e-6,
            within_nodes: memory,
            between_nodes: memory,
            table_element_bytes: 4,
            narrow_tables: false,
            vector_element_bytes: 4,
            reduction_element_bytes: 4,
            lookup_bytes: 0.0,
            frequent_sums: FrequentSums::Reduced,
            pools_all: true,
            overlap: 0.0,
        }
    }

    /// NVIDIA H200 GPUs, joined by NVLink within a node and by 400 Gb/s a GPU between nodes.
    ///
    /// Measured on four of them (driver 580, CUDA 13.0, NCCL 2.28): random rows at 3.7 TB/s; the reference models'
    /// products fit 690 TFLOP/s and 6 us a product to within 12%, from 6912 to 65536 samples; all-to-all of 2 MiB to
    /// 256 MiB fits 310 GB/s a GPU and 20 us, all-reduce of up to 32 MiB 310 GB/s and 14 us. Stated: between nodes nine
    /// tenths of the line rate, half a microsecond a shard, and half of communication hidden.
    pub fn h200() -> Self {
        Self {
            name: "h200".into(),
            memory_bytes: 139 << 30,
            memory_is_shared: false,
            memory_bytes_per_s: 3.7e12,
            flops: 690e12,
            matmul_latency_s: 6e-6,
            shard_latency_s: 0.5e-6,
            within_nodes: LinkSpeed {
                bytes_per_s: 310e9,
                latency_s: 20e-6,
                reduction_efficiency: 1.0,
                reduction_latency_s: 14e-6,
            },
            between_nodes: LinkSpeed {
                bytes_per_s: 45e9,
                latency_s: 25e-6,
                reduction_efficiency: 0.9,
                reduction_latency_s: 30e-6,
            },
            table_element_bytes: 4,
            narrow_tables: true,
            vector_element_bytes: 2,
            reduction_element_bytes: 4,
            lookup_bytes: 220.0,
            frequent_sums: FrequentSums::Sent,
            pools_all: false,
            overlap: 0.5,
        }
    }
}
