//! What the tests of conversion draw from.

use crate::convert::CriteoColumns;
use crate::schema::{DenseDtype, Schema};

/// A row of the log.
pub(crate) const GOOD_LINE: &str = "0\t1\t1\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t2\t68fd1e64\t80e26c9b\t\
    fb936136\t7b4723c4\t25c83c98\t7e0ccccf\tde7995b8\t1f89b562\ta73ee510\ta8cd5504\tb2cb9c98\t37c9c164\t\
    2824a5f6\t1adce6ef\t8ba8b39a\t891b62e7\te5ba7672\tf54016b9\t21ddcdc9\tb1252a9d\t07b5194c\t\t3a171ecb\t\
    c5c50484\te8b83407\t9727dd16";

/// The schema of a conversion without options, its exact tables without rows yet.
pub(crate) fn schema() -> Schema {
    CriteoColumns::default().plan(DenseDtype::F16).draft
}

/// The line with another value in one of its fields.
pub(crate) fn with_field(line: &str, field: usize, value: &str) -> String {
    let mut fields: Vec<&str> = line.split('\t').collect();
    if let Some(old) = fields.get_mut(field) {
        *old = value;
    }
    fields.join("\t")
}
