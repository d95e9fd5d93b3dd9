//! Datasets whose manifest, index or files are not what was written, each with valid checksums.

use std::fs::OpenOptions;

use super::*;
use crate::block::{self, Block, BlockId};
use crate::tests::{self, TestDataset};

/// 1000 samples in 16 blocks for training, and 100 in two blocks for evaluation.
fn dataset() -> TestDataset {
    tests::dataset(1000, 64)
}

impl TestDataset {
    fn manifest(&self) -> Manifest {
        Dataset::open(&self.dir()).unwrap().manifest().unwrap().clone()
    }

    fn seal(&self, manifest: &Manifest) {
        fs::write(self.dir().join(MANIFEST_NAME), manifest.to_json()).unwrap();
    }

    /// Writes a changed index for training with a valid checksum, and returns the error of opening the part.
    fn with_index(&self, change: impl FnOnce(&mut Vec<u8>)) -> String {
        let path = self.dir().join("train").join(INDEX_NAME);
        let (whole, manifest) = (fs::read(&path).unwrap(), self.manifest());
        let (mut index, mut changed) = (whole.clone(), manifest.clone());
        change(&mut index);
        fs::write(&path, &index).unwrap();
        changed.parts.get_mut(&Part::Train).unwrap().index_xxh3 = Checksum::of(&index);
        self.seal(&changed);
        let error = self.refusal();
        fs::write(&path, whole).unwrap();
        self.seal(&manifest);
        error
    }

    /// Returns the error of opening the training part.
    fn refusal(&self) -> String {
        Dataset::open(&self.dir()).unwrap().part(Part::Train).unwrap_err().to_string()
    }
}

#[test]
fn names_stay_below_the_folder() {
    assert!(is_below("00000.blocks") && is_below("vocabulary/C1.tsv"));
    for name in ["", "/etc/passwd", "../other", "train/../../x", "./x"] {
        assert!(!is_below(name), "{name}");
    }
}

#[test]
fn an_invalid_manifest_is_refused_despite_a_valid_checksum() {
    let dataset = dataset();
    let good = dataset.manifest();
    type Change = fn(&mut Manifest);
    let changes: [(Change, &str); 4] = [
        (|manifest| manifest.schema.labels.clear(), "no label column"),
        (|manifest| manifest.block_samples = 0, "its blocks have no samples"),
        (
            |manifest| manifest.files[0].name = "../statistics.bin".into(),
            "is not inside the dataset's folder",
        ),
        (
            |manifest| manifest.parts.get_mut(&Part::Eval).unwrap().blocks[0].name = "/dev/null".into(),
            "\"/dev/null\" is not inside",
        ),
    ];
    for (change, what) in changes {
        let mut manifest = good.clone();
        change(&mut manifest);
        dataset.seal(&manifest);
        let error = Dataset::open(&dataset.dir()).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error:?}");
        assert!(error.to_string().contains(what), "{error}");
    }
    dataset.seal(&good);
    Dataset::open(&dataset.dir()).unwrap();
}

#[test]
fn folders_without_a_dataset_are_distinguished() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let error = || Dataset::open(&dir).unwrap_err().to_string();
    assert!(!Dataset::exists(&dir));
    assert!(error().contains("the folder does not exist"), "{}", error());
    fs::create_dir(&dir).unwrap();
    assert!(error().contains("has no dataset.json"), "{}", error());
    fs::create_dir(home.path().join("data.partial")).unwrap();
    assert!(error().contains("has not finished"), "{}", error());
}

#[test]
fn a_dataset_returns_what_its_manifest_holds() {
    let dataset = dataset();
    let mut manifest = dataset.manifest();
    let Origin::Generated(generation) = &mut manifest.origin else { panic!("{:?}", manifest.origin) };
    generation.auc_achievable = Some(0.75);
    dataset.seal(&manifest);
    let opened = Dataset::open(&dataset.dir()).unwrap();
    assert!(Dataset::exists(&dataset.dir()));
    assert_eq!((opened.samples(Part::Train), opened.samples(Part::Eval)), (1000, 100));
    assert_eq!(opened.parts(), [Part::Train, Part::Eval]);
    assert_eq!(opened.auc_achievable(), Some(0.75));
    assert_eq!(opened.row_format(), None, "no rows were read");
    assert_eq!(opened.files().iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), ["statistics.bin"]);
    assert_eq!((opened.dir(), opened.schema()), (dataset.dir().as_path(), &dataset.schema));
    assert_eq!([0, 1, 2, 255].map(Part::from_code), [Some(Part::Train), Some(Part::Eval), None, None]);
    // The tag depends on the schema: after renaming a column, blocks belong to another dataset.
    let mut other = dataset.schema.clone();
    assert_eq!(Manifest::tag(&other), Manifest::tag(&dataset.schema));
    other.dense[0].name.push('x');
    assert_ne!(Manifest::tag(&other), Manifest::tag(&dataset.schema));
    manifest.parts.remove(&Part::Eval);
    dataset.seal(&manifest);
    let opened = Dataset::open(&dataset.dir()).unwrap();
    assert_eq!(opened.samples(Part::Eval), 0);
    assert!(opened.part(Part::Eval).unwrap_err().to_string().contains("has no eval part"));
}

#[test]
fn raw_files_become_the_parts_they_are_passed_for() {
    let home = tempfile::tempdir().unwrap();
    let format = RawFormat::new(crate::generate::Shape::load("dlrm").unwrap());
    let file = |name: &str, records: usize| {
        let path = home.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, vec![0; 160 * records]).unwrap();
        path
    };
    let (train, eval, empty) = (file("a/train", 3), file("b/eval", 2), file("empty", 0));
    let opened = Dataset::raw(&format, std::slice::from_ref(&train), std::slice::from_ref(&eval)).unwrap();
    assert_eq!((opened.samples(Part::Train), opened.samples(Part::Eval)), (3, 2));
    assert_eq!(opened.dir(), home.path().join("a"));
    assert_eq!(opened.row_format(), Some(RowFormat::HugectrRaw(format.clone())));
    let refused = |train: &[PathBuf]| Dataset::raw(&format, train, &[]).unwrap_err().to_string();
    assert!(refused(&[home.path().join("a")]).contains("is a folder, not a regular file"));
    assert!(refused(std::slice::from_ref(&empty)).contains("is empty"));
    let with_empty = Dataset::raw(&format, &[empty, train], &[]).unwrap();
    let part = with_empty.part(Part::Train).unwrap();
    assert_eq!((part.samples, part.blocks.len(), part.blocks[0].file), (3, 1, 1));
    assert!(with_empty.part(Part::Eval).unwrap_err().to_string().ends_with(": name its files"));
}

#[test]
fn files_of_blocks_have_the_length_that_was_written() {
    let dataset = dataset();
    let path = dataset.dir().join("train/00000.blocks");
    let bytes = fs::metadata(&path).unwrap().len();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for (other, at) in [(bytes - 1, bytes - 1), (bytes + 4096, bytes), (0, 0)] {
        file.set_len(other).unwrap();
        let error = Dataset::open(&dataset.dir()).unwrap().part(Part::Train).unwrap_err();
        assert!(matches!(error, Error::Damaged { offset, .. } if offset == Some(at)), "{error:?}");
        let error = error.to_string();
        assert!(error.contains(&format!("it has {other} bytes but should have {bytes}")), "{error}");
    }
}

#[test]
fn an_index_that_does_not_add_up_is_refused() {
    let dataset = dataset();
    let path = dataset.dir().join("train").join(INDEX_NAME);
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole.len(), 16 * 16);
    // A byte of a checksum, which no other check covers.
    let mut flipped = whole.clone();
    flipped[15 * 16 + 9] ^= 1;
    fs::write(&path, flipped).unwrap();
    assert!(dataset.refusal().contains("its checksum does not match dataset.json"));
    fs::write(&path, &whole).unwrap();

    let bytes = u32::from_le_bytes(whole[..4].try_into().unwrap());
    let put = |index: &mut Vec<u8>, bytes: u32| index[..4].copy_from_slice(&bytes.to_le_bytes());
    let refused = dataset.with_index(|index| put(index, 0));
    assert!(refused.contains("it lists block 0 with 0 bytes"), "{refused}");
    let refused = dataset.with_index(|index| put(index, bytes - 1));
    assert!(refused.contains("block sizes are multiples of 4096"), "{refused}");
    let refused = dataset.with_index(|index| put(index, bytes + 4096));
    assert!(refused.contains("do not sum to the file's length"), "{refused}");
    let refused = dataset.with_index(|index| index.truncate(15 * 16));
    assert!(refused.contains("do not sum to the file's length"), "{refused}");
    let refused = dataset.with_index(|index| index.truncate(15 * 16 + 1));
    assert!(refused.contains("its checksum"), "{refused}");
    let refused = dataset.with_index(|index| index.extend_from_within(..16));
    assert!(refused.contains("it lists 17 blocks, but 1000 samples make 16"), "{refused}");
    // The number of blocks that the manifest states, but samples for one block less.
    let mut manifest = dataset.manifest();
    manifest.parts.get_mut(&Part::Train).unwrap().samples = 960;
    dataset.seal(&manifest);
    assert!(dataset.refusal().contains("it lists 16 blocks, but 960 samples make 15"));
}

#[test]
fn statistics_of_other_tables_are_refused() {
    let dataset = dataset();
    let tables = Dataset::open(&dataset.dir()).unwrap().statistics().unwrap();
    let refused = |tables: &[TableStatistics]| {
        let bytes = statistics::to_bytes(tables);
        fs::write(dataset.dir().join(statistics::FILE_NAME), &bytes).unwrap();
        let mut manifest = dataset.manifest();
        (manifest.files[0].bytes, manifest.files[0].xxh3) = (bytes.len() as u64, Checksum::of(&bytes));
        dataset.seal(&manifest);
        Dataset::open(&dataset.dir()).unwrap().statistics().map(drop).map_err(|error| error.to_string())
    };
    for count in [2, 4] {
        let other: Vec<_> = tables.iter().cycle().take(count).cloned().collect();
        assert!(refused(&other).unwrap_err().contains("does not have one table per categorical column"));
    }
    let mut other = tables.clone();
    other[1].head[0].0 = 1000;
    assert!(refused(&other).unwrap_err().contains("counts row 1000 of column C1, which has 1000"));
    other[1].head[0].0 = 999;
    assert_eq!(refused(&other), Ok(()));
    // Look-ups of keys, which no row counts.
    let mut keys = tables.clone();
    keys[2] = TableStatistics { distinct_rows: 0, head: Vec::new(), ..keys[2].clone() };
    assert!(refused(&keys).unwrap_err().contains("does not count the rows of column C2"));
    let mut manifest = dataset.manifest();
    let column = &mut manifest.schema.categorical[2];
    (column.rows, column.vocabulary) = (None, crate::schema::VocabularyKind::Open);
    dataset.seal(&manifest);
    assert_eq!(refused(&keys), Ok(()));
    assert!(refused(&tables).unwrap_err().contains("counts rows of column C2, whose vocabulary is open"));
}

#[test]
fn a_file_outside_the_parts_is_checked_byte_by_byte() {
    let dataset = dataset();
    let path = dataset.dir().join("statistics.bin");
    let whole = fs::read(&path).unwrap();
    let opened = Dataset::open(&dataset.dir()).unwrap();
    assert_eq!(opened.checked_file("statistics.bin").unwrap(), whole);
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for bytes in [&flipped[..], &whole[..whole.len() - 1]] {
        fs::write(&path, bytes).unwrap();
        let error = opened.checked_file("statistics.bin").unwrap_err().to_string();
        assert!(error.contains("its checksum does not match dataset.json"), "{error}");
    }
    assert!(opened.checked_file("dataset.json").unwrap_err().to_string().contains("does not list"));
}

#[test]
fn a_block_from_another_position_is_refused() {
    let dataset = dataset();
    let part = Dataset::open(&dataset.dir()).unwrap().part(Part::Train).unwrap();
    let tag = Manifest::tag(&dataset.schema);
    let check = |id: BlockId, samples| {
        let bytes = block::encode(&dataset.schema, id, &dataset.samples.slice(0..samples)).unwrap();
        part.check_block(3, &Block::parse(&bytes, &dataset.schema).unwrap())
    };
    let right = BlockId { dataset: tag, part: Part::Train, index: 3 };
    assert_eq!(check(right, 64), Ok(()));
    for wrong in [
        BlockId { dataset: tag ^ 1, ..right },
        BlockId { part: Part::Eval, ..right },
        BlockId { index: 2, ..right },
    ] {
        assert!(check(wrong, 64).unwrap_err().what.contains("from another position"), "{wrong:?}");
    }
    for samples in [63, 65] {
        let what = format!("it has {samples} samples but should have 64");
        assert_eq!(check(right, samples), Err(what.into()));
    }
}

#[test]
fn buckets_are_computed_from_unpacked_numbers() {
    use crate::buckets::bucket;
    use crate::schema::{Categorical, Hotness, Pooling, VocabularyKind};
    use crate::{BatchStream, Order, StreamOptions};

    let folder = dataset();
    let boundaries = vec![100.0, 500.0, 501.0];
    let column = |name: &str, of: &str| Categorical {
        name: name.into(),
        rows: Some(9),
        hotness: Hotness::Fixed(1),
        pooling: Pooling::Sum,
        vocabulary: VocabularyKind::Buckets { of: of.into(), boundaries: boundaries.clone() },
        weighted: false,
        shares: None,
    };
    let plain = Dataset::open(&folder.dir()).unwrap();
    let dataset = plain.clone().with_buckets(&[column("hundreds", "number")]).unwrap();
    let part = dataset.part(Part::Train).unwrap();
    assert!(part.why_unpacked().is_some() && plain.part(Part::Train).unwrap().why_unpacked().is_none());
    for order in [Order::File, Order::Shuffled { seed: 1, window_blocks: 3 }] {
        let options = StreamOptions { order, ..StreamOptions::one_epoch(70) };
        for batch in BatchStream::open(part.clone(), &options).unwrap() {
            let samples = &batch.unwrap().samples;
            let expected = samples.dense.chunks(2).map(|row| bucket(&boundaries, row[0]));
            assert!(expected.eq(samples.categorical[3].ids.iter().copied()), "{order:?}");
            assert_eq!(samples.categorical[3].offsets.len(), samples.len + 1);
        }
    }
    // The columns of a model are added as far as there are numbers, and replaced by those of another one.
    assert_eq!(plain.clone().with_buckets_of(dataset.schema()).schema(), dataset.schema());
    assert_eq!(dataset.clone().with_buckets_of(plain.schema()).schema(), plain.schema());
    let mut other = dataset.schema().clone();
    other.categorical[3] = column("ages", "age");
    assert_eq!(plain.clone().with_buckets_of(&other).schema(), plain.schema());
    assert_eq!(dataset.statistics().unwrap().len(), 3);

    // A manifest lists no such column.
    let mut manifest = folder.manifest();
    manifest.schema = dataset.schema().clone();
    folder.seal(&manifest);
    let error = Dataset::open(&folder.dir()).unwrap_err().to_string();
    assert!(error.contains("which datasets do not store"), "{error}");
}
