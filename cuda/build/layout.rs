//! Asserts that each parameter of a kernel has the same layout in Rust and in CUDA.
//!
//! Every `repr(C)` struct of src/kernels is translated to C++: the same fields in the same order, with pointers as
//! `void*`. For `src/kernels/NAME.rs` nvcc reads one file that includes `kernels/NAME.cu` (or all headers if there is
//! no such kernel) and asserts that each field has the same offset and size in both structs. Since it turns kernels
//! into functions that nothing calls, reading takes less than a second and compiles nothing.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::compile::Job;

/// Structs whose fields have no names in CUDA: pairs of words that kernels read as a `uint2`.
const VECTORS: [&str; 1] = ["Pair"];
/// Kernels become functions from which no code is made as long as nothing calls them.
const NO_CODE: &str = "
#undef __global__
#undef __launch_bounds__
#undef __cluster_dims__
#undef __grid_constant__
#define __global__ inline __device__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
";
/// `layout::cuda` returns a struct, or what a template makes of `float`.
const ASSERT: &str = "
namespace layout {
template <template <class> class Struct> Struct<float> cuda();
template <class Struct> Struct cuda();
}
#define SAME_STRUCT(S) static_assert(sizeof(decltype(layout::cuda<S>())) == sizeof(rust::S) && \\
    alignof(decltype(layout::cuda<S>())) == alignof(rust::S), #S \" has another size or alignment in Rust\");
#define SAME_FIELD(S, F) static_assert(offsetof(decltype(layout::cuda<S>()), F) == offsetof(rust::S, F) && \\
    sizeof(decltype(layout::cuda<S>())::F) == sizeof(rust::S::F), #S \".\" #F \" has another offset or size in Rust\");
";

/// A `repr(C)` struct in Rust.
struct Struct {
    align: Option<String>,
    /// Names and types.
    fields: Vec<(String, String)>,
}

/// The structs and constants of some Rust files.
#[derive(Default)]
struct Declarations {
    structs: HashMap<String, Struct>,
    lengths: HashMap<String, String>,
}

/// Writes the files to check, and returns the runs that check them.
pub(crate) fn checks(
    rust: &[PathBuf],
    kernels: &[PathBuf],
    headers: &[PathBuf],
    out: &Path,
) -> Result<Vec<Job>, String> {
    let out = out.join("layout");
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let mut all = Declarations::default();
    let files = rust.iter().map(|path| Ok((path, all.read(path)?))).collect::<Result<Vec<_>, String>>()?;
    let mut jobs = Vec::new();
    for (path, names) in files.iter().filter(|(_, names)| !names.is_empty()) {
        let stem = path.file_stem().ok_or("a file has a name")?;
        let included: Vec<_> = match kernels.iter().find(|kernel| kernel.file_stem() == Some(stem)) {
            Some(kernel) => vec![kernel.clone()],
            None => headers.to_vec(),
        };
        let source = out.join(stem).with_extension("cu");
        let text = all.check(path, names, &included)?;
        fs::write(&source, text).map_err(|error| format!("{}: {error}", source.display()))?;
        let arguments = ["-std=c++17", "-ptx", "-arch=sm_90a", "-I", "."].map(Into::into).into();
        jobs.push(Job { arguments, output: source.with_extension("ptx"), source, included });
    }
    Ok(jobs)
}

impl Declarations {
    /// Reads a Rust file, formatted by rustfmt. Returns the names of its structs.
    fn read(&mut self, path: &Path) -> Result<Vec<String>, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut names = Vec::new();
        let mut lines = text.lines().map(str::trim);
        while let Some(line) = lines.next() {
            let item = without_visibility(line);
            if let Some((name, length)) =
                item.strip_prefix("const ").and_then(|item| item.split_once(": usize = "))
                && length.trim_end_matches(';').parse::<usize>().is_ok()
            {
                self.lengths.insert(name.into(), length.trim_end_matches(';').into());
            }
            let Some(attribute) = line.strip_prefix("#[repr(C") else { continue };
            let align = attribute.split_once("align(").and_then(|(_, align)| align.split_once(')'));
            let head = lines.find(|line| !line.starts_with("#["));
            let head = head.map(without_visibility).and_then(|head| head.strip_prefix("struct "));
            let Some(head) = head.filter(|head| head.ends_with('{')) else { continue };
            let name = head.split(['<', ' ']).next().unwrap_or_default().to_owned();
            let fields = lines.by_ref().take_while(|line| *line != "}").filter_map(|line| {
                let (field, kind) = without_visibility(line).strip_suffix(',')?.split_once(": ")?;
                (!line.starts_with("//")).then(|| (field.to_owned(), kind.to_owned()))
            });
            let one = Struct { align: align.map(|(align, _)| align.into()), fields: fields.collect() };
            if self.structs.insert(name.clone(), one).is_some() {
                return Err(format!("{}: another file of src/kernels has a {name} too", path.display()));
            }
            if !VECTORS.contains(&name.as_str()) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// A file that asserts the layout of structs in files of CUDA.
    fn check(&self, rust: &Path, names: &[String], included: &[PathBuf]) -> Result<String, String> {
        let mut text = format!("// {}\n#include <cstddef>\n#include <cstdint>{NO_CODE}", rust.display());
        for path in included {
            writeln!(text, "#include \"{}\"", path.display()).map_err(|error| error.to_string())?;
        }
        text.push_str(ASSERT);
        text.push_str("namespace rust {\n");
        let mut written = Vec::new();
        for name in names {
            self.translate(name, &mut written, &mut text)
                .map_err(|error| format!("{}: {name}{error}", rust.display()))?;
        }
        text.push_str("}\n");
        for name in names {
            text.push_str(&format!("SAME_STRUCT({name})\n"));
            for (field, _) in &self.structs[name].fields {
                text.push_str(&format!("SAME_FIELD({name}, {field})\n"));
            }
        }
        Ok(text)
    }

    /// Writes a struct in C++, after those that it contains.
    fn translate(&self, name: &str, written: &mut Vec<String>, text: &mut String) -> Result<(), String> {
        if written.iter().any(|before| before == name) {
            return Ok(());
        }
        let Struct { align, fields } = self.structs.get(name).ok_or(": no such struct")?;
        let mut body = String::new();
        for (field, kind) in fields {
            let (mut kind, mut declared) = (kind.as_str(), field.clone());
            while let Some((element, length)) = kind
                .strip_prefix('[')
                .and_then(|array| array.strip_suffix(']'))
                .and_then(|array| array.rsplit_once("; "))
            {
                let named = length.rsplit("::").next().and_then(|name| self.lengths.get(name));
                declared.push_str(&format!("[{}]", named.map_or(length, String::as_str)));
                kind = element;
            }
            let element = match kind {
                "f32" => "float",
                "f64" => "double",
                "u8" => "uint8_t",
                "u32" => "uint32_t",
                "u64" => "uint64_t",
                pointer if pointer.starts_with("Pointer<") => "void*",
                other => {
                    // The element type only changes what pointers point to.
                    let other = other.split_once('<').map_or(other, |(name, _)| name);
                    self.translate(other, written, text)
                        .map_err(|error| format!(".{field}: {other}{error}"))?;
                    other
                }
            };
            body.push_str(&format!("    {element} {declared};\n"));
        }
        let align = align.as_ref().map_or(String::new(), |align| format!("alignas({align}) "));
        text.push_str(&format!("struct {align}{name} {{\n{body}}};\n"));
        written.push(name.into());
        Ok(())
    }
}

fn without_visibility(item: &str) -> &str {
    let Some(rest) = item.strip_prefix("pub") else { return item };
    match rest.strip_prefix('(').and_then(|rest| rest.split_once(") ")) {
        Some((_, rest)) => rest,
        None => rest.trim_start(),
    }
}
