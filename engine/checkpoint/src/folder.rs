//! The checkpoints of a run: which exist, which one is the latest intact one, and which may be removed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::IoContext;
use super::files::Files;
use super::{Checkpoint, CheckpointError, step_name};

/// The suffix of a folder that is incomplete, or is being removed.
pub(super) const PARTIAL: &str = ".partial";
/// The suffix of a checkpoint that was found to be damaged.
const DAMAGED: &str = ".damaged";

/// A checkpoint that cannot be used.
#[derive(Debug)]
pub struct DamagedCheckpoint {
    /// Its step.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// Why.
    pub why: CheckpointError,
}

/// The checkpoints in a folder by their names, the latest first; their contents are not checked.
///
/// # Errors
/// [`CheckpointError::Io`].
pub fn list(files: &dyn Files, dir: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let names = files.names(dir).context("read", dir)?;
    let steps = names.iter().filter_map(|name| {
        let step = name.strip_prefix("step-")?.parse().ok()?;
        // One spelling per step.
        (*name == step_name(step)).then_some(step)
    });
    let mut steps: Vec<u64> = steps.collect();
    steps.sort_unstable_by(|one, other| other.cmp(one));
    Ok(steps.into_iter().map(|step| (step, dir.join(step_name(step)))).collect())
}

/// The latest good checkpoint, whose checksums were all verified, and the damaged ones after it, each with the
/// reason. `None` if there is no checkpoint at all. Nothing is changed.
///
/// A checkpoint is damaged only if bytes were read and are wrong. If reading fails, if a file that a manifest names
/// is missing, or if another version of Rankine wrote it, the checkpoint may be good, and skipping it would lose the
/// steps since the one before.
///
/// # Errors
/// [`CheckpointError::Unreadable`] if it cannot be determined whether a checkpoint is good;
/// [`CheckpointError::NoneUsable`] if there are checkpoints, including those that were set aside before, and none is
/// good; [`CheckpointError::Io`] if the folder itself cannot be read.
pub fn latest(
    files: &Arc<dyn Files>,
    dir: &Path,
) -> Result<(Option<Checkpoint>, Vec<DamagedCheckpoint>), CheckpointError> {
    let mut damaged = Vec::new();
    for (step, path) in list(&**files, dir)? {
        match open_intact(files, &path, step) {
            Ok(checkpoint) => return Ok((Some(checkpoint), damaged)),
            Err(why) if why.is_damage() => damaged.push(DamagedCheckpoint { step, path, why }),
            Err(why) => return Err(CheckpointError::Unreadable { path, why: Box::new(why) }),
        }
    }
    let aside = leftovers(&**files, dir)?.damaged;
    if damaged.is_empty() && aside.is_empty() {
        return Ok((None, damaged));
    }
    let set_aside = aside.iter().map(|path| format!("{} was found to be damaged before", path.display()));
    let found = damaged.iter().map(|damaged| damaged.why.to_string()).chain(set_aside).collect();
    Err(CheckpointError::NoneUsable { dir: dir.to_owned(), found })
}

/// Opens the checkpoint of a step at a path, and verifies all of its checksums.
///
/// # Errors
/// Those of [`Checkpoint::open`] and [`Checkpoint::verify`]; [`CheckpointError::Damaged`] also if it is the checkpoint
/// of another step.
pub fn open_intact(files: &Arc<dyn Files>, path: &Path, step: u64) -> Result<Checkpoint, CheckpointError> {
    let checkpoint = Checkpoint::open(files, path)?;
    if checkpoint.manifest().train.step != step {
        return Err(CheckpointError::damaged(path, "it is the checkpoint of another step"));
    }
    checkpoint.verify()?;
    Ok(checkpoint)
}

/// Entries of a checkpoints folder that are not checkpoints.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Folders `step-N.partial` of processes that ended while they wrote or removed a checkpoint.
    pub partial: Vec<PathBuf>,
    /// Damaged checkpoints that were set aside.
    pub damaged: Vec<PathBuf>,
}

/// Finds entries that are not checkpoints, in the order of names.
///
/// # Errors
/// [`CheckpointError::Io`].
pub fn leftovers(files: &dyn Files, dir: &Path) -> Result<Leftovers, CheckpointError> {
    let mut names = files.names(dir).context("read", dir)?;
    names.sort_unstable();
    let mut found = Leftovers::default();
    for name in names {
        let Some((step, rest)) = name.strip_prefix("step-").and_then(|name| name.split_once('.')) else {
            continue;
        };
        if step.parse::<u64>().is_err() {
            continue;
        }
        let number = rest.strip_prefix(&DAMAGED[1..]);
        if rest == &PARTIAL[1..] {
            found.partial.push(dir.join(&name));
        } else if number.is_some_and(|number| number.is_empty() || number.starts_with('-')) {
            found.damaged.push(dir.join(&name));
        }
    }
    Ok(found)
}

/// Renames a damaged checkpoint, so that a new one of the same step can be saved.
///
/// # Errors
/// [`CheckpointError::Io`].
pub fn set_aside(files: &dyn Files, dir: &Path, step: u64) -> Result<PathBuf, CheckpointError> {
    let path = dir.join(step_name(step));
    let names: BTreeSet<_> = files.names(dir).context("read", dir)?.into_iter().collect();
    let numbered = (2..).map(|number| format!("{}{DAMAGED}-{number}", step_name(step)));
    let name = std::iter::once(format!("{}{DAMAGED}", step_name(step)))
        .chain(numbered)
        .find(|name| !names.contains(name))
        .expect("numbers do not run out");
    let aside = dir.join(name);
    files.rename(&path, &aside).context("rename", &path)?;
    files.sync_dir(dir).context("sync", dir)?;
    Ok(aside)
}

/// The other checkpoints that a checkpoint needs, by their steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// The full checkpoint that it builds on; `None` if it is full itself.
    pub base: Option<u64>,
    /// The best evaluation before it: a training that resumes from it may end with that model.
    pub best: Option<u64>,
    /// Those whose weights are averaged with its own, if its model is that of the run.
    pub averaged: Vec<u64>,
}

/// Removes all but the latest `keep` checkpoints and those that kept ones need. `needs` returns what a checkpoint
/// needs; if that is unknown (`None`), everything older is kept. Each is renamed first, so that none is ever half
/// removed.
///
/// # Errors
/// [`CheckpointError::Io`]; those that are to be kept are intact then, too.
pub fn prune(
    files: &dyn Files,
    dir: &Path,
    keep: usize,
    needs: impl Fn(u64) -> Option<Needs>,
) -> Result<(), CheckpointError> {
    let all: Vec<_> = list(files, dir)?.into_iter().map(|(step, _)| step).collect();
    let mut kept: BTreeSet<u64> = all.iter().copied().take(keep).collect();
    // The run may end with the model of any of these or their best ones, averaged with others, each stored on a base.
    let relations: [fn(Needs) -> Vec<u64>; 3] = [
        |needs| needs.best.into_iter().collect(),
        |needs| needs.averaged,
        |needs| needs.base.into_iter().collect(),
    ];
    for relation in relations {
        let older = |step: u64| all.iter().copied().filter(move |&older| older < step).collect();
        let needed = kept.iter().flat_map(|&step| needs(step).map_or_else(|| older(step), relation));
        let needed: Vec<_> = needed.collect();
        kept.extend(needed);
    }
    for step in all.into_iter().filter(|step| !kept.contains(step)) {
        let (path, going) = (dir.join(step_name(step)), dir.join(format!("{}{PARTIAL}", step_name(step))));
        if files.names(dir).context("read", dir)?.contains(&format!("{}{PARTIAL}", step_name(step))) {
            files.remove_dir(&going).context("remove", &going)?;
        }
        files.rename(&path, &going).context("rename", &path)?;
        // Otherwise a power failure could bring back its name without its files.
        files.sync_dir(dir).context("sync", dir)?;
        files.remove_dir(&going).context("remove", &going)?;
    }
    Ok(())
}
