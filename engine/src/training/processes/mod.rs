//! The processes that train together: which ranks each one has, whether they have the same job and data, and the
//! heartbeat of long work.

mod agreement;
mod assignment;
mod heartbeat;
mod run_path;

pub(super) use agreement::same_everywhere;
pub(super) use assignment::RankAssignment;
pub(super) use heartbeat::with_heartbeat;
pub(super) use run_path::path_of_first;
