//! Where a training starts.

/// Where a training starts in its run folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Start {
    /// At step 0, in a new folder.
    #[default]
    New,
    /// In an existing or new run folder, from its latest intact checkpoint, or at step 0 if there is none. If the run
    /// is finished and is what the job asks for, its summary is returned and nothing is done.
    Resume,
    /// In an existing or new run folder, at step 0. Its contents are moved to a folder `before-restart` in it.
    Restart,
}
