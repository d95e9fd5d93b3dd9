//! Models of PyTorch: the imported run has the outputs of the original model, computed here as its source does.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::collections::BTreeMap;
use std::fs;

use rankine_engine::ranker::{Features, Ids, Ranker};
use serde_json::json;

use crate::support::{BAD_DATA, Place, SUCCESS, USAGE, numbers, run};

const DIM: usize = 3;
const ROWS: [usize; 3] = [5, 4, 3];
const BOTTOM: [usize; 3] = [2, 4, DIM];
/// Three numbers and six pairs of four vectors.
const TOP: [usize; 4] = [9, 6, 5, 1];

/// A tensor: its shape and elements.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The names of an implementation, and the order of its pairs.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Reference,
    TorchRec,
}

impl Kind {
    fn table(self, number: usize) -> String {
        match self {
            Self::Reference => format!("emb_l.{number}"),
            Self::TorchRec => {
                format!(
                    "model.sparse_arch.embedding_bag_collection.embedding_bags.t_{}",
                    ["a", "b", "c"][number]
                )
            }
        }
    }

    fn bottom(self, layer: usize) -> String {
        match self {
            Self::Reference => format!("bot_l.{}", 2 * layer),
            Self::TorchRec => format!("model.dense_arch.model._mlp.{layer}._linear"),
        }
    }

    fn top(self, layer: usize) -> String {
        match (self, layer) {
            (Self::Reference, _) => format!("top_l.{}", 2 * layer),
            (Self::TorchRec, 2) => "model.over_arch.model.1".into(),
            (Self::TorchRec, _) => format!("model.over_arch.model.0._mlp.{layer}._linear"),
        }
    }

    /// The reference takes the lower triangle row by row, and TorchRec the upper one.
    fn pairs(self) -> Vec<(usize, usize)> {
        match self {
            Self::Reference => (0..4).flat_map(|i| (0..i).map(move |j| (i, j))).collect(),
            Self::TorchRec => (0..4).flat_map(|i| (i + 1..4).map(move |j| (i, j))).collect(),
        }
    }

    fn tensors(self) -> Tensors {
        let mut next = numbers(9);
        let mut tensors = Tensors::new();
        let mut add = |name: String, shape: &[usize]| {
            let element = |_| ((next() % 2001) as f32 / 1000.0 - 1.0) * 0.8;
            let elements = (0..shape.iter().product::<usize>()).map(element).collect();
            tensors.insert(name, (shape.to_vec(), elements));
        };
        for (number, rows) in ROWS.into_iter().enumerate() {
            add(format!("{}.weight", self.table(number)), &[rows, DIM]);
        }
        for layer in 0..2 {
            add(format!("{}.weight", self.bottom(layer)), &[BOTTOM[layer + 1], BOTTOM[layer]]);
            add(format!("{}.bias", self.bottom(layer)), &[BOTTOM[layer + 1]]);
        }
        for layer in 0..3 {
            add(format!("{}.weight", self.top(layer)), &[TOP[layer + 1], TOP[layer]]);
            add(format!("{}.bias", self.top(layer)), &[TOP[layer + 1]]);
        }
        tensors
    }

    /// The probability of a row, in double precision.
    fn forward(self, tensors: &Tensors, dense: [f32; 2], ids: [usize; 3]) -> f64 {
        let linear = |name: &str, x: &[f64]| -> Vec<f64> {
            let weight = &tensors[&format!("{name}.weight")].1;
            let bias = &tensors[&format!("{name}.bias")].1;
            let row = |(weights, &bias): (&[f32], &f32)| {
                f64::from(bias) + weights.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum::<f64>()
            };
            weight.chunks(x.len()).zip(bias).map(row).collect()
        };
        let relu = |x: Vec<f64>| x.into_iter().map(|x| x.max(0.0)).collect::<Vec<_>>();
        let bottom =
            (0..2).fold(dense.map(f64::from).to_vec(), |x, layer| relu(linear(&self.bottom(layer), &x)));
        let mut vectors = vec![bottom];
        for (number, id) in ids.into_iter().enumerate() {
            let table = &tensors[&format!("{}.weight", self.table(number))].1;
            vectors.push(table[id * DIM..][..DIM].iter().map(|&x| f64::from(x)).collect());
        }
        let product =
            |(i, j): (usize, usize)| vectors[i].iter().zip(&vectors[j]).map(|(x, y)| x * y).sum::<f64>();
        let mut x = vectors[0].clone();
        x.extend(self.pairs().into_iter().map(product));
        for layer in 0..2 {
            x = relu(linear(&self.top(layer), &x));
        }
        1.0 / (1.0 + (-linear(&self.top(2), &x)[0]).exp())
    }
}

/// The bytes of a safetensors file.
fn safetensors(tensors: &Tensors, dtype: &str) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (shape, elements)) in tensors {
        let begin = data.len();
        elements.iter().for_each(|element| data.extend(element.to_le_bytes()));
        let info = json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()] });
        header.insert(name.clone(), info);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// A place with a dataset `data` of the columns.
fn place() -> Place {
    let place = Place::new();
    let mut schema =
        "[label]\ncolumn = \"l\"\n[[dense]]\ncolumn = \"x\"\n[[dense]]\ncolumn = \"y\"\n".to_owned();
    for (name, rows) in ["a", "b", "c"].into_iter().zip(ROWS) {
        schema += &format!(
            "[[categorical]]\ncolumn = \"{name}\"\nvocabulary = {{ kind = \"identity\", rows = {rows} }}\n"
        );
    }
    let mut next = numbers(4);
    let row = |_| {
        format!(
            "{},{}.5,{},{},{},{}\n",
            next() % 2,
            next() % 3,
            next() % 2,
            next() % 5,
            next() % 4,
            next() % 3
        )
    };
    let rows: String = (0..200).map(row).collect();
    let csv = place.file("rows.csv", format!("l,x,y,a,b,c\n{rows}"));
    let schema = place.file("schema.toml", schema);
    let args =
        ["convert", "csv", &csv, "--schema", &schema, "--split", "last:0.5", "--out", &place.word("data")];
    run(args).with(SUCCESS);
    place
}

fn import(place: &Place, weights: &[u8], out: &str) -> crate::support::Ended {
    let weights = place.file("weights.safetensors", weights);
    run(["import", &weights, "--like", &place.word("data"), "--out", &place.word(out)])
}

#[test]
fn an_imported_run_has_the_outputs_of_the_original_and_continues() {
    let place = place();
    for (kind, out, said) in [
        (Kind::Reference, "reference", "imported the reference DLRM, 164 parameters"),
        (Kind::TorchRec, "torchrec", "imported TorchRec's DLRM, 164 parameters"),
    ] {
        let tensors = kind.tensors();
        import(&place, &safetensors(&tensors, "F32"), out).with(SUCCESS).stdout_says(said);
        let ranker = Ranker::load(place.path(out)).unwrap();
        let (mut differences, mut largest) = (0, 0.0f64);
        for a in 0..5 {
            for b in 0..4 {
                for c in 0..3 {
                    let dense = [a as f32 - 1.5, 0.25 * c as f32 + 0.5];
                    let ids = [a, b, c].map(|id: usize| [id as u64]);
                    let columns = [Ids::Fixed(&ids[0]), Ids::Fixed(&ids[1]), Ids::Fixed(&ids[2])];
                    let mut score = [0.0];
                    let features = Features { rows: 1, dense: &dense, categorical: &columns };
                    ranker.score(&features, &mut score).unwrap();
                    // Some thirty roundings by 2^-24 of sums whose terms are below 10.
                    largest = largest.max((score[0] - kind.forward(&tensors, dense, [a, b, c])).abs());
                    let other = if kind == Kind::Reference { Kind::TorchRec } else { Kind::Reference };
                    let renamed = renamed(&tensors, kind, other);
                    differences +=
                        usize::from((score[0] - other.forward(&renamed, dense, [a, b, c])).abs() > 1e-3);
                }
            }
        }
        assert!(largest < 1e-5, "{out}: {largest}");
        assert!(differences > 10, "{out}: another order of pairs would go unnoticed");
        let dir = place.word(out);
        let evaluated = run(["eval", "--run", &dir, "--json"]).with(SUCCESS).json();
        assert_eq!(evaluated["samples"], 100);
        run(["export", &dir, "--format", "onnx", "--out", &place.word(&format!("{out}-onnx"))]).with(SUCCESS);
        let job = place.word(&format!("{out}/job.toml"));
        let sets = [format!("train.init_from={dir:?}"), "train.batch_size=16".into()];
        let resume = ["train", &job, "--resume", "--run-dir", &dir];
        run(resume).with(USAGE).says(&["is an imported model", "with train.init_from set to this run"]);
        let continued = place.word(&format!("{out}-continued"));
        let args = ["train", &job, "--quiet", "--run-dir", &continued, "--set", &sets[0], "--set", &sets[1]];
        run(args).with(SUCCESS);
    }
    // TorchRec's own example names tables by number.
    let renamed = |(name, tensor): (String, (Vec<usize>, Vec<f32>))| {
        let name = name.replace("t_a", "t_cat_0").replace("t_b", "t_cat_1").replace("t_c.", "t_cat_2.");
        (name.replacen("model.", "", 1), tensor)
    };
    let numbered = Kind::TorchRec.tensors().into_iter().map(renamed).collect();
    import(&place, &safetensors(&numbered, "F32"), "numbered").with(SUCCESS);
    let weights = |run: &str| fs::read(place.path(run).join("model/model.safetensors")).unwrap();
    assert!(weights("numbered") == weights("torchrec"));
}

/// The same tensors under the names of another implementation.
fn renamed(tensors: &Tensors, from: Kind, to: Kind) -> Tensors {
    let mut names: Vec<_> = (0..3).map(|number| (from.table(number), to.table(number))).collect();
    names.extend((0..2).map(|layer| (from.bottom(layer), to.bottom(layer))));
    names.extend((0..3).map(|layer| (from.top(layer), to.top(layer))));
    let find = |name: &str| {
        let (part, kind) = name.rsplit_once('.').unwrap();
        let (_, to) = names.iter().find(|(from, _)| from == part).unwrap();
        format!("{to}.{kind}")
    };
    tensors.iter().map(|(name, tensor)| (find(name), tensor.clone())).collect()
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let place = place();
    let refused = |change: &dyn Fn(&mut Tensors), words: &[&str]| {
        let mut tensors = Kind::Reference.tensors();
        change(&mut tensors);
        import(&place, &safetensors(&tensors, "F32"), "refused").with(USAGE).says(words);
        assert!(!place.path("refused").exists());
    };
    let matrix = |shape: [usize; 2]| (shape.to_vec(), vec![0.5; shape[0] * shape[1]]);
    refused(
        &|tensors| drop(tensors.remove("emb_l.1.weight")),
        &["no tensor emb_l.1.weight, the table of column b"],
    );
    refused(
        &|tensors| drop(tensors.remove("top_l.2.bias")),
        &["no tensor top_l.2.bias, which its other tensors need"],
    );
    refused(&|tensors| drop(tensors.remove("bot_l.0.weight")), &["no tensor bot_l.0.weight"]);
    refused(
        &|tensors| drop(tensors.insert("emb_l.0.weight".into(), matrix([7, DIM]))),
        &["emb_l.0.weight is [7, 3], but the model of the dataset needs [5, 3]: column a has 5 rows"],
    );
    refused(
        &|tensors| drop(tensors.insert("bot_l.0.weight".into(), matrix([4, 13]))),
        &["bot_l.0.weight is [4, 13]", "needs [4, 2]: it has 2 dense columns"],
    );
    refused(
        &|tensors| drop(tensors.insert("emb_l.3.weight".into(), matrix([7, DIM]))),
        &["emb_l.3.weight is not part of a model of the dataset's 3 categorical columns"],
    );
    refused(
        &|tensors| drop(tensors.insert("optimizer.lr".into(), matrix([1, 1]))),
        &["the tensor optimizer.lr is not part of the reference DLRM; remove it"],
    );
    refused(
        &|tensors| drop(tensors.insert("over_arch.model.1.weight".into(), matrix([1, 5]))),
        &["the tensor over_arch.model.1.weight is not part of the reference DLRM"],
    );
    let mut torchrec = Kind::TorchRec.tensors();
    torchrec.insert("bot_l.0.weight".into(), matrix([4, 2]));
    import(&place, &safetensors(&torchrec, "F32"), "refused")
        .with(USAGE)
        .says(&["the tensor bot_l.0.weight is not part of TorchRec's DLRM"]);
    let tensors = Kind::Reference.tensors();
    import(&place, &safetensors(&tensors, "I32"), "refused")
        .with(USAGE)
        .says(&["elements of type I32", "tensor.float()"]);
    for damaged in [&b"not tensors"[..], &safetensors(&tensors, "F32")[..900], b""] {
        import(&place, damaged, "refused").with(BAD_DATA).says(&["is not a safetensors file", "save_file"]);
    }
    let mut infinite = tensors;
    infinite.get_mut("top_l.0.bias").unwrap().1[2] = f32::INFINITY;
    import(&place, &safetensors(&infinite, "F32"), "refused").says(&["top.0.bias has non-finite values"]);
    assert!(!place.path("refused").exists());
}
