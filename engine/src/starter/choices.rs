//! The settings that a starter job chooses, and what trials found out about each choice.

use std::collections::BTreeMap;

/// The settings that a starter job chooses.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choices {
    /// The kind of the model.
    pub(super) kind: String,
    /// Buckets of each dense column; 0 for none.
    pub(super) buckets: u32,
    /// Elements of an embedding.
    pub(super) dim: usize,
    /// Width of the top MLP's first layer.
    pub(super) width: usize,
    /// The optimizer of the MLPs and of the embeddings.
    pub(super) optimizer: &'static str,
    /// Its learning rate.
    pub(super) rate: f64,
    /// The weight decay of the embeddings.
    pub(super) decay: f64,
    /// Samples of a step.
    pub(super) batch_size: u64,
    /// The number of passes, which is the length of the schedule.
    pub(super) epochs: u64,
}

/// What trials found out about choices.
#[derive(Debug, Default)]
pub(super) struct Notes(BTreeMap<Topic, Vec<String>>);

/// What a choice is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    Kind,
    Buckets,
    Optimizer,
    Rate,
    Decay,
    Epochs,
    Dim,
    Width,
    BatchSize,
}

impl Topic {
    /// The order of trials: those that matter most first.
    pub(super) const ALL: [Self; 9] = [
        Self::Kind,
        Self::Buckets,
        Self::Decay,
        Self::Rate,
        Self::Epochs,
        Self::Optimizer,
        Self::Dim,
        Self::Width,
        Self::BatchSize,
    ];
}

impl Notes {
    /// Adds a line about a choice.
    pub(super) fn add(&mut self, topic: Topic, line: String) {
        self.0.entry(topic).or_default().push(line);
    }

    /// Returns the lines about a choice.
    pub(super) fn about(&self, topic: Topic) -> impl Iterator<Item = &str> {
        self.0.get(&topic).into_iter().flatten().map(String::as_str)
    }
}

impl Choices {
    /// The value that a topic is about.
    pub(super) fn value(&self, topic: Topic) -> String {
        match topic {
            Topic::Kind => self.kind.clone(),
            Topic::Buckets => self.buckets.to_string(),
            Topic::Optimizer => format!("{} at {}", self.optimizer, self.rate),
            Topic::Rate => self.rate.to_string(),
            Topic::Decay => self.decay.to_string(),
            Topic::Epochs => self.epochs.to_string(),
            Topic::Dim => self.dim.to_string(),
            Topic::Width => self.width.to_string(),
            Topic::BatchSize => self.batch_size.to_string(),
        }
    }

    /// The value that a topic is about, in words.
    pub(super) fn words(&self, topic: Topic) -> String {
        let value = self.value(topic);
        match topic {
            Topic::Kind if self.buckets == 0 => format!("kind {value}"),
            Topic::Kind => format!("kind {value} with {} buckets per number", self.buckets),
            Topic::Buckets if self.buckets == 0 => "no buckets".into(),
            Topic::Buckets => format!("{value} buckets per number"),
            Topic::Optimizer => format!("optimizer {value}"),
            Topic::Rate => format!("learning rate {value}"),
            Topic::Decay => format!("weight decay {value}"),
            Topic::Epochs => format!("{value} epochs"),
            Topic::Dim => format!("embedding size {value}"),
            Topic::Width => format!("MLP width {value}"),
            Topic::BatchSize => format!("batch size {value}"),
        }
    }
}
