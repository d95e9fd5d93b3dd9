//! Jobs with attention on a dataset with sequences: interrupted and resumed, also on other devices, and averaged.

use std::fs;

use libtest_mimic::Failed;
use rankine_reader::convert::{ConvertOptions, SchemaFile, convert_csv};
use tempfile::TempDir;

use crate::resume::{job_averages_weights, job_goes_on_to_the_bit, job_is_for_any_ranks};
use crate::{Body, Words};

pub(super) const BODIES: &[Body] = &[
    ("a_training_with_attention_goes_on_to_the_bit", 1, |_, _| job_goes_on_to_the_bit(folder, 1, 1)),
    ("ranks_with_attention_go_on_to_the_bit", 1, |_, _| job_goes_on_to_the_bit(folder, 3, 1)),
    ("weights_of_attention_are_averaged", 1, |_, _| job_averages_weights(folder, 1, 1)),
    ("a_checkpoint_with_attention_is_for_any_ranks_and_devices", 1, |_, _| {
        job_is_for_any_ranks(folder, &[])?;
        job_is_for_any_ranks(folder, &["device.ranks=4", "embedding.placement=hybrid"])
    }),
];

const JOB: &str = r#"
name = "clicks"
[data]
dir = "DIR/data"
[model]
kind = "dlrm"
embedding_dim = 16
bottom_mlp = [32, 16]
top_mlp = [48, 32]
[[attention]]
kind = "din"
sequence = "clicks"
query = ["item", "shop"]
hidden = [36]
position_embedding = true
[[attention]]
kind = "dot"
sequence = "views"
query = ["item"]
[[table]]
columns = ["item", "items", "viewed"]
[[table]]
columns = ["shop", "shops"]
[optimizer.dense]
kind = "adam"
learning_rate = 0.001
[optimizer.sparse]
kind = "adagrad"
learning_rate = 0.05
[train]
batch_size = 100
log_every_steps = 7
[checkpoint]
every_steps = 15
incremental = true
[device]
kind = "cuda"
"#;
const SCHEMA: &str = r#"
[label]
column = "click"
[[dense]]
column = "age"
[[categorical]]
column = "item"
vocabulary = { kind = "hash", rows = 500 }
[[categorical]]
column = "shop"
vocabulary = { kind = "hash", rows = 30 }
[[categorical]]
column = "items"
separator = "|"
vocabulary = { kind = "hash", rows = 500 }
[[categorical]]
column = "shops"
separator = "|"
vocabulary = { kind = "hash", rows = 30 }
[[categorical]]
column = "viewed"
separator = "|"
vocabulary = { kind = "hash", rows = 500 }
[[sequence]]
name = "clicks"
columns = ["items", "shops"]
max = 7
[[sequence]]
name = "views"
columns = ["viewed"]
max = 20
"#;

/// Rows with a click if the item's kind, its remainder by 5, was clicked in a shop with an even number.
fn rows(words: &mut Words, count: usize) -> String {
    let mut text = "click,age,item,shop,items,shops,viewed\n".to_owned();
    for _ in 0..count {
        let item = words.below(400);
        let length = words.below(8);
        let items: Vec<_> = (0..length).map(|_| words.below(400)).collect();
        let shops: Vec<_> = items.iter().map(|_| words.below(20)).collect();
        let viewed: Vec<_> = (0..words.below(21)).map(|_| words.below(400)).collect();
        let is_liked = items.iter().zip(&shops).any(|(other, shop)| other % 5 == item % 5 && shop % 2 == 0);
        let click = u8::from(is_liked || words.below(5) == 0);
        let joined =
            |numbers: &[u64]| numbers.iter().map(|number| format!("n{number}")).collect::<Vec<_>>().join("|");
        let (age, shop) = (words.below(60), words.below(20));
        let (items, shops, viewed) = (joined(&items), joined(&shops), joined(&viewed));
        text += &format!("{click},{age}.5,n{item},n{shop},{items},{shops},{viewed}\n");
    }
    text
}

/// A folder with a job and its dataset, which is always the same.
fn folder() -> Result<TempDir, Failed> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let mut words = Words { seed: 7, next: 0 };
    fs::write(path("job.toml"), JOB.replace("DIR", &folder.path().display().to_string()))?;
    fs::write(path("schema.toml"), SCHEMA)?;
    fs::write(path("log.csv"), rows(&mut words, 6000))?;
    fs::write(path("eval.csv"), rows(&mut words, 500))?;
    let options = ConvertOptions {
        eval: vec![path("eval.csv")],
        ..ConvertOptions::new(vec![path("log.csv")], path("data"))
    };
    convert_csv(&options, &SchemaFile::load(&path("schema.toml"))?, 1, &())?;
    Ok(folder)
}
