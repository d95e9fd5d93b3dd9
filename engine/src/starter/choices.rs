//! The settings that a starter job chooses, and what is known about each choice.

use std::collections::BTreeMap;

/// The settings that a starter job chooses.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choices {
    /// The kind of the model.
    pub(super) kind: String,
    /// Elements of an embedding.
    pub(super) dim: usize,
    /// The optimizer of the MLPs and of the embeddings.
    pub(super) optimizer: &'static str,
    /// Its learning rate.
    pub(super) rate: f64,
    /// The weight decay of the embeddings.
    pub(super) decay: f64,
    /// Whether the rates follow a cosine.
    pub(super) cosine: bool,
    pub(super) epochs: u64,
    /// What trials found out.
    pub(super) notes: BTreeMap<Topic, Vec<String>>,
}

/// What a choice is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    Kind,
    Dim,
    Optimizer,
    Rate,
    Decay,
    Schedule,
    Epochs,
}

impl Choices {
    /// The choices for a kind of model, without trials.
    pub(super) fn new(kind: &str) -> Self {
        Self {
            kind: kind.into(),
            dim: 16,
            optimizer: "adagrad",
            rate: 0.02,
            decay: 0.0,
            cosine: false,
            epochs: 1,
            notes: BTreeMap::new(),
        }
    }

    /// Adds a line about a choice.
    pub(super) fn add_note(&mut self, topic: Topic, note: String) {
        self.notes.entry(topic).or_default().push(note);
    }

    pub(super) fn notes(&self, topic: Topic) -> impl Iterator<Item = &str> {
        self.notes.get(&topic).into_iter().flatten().map(String::as_str)
    }

    pub(super) fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    /// The value that a topic is about, in words.
    pub(super) fn value(&self, topic: Topic) -> String {
        match topic {
            Topic::Kind => self.kind.clone(),
            Topic::Dim => self.dim.to_string(),
            Topic::Optimizer => format!("{} at {}", self.optimizer, self.rate),
            Topic::Rate => self.rate.to_string(),
            Topic::Decay => self.decay.to_string(),
            Topic::Schedule => if self.cosine { "cosine" } else { "constant" }.into(),
            Topic::Epochs => self.epochs.to_string(),
        }
    }
}
