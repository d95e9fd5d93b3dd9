//! The contents of raw files, which carry no checksum.
//!
//! The file system reports a file's length, inode and times at once. Its checksum requires reading the whole file; it
//! is computed while training runs, and checkpoints and the finished run record it as soon as it is known. A resumed
//! run needs it only if the file system reports that a file has changed since.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rankine_base::Stop;
use rankine_checkpoint::DataIdentity;
use rankine_reader::dataset::BlockCoding;
use rankine_reader::raw::{FileIdentity, RawContents, checksums};
use rankine_reader::{Dataset, Part};

use super::TrainingIdentity;
use crate::training::context::RunContext;
use crate::training::error::TrainError;
use crate::training::event::{Event, Observer};

/// Files of at most this many bytes in total are read before training starts, which takes a moment.
const AT_ONCE_BYTES: u64 = 256 << 20;

/// The identity of this run, with the contents of raw files as far as they are known.
pub(in crate::training) struct RunIdentity {
    trained: TrainingIdentity,
    /// The raw files of the training part.
    train: Vec<PathBuf>,
    /// Those of the evaluation part.
    eval: Vec<PathBuf>,
    /// All of these files, those of the training part first.
    seen: SeenFiles,
    reading: Option<ChecksumThread>,
}

/// How files that may have changed are read.
pub(in crate::training) struct ContentsCheck<'a> {
    pub(in crate::training) threads: usize,
    /// Ends it early, with [`TrainError::NotBegun`].
    pub(in crate::training) stop: &'a Stop,
    pub(in crate::training) observer: &'a mut dyn Observer,
}

/// The checksums, in the order of files; `None` if reading was stopped.
type Checksums = rankine_base::Result<Option<Vec<RawContents>>>;

/// Checksums that are being computed.
struct ChecksumThread {
    thread: Option<JoinHandle<Checksums>>,
    stop: Arc<AtomicBool>,
}

impl ChecksumThread {
    fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn join(mut self) -> Checksums {
        let Some(thread) = self.thread.take() else { return Ok(None) };
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for ChecksumThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl RunIdentity {
    /// What a job is to train. For raw files it records what the file system reports, and reads no byte of them.
    ///
    /// # Errors
    /// [`TrainError::Data`].
    pub(in crate::training) fn of(context: &RunContext<'_>) -> Result<Self, TrainError> {
        let mut trained = TrainingIdentity::of(context)?;
        let files = |part| raw_files(context.dataset, part);
        let (train, eval) = (files(Part::Train)?, files(Part::Eval)?);
        let contents = |paths: &[PathBuf]| {
            paths.iter().map(|path| RawContents::of(path)).collect::<rankine_base::Result<_>>()
        };
        trained.data.raw = contents(&train)?;
        if let Some(of_eval) = &mut trained.eval {
            of_eval.raw = contents(&eval)?;
        }
        let seen = SeenFiles::at(train.iter().chain(&eval))?;
        Ok(Self { trained, train, eval, seen, reading: None })
    }

    /// The first difference from what was trained before. Raw files that may have changed are read.
    ///
    /// # Errors
    /// [`TrainError::Data`] if a raw file cannot be read; [`TrainError::NotBegun`].
    pub(in crate::training) fn difference(
        &mut self,
        saved: &TrainingIdentity,
        check: &mut ContentsCheck<'_>,
    ) -> Result<Option<String>, TrainError> {
        if let Some(what) = saved.difference(&self.trained) {
            return Ok(Some(what));
        }
        let own = &mut self.trained.data;
        contents_difference(&saved.data, own, &self.train, check)
    }

    /// The same of the evaluation part.
    ///
    /// # Errors
    /// As [`RunIdentity::difference`].
    pub(in crate::training) fn eval_difference(
        &mut self,
        saved: &TrainingIdentity,
        check: &mut ContentsCheck<'_>,
    ) -> Result<Option<String>, TrainError> {
        let (saved, own) = match (&saved.eval, &mut self.trained.eval) {
            (None, None) => return Ok(None),
            (Some(_), None) => return Ok(Some("the evaluation part is missing; the run had one".into())),
            (None, Some(_)) => return Ok(Some("there is an evaluation part; the run had none".into())),
            (Some(saved), Some(own)) => (saved, own),
        };
        if let Some(what) = saved.difference(own) {
            return Ok(Some(format!("the evaluation part {what}")));
        }
        contents_difference(saved, own, &self.eval, check)
    }

    /// Starts to compute the checksums that are not known. Those of small files are known when this returns.
    pub(in crate::training) fn read(&mut self) {
        let TrainingIdentity { data, eval, .. } = &self.trained;
        let all = || data.raw.iter().chain(eval.iter().flat_map(|eval| &eval.raw));
        if all().all(|contents| contents.xxh3.is_some()) {
            return;
        }
        let bytes: u64 = all().map(|contents| contents.bytes).sum();
        let (stop, paths) = (Arc::<AtomicBool>::default(), [&self.train[..], &self.eval].concat());
        let stopped = Arc::clone(&stop);
        // One thread leaves the CPU, the disk and the network to training.
        let read = move || checksums(&paths, 1, &mut |_, _| !stopped.load(Ordering::Relaxed));
        let thread = thread::Builder::new().name("rankine-checksum".into()).spawn(read);
        match thread {
            Ok(thread) => self.reading = Some(ChecksumThread { thread: Some(thread), stop }),
            Err(error) => {
                tracing::warn!("cannot compute checksums of raw files: cannot start a thread: {error}")
            }
        }
        if bytes <= AT_ONCE_BYTES {
            self.take(true);
        }
    }

    /// What is trained, as far as it is known now. Warns of raw files that changed since the last call.
    pub(in crate::training) fn known(&mut self) -> &TrainingIdentity {
        self.take(false);
        for path in self.seen.newly_changed() {
            tracing::warn!(
                "{} changed while training reads it: the model may have been trained on a mixture of old and new \
                 samples; train again",
                path.display()
            );
        }
        &self.trained
    }

    /// Records the checksums, once they are known.
    fn take(&mut self, waits: bool) {
        let Some(reading) = self.reading.take_if(|reading| waits || reading.is_finished()) else {
            return;
        };
        match reading.join() {
            Ok(Some(read)) => {
                let TrainingIdentity { data, eval, .. } = &mut self.trained;
                let files = data.raw.iter_mut().chain(eval.iter_mut().flat_map(|eval| &mut eval.raw));
                for ((known, read), (_, seen)) in files.zip(read).zip(&self.seen.0) {
                    // Training may have used parts of another file, which this checksum would not cover.
                    let is_seen = seen.is_some_and(|seen| read.stamp == Some(seen.stamp()));
                    if known.bytes == read.bytes && is_seen {
                        known.xxh3 = read.xxh3;
                    }
                }
            }
            Ok(None) => {}
            // Training reads these files itself, and fails if it cannot.
            Err(error) => tracing::warn!(
                "checkpoints have no checksum of raw files, so --resume will refuse files whose times have changed: \
                 {error}"
            ),
        }
    }
}

/// Raw files as they were when training began; `None` once a change of the file was reported.
struct SeenFiles(Vec<(PathBuf, Option<FileIdentity>)>);

impl SeenFiles {
    fn at<'p>(paths: impl Iterator<Item = &'p PathBuf>) -> rankine_base::Result<Self> {
        let seen = paths.map(|path| Ok((path.clone(), Some(FileIdentity::at(path)?))));
        seen.collect::<rankine_base::Result<_>>().map(Self)
    }

    /// The files that were written or replaced since, each once.
    fn newly_changed(&mut self) -> impl Iterator<Item = &Path> {
        self.0.iter_mut().filter_map(|(path, seen)| {
            let now = FileIdentity::at(path).ok();
            seen.take_if(|seen| now != Some(*seen)).map(|_| &**path)
        })
    }
}

/// How the contents of raw files differ from what was read before. Reads those that may have changed; their checksums
/// are known afterwards.
fn contents_difference(
    saved: &DataIdentity,
    own: &mut DataIdentity,
    paths: &[PathBuf],
    ContentsCheck { threads, stop, observer }: &mut ContentsCheck<'_>,
) -> Result<Option<String>, TrainError> {
    if saved.raw.is_empty() && !own.raw.is_empty() {
        tracing::warn!(
            "this run was started by an earlier version of Rankine, which did not record the contents of raw files: \
             cannot check that they are unchanged"
        );
        return Ok(None);
    }
    if saved.raw.len() != own.raw.len() {
        return Ok(Some(format!("there are {} raw files; the run had {}", own.raw.len(), saved.raw.len())));
    }
    let pairs = || saved.raw.iter().zip(paths).enumerate();
    let unsure: Vec<_> =
        pairs().filter(|(number, (saved, _))| saved.is_same(&own.raw[*number]).is_none()).collect();
    if let Some((_, (_, path))) = unsure.iter().find(|(_, (saved, _))| saved.xxh3.is_none()) {
        return Ok(Some(format!(
            "{} may have changed: its times differ, and its checksum was not known yet when the checkpoint was \
             saved",
            path.display()
        )));
    }
    let to_read: Vec<_> = unsure.iter().map(|(_, (_, path))| (*path).clone()).collect();
    let read = checksums(&to_read, *threads, &mut |bytes, total| {
        observer.observe(Event::Checksumming { bytes, total });
        stop.asked().is_none()
    })?;
    if let Some(cause) = stop.asked() {
        return Err(TrainError::NotBegun { cause });
    }
    for ((number, _), read) in unsure.iter().zip(read.into_iter().flatten()) {
        own.raw[*number].xxh3 = read.xxh3;
    }
    for (number, (saved, path)) in pairs() {
        let own = &mut own.raw[number];
        if saved.is_same(own) != Some(true) {
            return Ok(Some(format!("{} differs from the file that was read", path.display())));
        }
        own.xxh3 = own.xxh3.or(saved.xxh3);
    }
    Ok(None)
}

/// The raw files of a part; empty if it is packed or absent.
fn raw_files(dataset: &Dataset, part: Part) -> Result<Vec<PathBuf>, TrainError> {
    if !dataset.parts().contains(&part) {
        return Ok(Vec::new());
    }
    let part = dataset.part(part)?;
    Ok(match part.coding {
        BlockCoding::Records(_) => part.files,
        BlockCoding::Packed { .. } => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant, SystemTime};

    use rankine_base::sealed::Checksum;

    use super::*;

    fn identity(raw: Vec<RawContents>) -> DataIdentity {
        let (samples, block_samples, vocabularies) = (1, 1, Vec::new());
        DataIdentity { samples, block_samples, schema: Checksum(0), blocks: Checksum(0), vocabularies, raw }
    }

    /// The message about a file that was seen before and is there now.
    fn said(saved: RawContents, own: RawContents, path: &Path) -> (Option<String>, Option<Checksum>) {
        let mut own = identity(vec![own]);
        let check = &mut ContentsCheck { threads: 2, stop: &Stop::default(), observer: &mut () };
        let what = contents_difference(&identity(vec![saved]), &mut own, &[path.into()], check);
        (what.expect("the file can be read"), own.raw[0].xxh3)
    }

    /// The contents of a file that was written long ago.
    fn seen(path: &Path) -> RawContents {
        let contents = checksums(&[path.into()], 1, &mut |_, _| true);
        contents.expect("the file can be read").expect("nobody ends it")[0]
    }

    #[test]
    fn checksums_can_be_taken_when_all_are_computed() {
        let (release, awaits) = channel::<()>();
        let compute = move || {
            let _ = awaits.recv();
            Ok(Some(Vec::new()))
        };
        let reading = ChecksumThread { thread: Some(thread::spawn(compute)), stop: Arc::default() };
        assert!(!reading.is_finished());
        drop(release);
        let begun = Instant::now();
        while !reading.is_finished() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the thread has ended");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(reading.join().is_ok_and(|checksums| checksums.is_some()));
    }

    #[test]
    fn a_file_that_changes_during_training_is_reported_once() {
        let place = tempfile::tempdir().expect("there is room");
        let paths = ["written", "replaced", "removed", "unchanged"].map(|name| place.path().join(name));
        for path in &paths {
            fs::write(path, [1; 100]).expect("the file is written");
            let file = fs::File::options().write(true).open(path);
            // The clock may not advance before the file is written again.
            file.and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)).expect("its time can be set");
        }
        let mut seen = SeenFiles::at(paths.iter()).expect("the files are there");
        assert_eq!(seen.newly_changed().count(), 0);
        fs::write(&paths[0], [2; 100]).expect("the file is written");
        fs::write(place.path().join("new"), [1; 100]).expect("the file is written");
        fs::rename(place.path().join("new"), &paths[1]).expect("it is renamed");
        fs::remove_file(&paths[2]).expect("the file is there");
        assert_eq!(seen.newly_changed().collect::<Vec<_>>(), paths[..3].iter().collect::<Vec<_>>());
        assert_eq!(seen.newly_changed().count(), 0);
    }

    #[test]
    fn a_file_is_read_only_where_it_may_have_changed() {
        let place = tempfile::tempdir().expect("there is room");
        let path = place.path().join("records");
        fs::write(&path, [1; 1000]).expect("the file is written");
        let first = seen(&path);
        let without_sum = RawContents { xxh3: None, ..first };
        // The stamp proves that it is unchanged: opening the file at this path would be an error.
        let nowhere = place.path().join("nowhere");
        assert_eq!(said(first, without_sum, &nowhere), (None, first.xxh3));
        assert_eq!(said(without_sum, without_sum, &nowhere), (None, None));
        // Written again with the same bytes, then with others.
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (byte, words) in [(1, None), (2, Some("differs from the file"))] {
            fs::remove_file(&path).expect("the file is there");
            fs::write(&path, [byte; 1000]).expect("the file is written");
            fs::File::options()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_modified(long_ago))
                .expect("its time can be set");
            let own = RawContents { xxh3: None, ..seen(&path) };
            assert_ne!(own.stamp, first.stamp);
            let (what, sum) = said(first, own, &path);
            assert_eq!(what.is_some(), words.is_some(), "{what:?}");
            assert!(what.is_none_or(|what| words.is_some_and(|words| what.contains(words))));
            assert_eq!(sum == first.xxh3, words.is_none());
            // Without a checksum of the old contents, nothing proves that they are the same.
            let (what, _) = said(without_sum, own, &path);
            assert!(what.is_some_and(|what| what.contains("its checksum was not known yet")));
        }
    }
}
