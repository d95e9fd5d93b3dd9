//! Clicks of users who come and go, and a job with dynamic tables.

use super::{Place, SUCCESS, numbers, run};

const SCHEMA: &str = "\
[label]
column = \"click\"

[[categorical]]
column = \"user\"
vocabulary = { kind = \"open\" }

[[categorical]]
column = \"items\"
separator = \"|\"
vocabulary = { kind = \"open\" }

[[categorical]]
column = \"day\"
vocabulary = { kind = \"identity\", rows = 7 }
";

/// Rows of users who come and go: most samples are of 30 users, who change with time.
pub(crate) fn rows(count: u64, seed: u64, first_user: u64) -> String {
    let mut next = numbers(seed);
    let mut text = String::from("click,user,items,day\n");
    for number in 0..count {
        let user = first_user + number / 200 + next() % 30;
        let items: Vec<_> = (0..next() % 4).map(|_| format!("i{}", next() % 50)).collect();
        // What a user does depends on who it is.
        let click = user.is_multiple_of(3) || next().is_multiple_of(20);
        text += &format!("{},user number {user},{},{}\n", u64::from(click), items.join("|"), number % 7);
    }
    text
}

/// A place with a dataset `data`, and the path of a job on it.
pub(crate) fn place() -> (Place, String) {
    let place = Place::new();
    let (train, eval) = (place.file("train.csv", rows(6000, 1, 0)), place.file("eval.csv", rows(600, 2, 27)));
    let (schema, data) = (place.file("schema.toml", SCHEMA), place.word("data"));
    run(["convert", "csv", &train, "--eval", &eval, "--schema", &schema, "--out", &data]).with(SUCCESS);
    let text = format!(
        "\
name = \"small\"
data.dir = {data:?}
model = {{ kind = \"wide-deep\", embedding_dim = 4, top_mlp = [16] }}
optimizer.dense = {{ kind = \"adagrad\", learning_rate = 0.05 }}
optimizer.sparse = {{ kind = \"adagrad\", learning_rate = 0.1 }}
train = {{ batch_size = 64, shuffle = false, log_every_steps = 5 }}
checkpoint = {{ every_steps = 20, incremental = true, keep = 20 }}
[[table]]
columns = [\"user\"]
rows = {{ dynamic = true, capacity = 45, admit_after = 2 }}
[[table]]
columns = [\"items\"]
rows = {{ capacity = \"1k\", evict = \"none\" }}
"
    );
    let job = place.file("job.toml", text);
    (place, job)
}
