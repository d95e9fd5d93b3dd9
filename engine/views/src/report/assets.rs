//! The files of the page that shows a training, live or in a report.
//!
//! They load nothing from other hosts. uPlot 1.6.32 draws the curves: `page/uplot.js` and `page/uplot.css` are
//! `uPlot.iife.min.js` and `uPlot.min.css` of its package on npm, unchanged.

/// A file of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asset {
    /// The path of its URL, as other files of the page name it; empty for the page itself.
    pub name: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Its content.
    pub text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// The page, which names the others.
pub const PAGE: Asset = Asset { name: "", content_type: HTML, text: include_str!("page/page.html") };

/// The icon.
pub const ICON: Asset =
    Asset { name: "icon.svg", content_type: "image/svg+xml", text: include_str!("page/icon.svg") };

/// The style sheets, in the page's order.
pub const STYLES: [Asset; 2] = [
    Asset { name: "uplot.css", content_type: CSS, text: include_str!("page/uplot.css") },
    Asset { name: "page.css", content_type: CSS, text: include_str!("page/page.css") },
];

/// The scripts, in the page's order.
pub const SCRIPTS: [Asset; 3] = [
    Asset {
        name: "uplot.js",
        content_type: JAVASCRIPT,
        // Its licence must be in every copy.
        text: concat!("/*\n", include_str!("page/uplot.LICENSE"), "*/\n", include_str!("page/uplot.js")),
    },
    Asset { name: "charts.js", content_type: JAVASCRIPT, text: include_str!("page/charts.js") },
    Asset { name: "page.js", content_type: JAVASCRIPT, text: include_str!("page/page.js") },
];

/// Returns all files of the live page.
pub fn assets() -> impl Iterator<Item = Asset> {
    [PAGE, ICON].into_iter().chain(STYLES).chain(SCRIPTS)
}
