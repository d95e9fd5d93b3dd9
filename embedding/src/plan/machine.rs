//! The speed of a machine, as far as planning needs it.

/// One rank's share of a machine; all ranks are alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Memory per rank, in bytes.
    pub memory_bytes: u64,
    /// Whether that is its share of one common memory, so that more ranks have less each.
    pub memory_is_shared: bool,
    /// Bytes that a rank reads and writes per second, for rows at random addresses.
    pub memory_bytes_per_s: f64,
    /// Operations per second of large matrix products; a multiplication and an addition count as two.
    pub flops: f64,
    /// Overhead of each matrix product, in seconds.
    pub matmul_latency_s: f64,
    /// Overhead of each exchanged shard of a table, in seconds.
    pub shard_latency_s: f64,
    /// Between ranks of one node.
    pub within_nodes: LinkSpeed,
    /// Between ranks of different nodes.
    pub between_nodes: LinkSpeed,
    /// Bytes of an element of tables and their state.
    pub table_element_bytes: u64,
    /// Whether weights of bf16 and fp16 tables take two bytes; otherwise they take as many as other tables' weights.
    pub narrow_tables: bool,
    /// Bytes per element of exchanged vectors and gradients, and of activations.
    pub vector_element_bytes: u64,
    /// Bytes per element of all-reduced gradients.
    pub reduction_element_bytes: u64,
    /// Bytes of memory traffic that take as long as sorting a look-up by row, per shard, in addition to everything
    /// else.
    pub lookup_bytes: f64,
    /// How the gradients of frequent rows are summed over ranks.
    pub frequent_sums: FrequentSums,
    /// Whether owners also pool bags with frequent rows, and bags of rows whose columns share squares; and whether they
    /// pool bags over several nodes unless the job demands it. GPUs do not.
    pub pools_all: bool,
    /// How much of the shorter of computing and communicating overlaps with the longer: 0 means one after the other,
    /// 1 at the same time.
    pub overlap: f64,
}

/// How gradients of rows that every rank stores are summed over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrequentSums {
    /// All of them, with the dense gradients, including rows that no sample names.
    Reduced,
    /// Those that a rank's samples name: it sends its sums to all others of its node, and the node's sums to its
    /// rail's ranks in other nodes; each rank adds up what it receives.
    Sent,
}

/// The speed at which a rank sends, while it receives as much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkSpeed {
    /// Bytes per second of an exchange.
    pub bytes_per_s: f64,
    /// Overhead of an exchange, in seconds.
    pub latency_s: f64,
    /// The share of `bytes_per_s` that an all-reduce reaches.
    pub reduction_efficiency: f64,
    /// Overhead of an all-reduce, in seconds.
    pub reduction_latency_s: f64,
}

impl Machine {
    /// Whether its ranks are GPUs.
    pub fn has_gpus(&self) -> bool {
        self.frequent_sums == FrequentSums::Sent
    }

    /// Ranks that are threads of one process, with one core and this much memory each.
    ///
    /// The speed of matrix products is the one that `docs/measurements/cpu-training.md` reports for one core; the rest
    /// is assumed: what one core of a common server copies. Nodes are in the same process, so both kinds of links are
    /// its memory. Nothing overlaps.
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

    /// NVIDIA H200 GPUs, connected by NVLink within a node and by 400 Gb/s per GPU between nodes.
    ///
    /// Measured on four of them (driver 580, CUDA 13.0, NCCL 2.28): random rows at 3.7 TB/s; the reference models'
    /// products fit 690 TFLOP/s and 6 us per product to within 12%, from 6912 to 65536 samples; all-to-all of 2 MiB
    /// to 256 MiB fits 310 GB/s per GPU and 20 us, all-reduce of up to 32 MiB 310 GB/s and 14 us. Assumed: between
    /// nodes nine tenths of the line rate, half a microsecond per shard, and half of communication hidden.
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
