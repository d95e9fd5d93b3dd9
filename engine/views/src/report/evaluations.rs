//! The evaluations of a run: one course and one result for each set of samples.

use rankine_base::sealed::Checksum;
use rankine_model::evaluation::Metrics;
use rankine_reader::Part;
use serde::Serialize;

use super::series::Series;

/// The evaluations of a run on the same samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EvaluationView {
    /// The samples: `evaluation`, `validation`, or `eval set` and the name of an `[[eval.set]]`.
    pub name: String,
    /// Identifies the samples; `None` in the logs of earlier versions.
    pub samples_checksum: Option<Checksum>,
    /// The last evaluation, one entry a head.
    pub heads: Vec<HeadView>,
    /// The first head's AUC, of each evaluation.
    #[serde(skip_serializing_if = "Series::is_empty")]
    pub auc: Series,
    /// The first head's log loss, of each evaluation.
    #[serde(skip_serializing_if = "Series::is_empty")]
    pub log_loss: Series,
    /// The last step of the curves.
    #[serde(skip)]
    last_step: Option<u64>,
}

/// The quality of one head's predictions; the fields are those of [`rankine_model::evaluation::Metrics`].
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HeadView {
    /// The label column; `None` if nothing recorded it.
    pub label: Option<String>,
    /// Samples scored.
    pub samples: u64,
    /// The area under the ROC curve.
    pub auc: Option<f64>,
    /// Mean binary cross-entropy in nats.
    pub log_loss: Option<f64>,
    /// Log loss divided by the entropy of the label rate.
    pub normalized_entropy: Option<f64>,
    /// Sum of predicted probabilities over sum of labels.
    pub calibration: Option<f64>,
    /// The same of the model's own probabilities on the samples as they are, if negatives were downsampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration_uncorrected: Option<f64>,
    /// The share of labels that are 1.
    pub label_rate: Option<f64>,
    /// For generated data: the AUC of the teacher that made the labels.
    pub auc_achievable: Option<f64>,
}

impl HeadView {
    /// The metrics of a head; there are none if no sample has its label.
    pub fn new(label: Option<&str>, metrics: Option<&Metrics>) -> Self {
        let label = label.map(str::to_owned);
        let Some(metrics) = metrics else { return Self { label, ..Self::default() } };
        Self {
            label,
            samples: metrics.samples,
            auc: metrics.auc,
            log_loss: Some(metrics.log_loss).filter(|loss| loss.is_finite()),
            normalized_entropy: metrics.normalized_entropy,
            calibration: metrics.calibration,
            calibration_uncorrected: metrics.calibration_uncorrected,
            label_rate: Some(metrics.label_rate),
            auc_achievable: None,
        }
    }
}

/// The evaluations of a run, those of the evaluation part first.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Evaluations(Vec<EvaluationView>);

/// One evaluation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Evaluated {
    /// Steps completed.
    pub(crate) step: u64,
    /// Whether the weights are an average, which is no point of a curve.
    pub(crate) averaged: bool,
    pub(crate) samples_checksum: Option<Checksum>,
    /// The first head's metrics; NaN if they are undefined.
    pub(crate) auc: f64,
    pub(crate) log_loss: f64,
}

/// The name of the samples that were evaluated, as screens show it.
pub fn name_of(part: Part, set: Option<&str>) -> String {
    match (set, part) {
        (Some(set), _) => format!("eval set {set}"),
        (None, Part::Validation) => "validation".into(),
        (None, Part::Eval) => "evaluation".into(),
        (None, Part::Train) => "training".into(),
    }
}

impl Evaluations {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &EvaluationView> {
        self.0.iter()
    }

    /// The result of the run: the evaluation part's, or, before that is evaluated, the validation set's. Datasets of
    /// `[[eval.set]]` are none.
    pub fn result(&self) -> Option<&EvaluationView> {
        let is = |part| self.0.iter().find(move |one| one.name == name_of(part, None));
        is(Part::Eval).or_else(|| is(Part::Validation))
    }

    /// The evaluations on samples with a name, which may be new.
    pub(crate) fn of(&mut self, name: &str) -> &mut EvaluationView {
        let at = self.0.iter().position(|one| one.name == name).unwrap_or_else(|| {
            let at = if name == name_of(Part::Eval, None) { 0 } else { self.0.len() };
            self.0.insert(at, EvaluationView { name: name.to_owned(), ..EvaluationView::default() });
            at
        });
        &mut self.0[at]
    }

    /// The number of curves.
    pub(super) fn curves(&self) -> usize {
        2 * self.0.len()
    }

    /// Reduces each curve to at most this number of points.
    pub(super) fn thin(&mut self, points: usize) {
        for one in &mut self.0 {
            one.auc.thin(points);
            one.log_loss.thin(points);
        }
    }
}

impl EvaluationView {
    /// Adds an evaluation. It is a point of the curves unless it is of an average, or of an earlier model, which early
    /// stopping restores at the end.
    pub(crate) fn add(&mut self, evaluated: Evaluated) {
        let Evaluated { step, averaged, samples_checksum, auc, log_loss } = evaluated;
        let differ = self.samples_checksum.zip(samples_checksum).is_some_and(|(before, now)| before != now);
        if differ {
            // A run that was resumed may have other samples; one curve has the same ones.
            *self = Self { name: std::mem::take(&mut self.name), ..Self::default() };
        }
        // Lines of earlier versions do not say.
        self.samples_checksum = samples_checksum.or(self.samples_checksum);
        if self.last_step.is_none_or(|last| step > last) && !averaged {
            self.last_step = Some(step);
            self.auc.push(step, auc);
            self.log_loss.push(step, log_loss);
        }
    }
}
