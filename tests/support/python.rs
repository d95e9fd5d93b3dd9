//! Runs the Python scripts of the documents.

use std::fs;
use std::process::Command;

/// Returns whether Python with NumPy is installed. If not, it reports that the test is skipped.
pub(crate) fn has_numpy() -> bool {
    let imported = Command::new("python3").args(["-c", "import numpy"]).output();
    let has = imported.is_ok_and(|python| python.status.success());
    if !has {
        super::skipped("Python with NumPy is not installed");
    }
    has
}

/// Returns the Python script of `docs/reference/checkpoint-format.md` that contains these words.
pub(crate) fn documented(words: &str) -> String {
    let path = super::root().join("docs/reference/checkpoint-format.md");
    let document = fs::read_to_string(path).expect("the document exists");
    let scripts = document.split("```python\n").skip(1).filter_map(|rest| rest.split("```").next());
    let script = scripts.into_iter().find(|script| script.contains(words));
    script.expect("the document has the script").to_owned()
}
