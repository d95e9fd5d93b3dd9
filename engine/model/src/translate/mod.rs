//! From a job to its model: applies the job to the columns of a dataset.

mod attention;

use rankine_base::nearest;
use rankine_embedding::membership::{Eviction, IfFull};
use rankine_embedding::{Optimizer, Pooling, TableSpec};
use rankine_job as job;
use rankine_job::{Conflict, Job, Width};
use rankine_reader::Schema;
use rankine_reader::schema::{self, Categorical, VocabularyKind};

use super::interaction::Interaction;
use super::rules::{self, TrainingRules};
use super::spec::{FeatureSpec, HeadSpec, ModelSpec};

/// The model of a job for a dataset's columns, and its update rules.
///
/// # Errors
/// Every setting of the job that does not suit the columns.
pub fn translate(job: &Job, schema: &Schema) -> Result<rules::Model, Vec<Conflict>> {
    let mut conflicts = Vec::new();
    check_columns(job, schema, &mut conflicts);
    let heads = heads(job, schema, &mut conflicts);
    let tables = Tables::new(job, schema, &mut conflicts);
    let attention = attention::attention(job, schema, |column| tables.dim_of(column), &mut conflicts);
    if !conflicts.is_empty() {
        return Err(conflicts);
    }
    let features = schema.categorical.iter().zip(&tables.of_columns).map(|(column, &table)| FeatureSpec {
        column: column.name.clone(),
        table,
        pooling: match column.pooling {
            schema::Pooling::Sum => Pooling::Sum,
            schema::Pooling::Mean => Pooling::Mean,
        },
        weighted: column.weighted,
    });
    let widths = |mlp: &[Width]| mlp.iter().map(|width| width.get() as usize).collect();
    let spec = ModelSpec {
        dense_columns: schema.dense.len(),
        bottom_mlp: widths(job.model.bottom_mlp()),
        interaction: Interaction::of(&job.model),
        wide: job.model.kind().is_wide,
        top_mlp: widths(job.model.top_mlp()),
        heads,
        features: features.collect(),
        tables: tables.specs,
        attention,
    };
    let rules = TrainingRules {
        dense: job.optimizer.dense.rule(),
        dense_clip_norm: job.optimizer.dense_clip_norm.map(|norm| norm.get() as f32),
        tables: tables.rules,
        wide: job.optimizer.wide().rule(),
    };
    Ok(rules::Model { spec, rules })
}

/// Checks that a model of the job's kind can be built over the columns at all.
fn check_columns(job: &Job, schema: &Schema, conflicts: &mut Vec<Conflict>) {
    let mut conflict = |key, message: String| conflicts.push(Conflict::new(key, message));
    let (dense, bottom) = (schema.dense.len(), job.model.bottom_mlp());
    let (kind, dim) = (job.model.kind().name, job.model.embedding_dim());
    if dense > 0 && bottom.is_empty() && job.model.kind().multiplies_vectors {
        conflict(
            "model.bottom_mlp",
            format!(
                "the dataset has {dense} dense columns, so {kind} needs a bottom MLP: [64, {dim}], for example"
            ),
        );
    }
    if dense == 0 && !bottom.is_empty() {
        conflict("model.bottom_mlp", "the dataset has no dense columns: remove the bottom MLP".into());
    }
    let vectors = schema.categorical.len() + usize::from(dense > 0);
    if vectors < 2 && job.model.kind().multiplies_vectors {
        conflict(
            "model.kind",
            format!(
                "the dataset has too few columns: {kind} needs two categorical ones, or one and dense ones"
            ),
        );
    } else if vectors == 0 {
        conflict("model.kind", "the dataset has no columns to learn from".into());
    }
}

/// The labels that the model learns.
fn heads(job: &Job, schema: &Schema, conflicts: &mut Vec<Conflict>) -> Vec<HeadSpec> {
    let names: Vec<_> = schema.labels.iter().map(|label| label.name.as_str()).collect();
    let head = |label_number: usize, weight| HeadSpec {
        label: names[label_number].to_owned(),
        label_number,
        weight,
    };
    if job.heads.is_empty() {
        return (0..names.len()).map(|number| head(number, 1.0)).collect();
    }
    let mut heads = Vec::new();
    for (number, wanted) in job.heads.iter().enumerate() {
        match names.iter().position(|&name| name == wanted.label) {
            Some(label_number) => heads.push(head(label_number, wanted.weight.get())),
            None => conflicts.push(Conflict::new(
                format!("head.{number}.label"),
                format!(
                    "the dataset has no label `{}`{}",
                    wanted.label,
                    known(&wanted.label, "it has", &names)
                ),
            )),
        }
    }
    heads
}

/// The tables of a model, in the order of the first columns that use them.
struct Tables {
    specs: Vec<TableSpec>,
    /// One per table.
    rules: Vec<Optimizer>,
    /// The index of each categorical column's table.
    of_columns: Vec<usize>,
}

impl Tables {
    fn new(job: &Job, schema: &Schema, conflicts: &mut Vec<Conflict>) -> Self {
        for (number, table) in job.tables.iter().enumerate() {
            check_table(number, table, schema, conflicts);
            check_skipping(number, (job, table), schema, conflicts);
        }
        let is_dynamic = |name: &str| job.table_of(name).is_some_and(|(_, table)| table.rows.is_some());
        let open = schema.categorical.iter().filter(|column| column.is_open() && !is_dynamic(&column.name));
        conflicts.extend(open.map(without_rows));
        let mut tables = Self { specs: Vec::new(), rules: Vec::new(), of_columns: Vec::new() };
        // The tables of `[[table]]`s that a column has used already.
        let mut numbers = vec![None; job.tables.len()];
        for column in &schema.categorical {
            let own = job.table_of(&column.name);
            let number = match own.and_then(|(own, _)| numbers[own]) {
                Some(number) => number,
                None => tables.push(job, column, own.map(|(_, table)| table)),
            };
            if let Some((own, _)) = own {
                numbers[own] = Some(number);
            }
            tables.of_columns.push(number);
        }
        tables.check_names(job, conflicts);
        tables
    }

    /// Returns the elements of the vectors of a column.
    fn dim_of(&self, column: usize) -> usize {
        self.specs[self.of_columns[column]].dim
    }

    /// Adds the table that a column is the first to use; returns its index.
    fn push(&mut self, job: &Job, column: &Categorical, own: Option<&job::Table>) -> usize {
        let dim = own.and_then(|table| table.dim).unwrap_or(job.model.embedding_dim());
        let name = own.map_or_else(|| column.name.clone(), job::Table::name);
        let dtype = own.and_then(|table| table.dtype).unwrap_or(job.embedding.dtype).of_tables();
        let dynamic = own.and_then(|table| job.dynamic_rows(table));
        let rows = dynamic.map_or(column.rows.unwrap_or(0), |rows| rows.table_rows());
        self.specs.push(TableSpec { name, rows, dim: dim.get() as usize, dtype, dynamic });
        let rule = own.and_then(|table| table.optimizer.as_ref()).unwrap_or(&job.optimizer.sparse);
        let mut rule = rule.rule();
        rule.learning_rate *= own.map_or(1.0, |table| table.learning_rate_factor.get());
        self.rules.push(rule);
        self.specs.len() - 1
    }

    /// The name of a `[[table]]` may equal that of a column whose table has no name.
    fn check_names(&self, job: &Job, conflicts: &mut Vec<Conflict>) {
        for (number, table) in job.tables.iter().enumerate() {
            let name = table.name();
            let named = self.specs.iter().filter(|spec| spec.name == name).count();
            if named > 1 {
                let message = format!("the table of column {name} already has this name");
                conflicts.push(Conflict::new(format!("table.{number}.name"), message));
            }
        }
    }
}

/// Checks that the columns of a `[[table]]` exist, and that a row has the same meaning in all of them.
fn check_table(number: usize, table: &job::Table, schema: &Schema, conflicts: &mut Vec<Conflict>) {
    let names: Vec<_> = schema.categorical.iter().map(|column| column.name.as_str()).collect();
    let mut conflict = |message| conflicts.push(Conflict::new(format!("table.{number}.columns"), message));
    let mut first: Option<&Categorical> = None;
    for name in &table.columns {
        let Some(column) = schema.categorical.iter().find(|column| column.name == *name) else {
            let what = if schema.names().any(|other| other == name) {
                "is not categorical"
            } else {
                "does not exist"
            };
            let known = known(name, "the categorical columns are", &names);
            conflict(format!("the column `{name}` {what}{known}"));
            continue;
        };
        let Some(first) = first else {
            first = Some(column);
            continue;
        };
        if let (Some(rows), Some(other_rows)) = (first.rows, column.rows)
            && rows != other_rows
            && table.rows.is_none()
        {
            conflict(format!(
                "the columns {} and {name} cannot share a table: they have {rows} and {other_rows} rows. Convert them \
                 with one vocabulary (kind \"shared\"), or hash both to the same number of rows",
                first.name
            ));
        } else if !share_meaning(first, column) {
            conflict(format!(
                "the columns {} and {name} cannot share a table: each has its own vocabulary, so a row means \
                 different categories. Convert them with one vocabulary (kind \"shared\"), or hash both",
                first.name
            ));
        }
    }
}

/// Checks that no ids of a sequence may be removed from their bags because a table is full.
fn check_skipping(
    number: usize,
    (job, table): (&Job, &job::Table),
    schema: &Schema,
    conflicts: &mut Vec<Conflict>,
) {
    let skips = Eviction::None { if_full: IfFull::Skip };
    if job.dynamic_rows(table).is_none_or(|rows| rows.evict != skips) {
        return;
    }
    let mut columns = table.columns.iter();
    if let Some((column, sequence)) = columns.find_map(|column| Some((column, schema.sequence_of(column)?))) {
        let message = format!(
            "ids of column {column} cannot be skipped when the table is full: it is part of the sequence {}, whose \
             columns have the same number of ids. Set ids_out_of_range = \"oov\" for this [[table]], or another evict",
            sequence.name
        );
        conflicts.push(Conflict::new(format!("table.{number}.rows.evict"), message));
    }
}

/// The conflict of a column whose ids are keys and whose table does not give rows to keys.
fn without_rows(column: &Categorical) -> Conflict {
    let name = &column.name;
    let message = format!(
        "column {name} has an open vocabulary: its ids are keys, and only a dynamic table gives rows to keys. Add a \
         [[table]] with columns = [\"{name}\"] and rows = {{ dynamic = true, capacity = \"1M\" }}, with a capacity \
         for the keys that it is to hold at a time"
    );
    Conflict::new("table", message)
}

/// Whether a row number means the same category in two columns with equally many rows.
fn share_meaning(a: &Categorical, b: &Categorical) -> bool {
    match (&a.vocabulary, &b.vocabulary) {
        (VocabularyKind::Hash, VocabularyKind::Hash)
        | (VocabularyKind::Open, VocabularyKind::Open)
        | (VocabularyKind::Identity, VocabularyKind::Identity) => true,
        (VocabularyKind::Exact { .. }, VocabularyKind::Exact { .. }) => owner(a) == owner(b),
        (VocabularyKind::Buckets { boundaries: a, .. }, VocabularyKind::Buckets { boundaries: b, .. }) => {
            a == b
        }
        _ => false,
    }
}

/// The column whose vocabulary a column uses.
fn owner(column: &Categorical) -> &str {
    column.shares.as_ref().unwrap_or(&column.name)
}

/// The name that was probably meant, or else all names, after `list`. It is appended to a message.
fn known(word: &str, list: &str, names: &[&str]) -> String {
    match nearest(word, names.iter().copied()) {
        Some(name) => format!(": did you mean `{name}`?"),
        None if names.is_empty() => "; the dataset has none".into(),
        None => format!("; {list}: `{}`", names.join("`, `")),
    }
}

#[cfg(test)]
mod tests {
    use rankine_reader::schema::{Dense, DenseDtype, DenseFunction, DenseTransform, Hotness, Label};

    use rankine_embedding::UpdateRule;

    use super::*;

    const JOB: &str = r#"
        name = "test"
        data.dir = "data"
        model = { kind = "dcnv2", embedding_dim = 4, bottom_mlp = [8], cross_layers = 2, cross_rank = 3, top_mlp = [5] }
        optimizer.dense = { kind = "momentum", learning_rate = 0.5, weight_decay = 0.25 }
        optimizer.sparse = { kind = "adagrad", learning_rate = 0.125, epsilon = 1e-3 }
        train.batch_size = 8
    "#;

    /// Two dense columns, two labels, and columns with rows 10, 20, 10 (hashed), 10 (a vocabulary).
    fn schema() -> Schema {
        let label = |name: &str| Label::new(name);
        let dense =
            |name: &str| Dense { name: name.into(), transform: DenseTransform::plain(DenseFunction::None) };
        let mut categorical: Vec<_> = [("ad", 10), ("user", 20), ("shown", 10), ("city", 10)]
            .map(|(name, rows)| Categorical {
                name: name.into(),
                rows: Some(rows),
                hotness: Hotness::Fixed(1),
                pooling: schema::Pooling::Sum,
                vocabulary: VocabularyKind::Hash,
                weighted: false,
                shares: None,
            })
            .into();
        categorical[2].pooling = schema::Pooling::Mean;
        categorical[3].vocabulary = VocabularyKind::Exact { min_count: 1 };
        Schema {
            labels: vec![label("click"), label("buy")],
            weight: None,
            dense: vec![dense("age"), dense("price")],
            dense_dtype: DenseDtype::F32,
            sequences: Vec::new(),
            categorical,
        }
    }

    fn job(lines: &str, sets: &[&str]) -> Job {
        Job::from_toml("job.toml", &format!("{JOB}{lines}"), sets).unwrap()
    }

    #[test]
    fn every_kind_becomes_its_parts() {
        let sizes = "embedding_dim = 4, bottom_mlp = [4], top_mlp = [5]";
        let part = |kind: &str| {
            let model = format!("model={{ kind = '{kind}', {sizes} }}");
            let rules::Model { spec, .. } = translate(&job("", &[&model]), &schema()).unwrap();
            assert_eq!(
                (spec.dense_columns, &spec.bottom_mlp[..], &spec.top_mlp[..]),
                (2, &[4][..], &[5][..])
            );
            (spec.interaction, spec.wide)
        };
        assert_eq!(part("dlrm"), (Interaction::Dot, false));
        assert_eq!(part("deepfm"), (Interaction::FactorizationMachine, true));
        assert_eq!(part("wide-deep"), (Interaction::Concat, true));
        let rules::Model { spec, rules } = translate(&job("", &[]), &schema()).unwrap();
        assert_eq!(spec.interaction, Interaction::Cross { layers: 2, rank: Some(3) });
        let heads: Vec<_> =
            spec.heads.iter().map(|head| (head.label.as_str(), head.label_number, head.weight)).collect();
        assert_eq!(heads, [("click", 0, 1.0), ("buy", 1, 1.0)]);
        let rule = UpdateRule::Momentum { momentum: 0.9, nesterov: false };
        assert_eq!(rules.dense, Optimizer { rule, learning_rate: 0.5, weight_decay: 0.25 });
        let rule = UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 1e-3 };
        let sparse = Optimizer { rule, learning_rate: 0.125, weight_decay: 0.0 };
        assert_eq!((rules.tables, rules.wide, rules.dense_clip_norm), (vec![sparse; 4], sparse, None));
    }

    #[test]
    fn positions_are_counted_from_the_end_that_the_sequence_keeps() {
        let lines = "[[attention]]\nkind = \"din\"\nsequence = \"seen\"\nquery = [\"ad\"]\n";
        let sequence = |max, keep| {
            let mut schema = schema();
            schema.categorical[2].hotness = Hotness::Ragged { max: 9 };
            let (name, columns) = ("seen".into(), vec!["shown".into()]);
            schema.sequences = vec![schema::Sequence { name, columns, max, keep }];
            schema
        };
        let positions = "attention.0.position_embedding=true";
        for keep in [schema::Keep::First, schema::Keep::Last] {
            let of = |sets: &[&str]| {
                let mut spec = translate(&job(lines, sets), &sequence(9, keep)).unwrap().spec;
                spec.attention.remove(0)
            };
            assert_eq!((of(&[]).position_embedding, of(&[]).length_max), (None, 9));
            assert_eq!(of(&[positions]).position_embedding, Some(keep));
        }
        let sets = [positions, "model.embedding_dim=1025"];
        let refused = translate(&job(lines, &sets), &sequence(65_536, schema::Keep::Last)).unwrap_err();
        let [Conflict { key, message }] = &refused[..] else { panic!("{refused:?}") };
        assert_eq!(key, "attention.0.position_embedding");
        assert!(message.contains("65536 positions of 1025 elements are too large"), "{message}");
    }

    #[test]
    fn tables_are_shared_and_have_rules_of_their_own() {
        let lines = r#"
            [[table]]
            columns = ["shown", "ad"]
            dim = 6
            learning_rate_factor = 0.5
            [[table]]
            columns = ["city"]
            name = "town"
            optimizer = { kind = "adam", learning_rate = 2, beta1 = 0.5, beta2 = 0.75 }
            learning_rate_factor = 0.25
            [[head]]
            label = "buy"
            weight = 3
        "#;
        let sets = [
            "optimizer.wide={ kind = 'ftrl', learning_rate = 1, beta = 0.25, l1 = 0.5 }",
            "model.kind=wide-deep",
        ];
        let text = JOB.replace(", cross_layers = 2, cross_rank = 3", "");
        let job = Job::from_toml("job.toml", &format!("{text}{lines}"), &sets).unwrap();
        let model = translate(&job, &schema()).unwrap();
        let rules::Model { spec, rules } = &model;
        let tables: Vec<_> =
            spec.tables.iter().map(|table| (table.name.as_str(), table.rows, table.dim)).collect();
        assert_eq!(tables, [("shown+ad", 10, 6), ("user", 20, 4), ("town", 10, 4)]);
        let features: Vec<_> = spec
            .features
            .iter()
            .map(|feature| (feature.column.as_str(), feature.table, feature.pooling))
            .collect();
        let sum = Pooling::Sum;
        assert_eq!(
            features,
            [("ad", 0, sum), ("user", 1, sum), ("shown", 0, Pooling::Mean), ("city", 2, sum)]
        );
        let rates: Vec<_> = rules.tables.iter().map(|rule| rule.learning_rate).collect();
        assert_eq!(rates, [0.0625, 0.125, 0.5]);
        assert_eq!(rules.tables[2].rule, UpdateRule::Adam { beta1: 0.5, beta2: 0.75, epsilon: 1e-8 });
        assert_eq!(rules.wide.rule, UpdateRule::Ftrl { beta: 0.25, l1: 0.5, l2: 0.0 });
        let heads: Vec<_> = spec.heads.iter().map(|head| (head.label_number, head.weight)).collect();
        assert_eq!(heads, [(1, 3.0)]);
        // Adagrad keeps one value per element and Adam two; the wide part's tables have one value per row, and FTRL
        // keeps two; strides are multiples of 16 bytes.
        let bytes = |rows: u64, numbers: u64| rows * (4 * numbers).next_multiple_of(16);
        let expected = bytes(10, 12) + bytes(20, 8) + bytes(10, 12) + bytes(10 + 20 + 10 + 10, 3);
        assert_eq!(model.table_bytes(), expected);
    }

    /// Each setting of an optimizer has a different value here, and all are exact in single precision.
    #[test]
    fn optimizers_keep_their_settings() {
        let rule = |text: &str| {
            let set = format!("optimizer.sparse={{ learning_rate = 0.5, weight_decay = 0.25, {text} }}");
            let rules::Model { rules, .. } = translate(&job("", &[&set]), &schema()).unwrap();
            let Optimizer { rule, learning_rate, weight_decay } = rules.tables[0];
            assert_eq!((learning_rate, weight_decay), (0.5, 0.25));
            rule
        };
        let (initial_accumulator, epsilon) = (0.75, 0.125);
        let settings = "initial_accumulator = 0.75, epsilon = 0.125";
        assert_eq!(rule("kind = 'sgd'"), UpdateRule::Sgd);
        for nesterov in [false, true] {
            let momentum = UpdateRule::Momentum { momentum: 0.875, nesterov };
            assert_eq!(
                rule(&format!("kind = 'momentum', momentum = 0.875, nesterov = {nesterov}")),
                momentum
            );
        }
        let adagrad = UpdateRule::Adagrad { initial_accumulator, epsilon };
        assert_eq!(rule(&format!("kind = 'adagrad', {settings}")), adagrad);
        let rowwise = UpdateRule::RowwiseAdagrad { initial_accumulator, epsilon };
        assert_eq!(rule(&format!("kind = 'rowwise-adagrad', {settings}")), rowwise);
        let adam = UpdateRule::Adam { beta1: 0.5, beta2: 0.75, epsilon };
        assert_eq!(rule("kind = 'adam', beta1 = 0.5, beta2 = 0.75, epsilon = 0.125"), adam);
        let ftrl = UpdateRule::Ftrl { beta: 2.0, l1: 0.5, l2: 0.75 };
        assert_eq!(rule("kind = 'ftrl', beta = 2, l1 = 0.5, l2 = 0.75"), ftrl);
        let rules::Model { rules, .. } =
            translate(&job("", &["optimizer.dense_clip_norm=0.75"]), &schema()).unwrap();
        assert_eq!(rules.dense_clip_norm, Some(0.75));
    }

    #[test]
    fn columns_of_one_vocabulary_share_a_table() {
        let mut schema = schema();
        let job = job("[[table]]\ncolumns = [\"city\", \"shown\"]", &[]);
        schema.categorical[2].vocabulary = VocabularyKind::Exact { min_count: 1 };
        assert!(translate(&job, &schema).is_err());
        schema.categorical[2].shares = Some("city".into());
        assert_eq!(translate(&job, &schema).unwrap().spec.tables.len(), 3);
        // Without a [[table]], they share a vocabulary and have one table each.
        assert_eq!(translate(&self::job("", &[]), &schema).unwrap().spec.tables.len(), 4);
        // A vocabulary of a third column will do.
        schema.categorical[2].shares = Some("ad".into());
        schema.categorical[3].shares = Some("ad".into());
        assert_eq!(translate(&job, &schema).unwrap().spec.tables.len(), 3);
    }

    #[test]
    fn what_does_not_suit_the_columns_is_named() {
        let refused = |lines: &str, sets: &[&str], expected: &str| {
            let conflicts = translate(&job(lines, sets), &schema()).unwrap_err();
            let told: Vec<_> = conflicts.iter().map(ToString::to_string).collect();
            assert!(told.iter().any(|told| told.contains(expected)), "{expected}\n{told:?}");
        };
        let table = |columns: &str, expected: &str| {
            refused(&format!("[[table]]\ncolumns = {columns}"), &[], expected);
        };
        table(r#"["usr"]"#, "table.0.columns: the column `usr` does not exist: did you mean `user`?");
        table(
            r#"["price"]"#,
            "the column `price` is not categorical; the categorical columns are: `ad`, `user`, `shown`, `city`",
        );
        table(r#"["ad", "user"]"#, "the columns ad and user cannot share a table: they have 10 and 20 rows");
        table(r#"["ad", "city"]"#, "each has its own vocabulary");
        refused(
            "[[table]]\ncolumns = [\"ad\"]\nname = \"user\"",
            &[],
            "table.0.name: the table of column user already has this name",
        );
        refused(
            "[[head]]\nlabel = \"clik\"",
            &[],
            "head.0.label: the dataset has no label `clik`: did you mean `click`?",
        );
        let model = "model={ kind = 'dlrm', embedding_dim = 4, top_mlp = [5] }";
        refused(
            "",
            &[model],
            "the dataset has 2 dense columns, so dlrm needs a bottom MLP: [64, 4], for example",
        );

        let mut narrow = schema();
        narrow.dense.clear();
        narrow.categorical.truncate(1);
        let conflicts = |sets: &[&str], schema: &Schema| {
            let conflicts = translate(&job("", sets), schema).unwrap_err();
            conflicts.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert!(
            conflicts(&[model], &narrow)
                .contains("model.kind: the dataset has too few columns: dlrm needs two")
        );
        let told = conflicts(&[], &narrow);
        assert_eq!(told, "model.bottom_mlp: the dataset has no dense columns: remove the bottom MLP");
        narrow.categorical.clear();
        assert!(conflicts(&["model.bottom_mlp=[]"], &narrow).contains("no columns to learn from"));

        let mut open = schema();
        (open.categorical[1].rows, open.categorical[1].vocabulary) = (None, VocabularyKind::Open);
        let told = conflicts(&[], &open);
        assert!(told.starts_with("table: column user has an open vocabulary"), "{told}");
        assert!(told.contains("columns = [\"user\"] and rows = { dynamic = true"), "{told}");
        let told = conflicts(&["table=[{ columns = ['user', 'ad'] }]"], &open);
        assert!(told.contains("user and ad cannot share a table: each has its own vocabulary"), "{told}");
        (open.categorical[0].rows, open.categorical[0].vocabulary) = (None, VocabularyKind::Open);
        let told = conflicts(&["table=[{ columns = ['user', 'ad'] }]"], &open);
        assert!(!told.contains("cannot share a table"), "{told}");
    }
}
