//! The effective job: every setting written out, including defaults.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

use super::attention::{Attention, DinAttention, DotAttention, MeanAttention};
use super::dynamic::TableRows;
use super::model::{Head, Model, ModelParts, OwnKey, Table};
use super::optimizer::{Optimizer, Optimizers};
use super::schedule::{Cosine, Schedule, Step, WarmupPolynomial};
use super::values::{Count, Folders, Width};
use super::{
    Average, AverageKind, CacheFolder, Checkpoint, Data, DataCache, Device, Dtype, EarlyStopping, Embedding,
    Eval, EvalSet, Exchange, Feature, Generate, Guard, IdPolicy, Job, Metrics, Network, Placement, Precision,
    Raw, Reader, Train,
};

impl Job {
    /// Returns the job as TOML with all defaults. It loads back to an equal job, so that a run can be repeated from the
    /// copy in its folder, even by a version with other defaults.
    ///
    /// Paths that are not Unicode are written with replacement characters.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        write_job(&mut text, self).expect("a string takes whatever is written");
        text
    }
}

// Every struct is destructured in full, so that a new field that is not written does not compile.

fn write_job(out: &mut String, job: &Job) -> fmt::Result {
    let Job {
        name,
        seed,
        data,
        model,
        features,
        attention,
        tables,
        heads,
        embedding,
        optimizer,
        train,
        eval,
        checkpoint,
        guard,
        reader,
        device,
        network,
        metrics,
    } = job;
    writeln!(out, "# The effective job, with every default filled in.")?;
    writeln!(out, "name = {}", quoted(name.as_str()))?;
    writeln!(out, "seed = {seed}")?;
    write_data(out, data)?;
    write_model(out, model)?;
    features.iter().try_for_each(|feature| write_feature(out, feature))?;
    attention.iter().try_for_each(|attention| write_attention(out, attention))?;
    tables.iter().try_for_each(|table| write_table(out, table))?;
    heads.iter().try_for_each(|head| write_head(out, head))?;
    write_embedding(out, embedding)?;
    write_optimizers(out, optimizer)?;
    write_train(out, train)?;
    write_eval(out, eval)?;
    write_checkpoint(out, checkpoint)?;
    write_guard(out, guard)?;
    let Reader { mode, queue_depth } = reader;
    writeln!(out, "\n[reader]\nmode = \"{}\"\nqueue_depth = {queue_depth}", mode.name())?;
    let Device {
        kind,
        precision,
        tune,
        tuning,
        machine,
        threads,
        ranks,
        nodes,
        dense_update,
        bind,
        feed,
        copies,
    } = device;
    writeln!(out, "\n[device]\nkind = \"{}\"", kind.name())?;
    write_name(out, "precision", precision.map(Precision::name), "bf16 on GPUs and fp32 on CPUs")?;
    writeln!(out, "tune = {tune}")?;
    let tuning = tuning.as_ref().map(|path| quoted_path(path));
    write_option(out, "tuning", tuning.as_ref(), "algorithms are not read from a file")?;
    let machine = machine.as_ref().map(|path| quoted_path(path));
    write_option(out, "machine", machine.as_ref(), "measured or typical speeds of the device")?;
    write_option(out, "threads", threads.as_ref(), "all threads that the process may use")?;
    writeln!(out, "ranks = {ranks}\nnodes = {nodes}\ndense_update = \"{}\"", dense_update.name())?;
    writeln!(out, "bind = \"{}\"\nfeed = \"{}\"", bind.name(), feed.name())?;
    writeln!(out, "copies = \"{}\"", copies.name())?;
    let Network { collnet } = network;
    writeln!(out, "\n[network]\ncollnet = \"{}\"", collnet.name())?;
    let Metrics { listen, textfile, tensorboard, mllog } = metrics;
    writeln!(out, "\n[metrics]")?;
    write_option(
        out,
        "listen",
        listen.as_ref().map(|address| quoted(&address.to_string())).as_ref(),
        "no port",
    )?;
    let textfile = textfile.as_ref().map(|path| quoted_path(path));
    write_option(out, "textfile", textfile.as_ref(), "no file")?;
    writeln!(out, "tensorboard = {tensorboard}\nmllog = {mllog}")
}

fn write_data(out: &mut String, data: &Data) -> fmt::Result {
    let Data { dir, shape, cache, raw, generate } = data;
    if let Some(dir) = dir {
        writeln!(out, "\n[data]\ndir = {}", quoted_folders(dir))?;
        let shape = shape.as_ref().map(|shape| quoted(&shape.to_string()));
        write_option(out, "shape", shape.as_ref(), "the dataset's own columns")?;
        match cache {
            DataCache::None => writeln!(out, "cache = \"none\"")?,
            DataCache::Gpu => writeln!(out, "cache = \"gpu\"")?,
            DataCache::Folder(CacheFolder { dir, bytes }) => {
                writeln!(out, "cache = {{ dir = {}, bytes = \"{bytes}\" }}", quoted_path(dir))?;
            }
        }
    }
    if let Some(Raw { shape, rows_cap, train, eval, labels, dense, ids }) = raw {
        writeln!(out, "\n[data.raw]\nshape = {}", quoted(&shape.to_string()))?;
        write_option(out, "rows_cap", rows_cap.as_ref(), "tables are as large as the shape states")?;
        writeln!(out, "train = {}\neval = {}", quoted_paths(train), quoted_paths(eval))?;
        writeln!(out, "labels = {labels}\ndense = \"{dense}\"\nids = \"{ids}\"")?;
    }
    let Some(Generate { shape, rows_cap, samples, eval_samples, alpha, seed }) = generate else {
        return Ok(());
    };
    writeln!(out, "\n[data.generate]\nshape = {}", quoted(&shape.to_string()))?;
    write_option(out, "rows_cap", rows_cap.as_ref(), "tables are as large as the shape states")?;
    writeln!(out, "samples = {samples}\neval_samples = {eval_samples}")?;
    writeln!(out, "alpha = {:?}\nseed = {seed}", alpha.get())
}

fn write_model(out: &mut String, model: &Model) -> fmt::Result {
    let ModelParts { kind, embedding_dim, bottom_mlp, top_mlp, own } = model.parts();
    writeln!(out, "\n[model]\nkind = \"{}\"", kind.name)?;
    for OwnKey { name, value, otherwise } in own {
        write_option(out, name, value.as_ref(), otherwise)?;
    }
    writeln!(out, "embedding_dim = {embedding_dim}")?;
    writeln!(out, "bottom_mlp = {:?}\ntop_mlp = {:?}", widths(bottom_mlp), widths(top_mlp))
}

fn write_feature(out: &mut String, feature: &Feature) -> fmt::Result {
    let Feature { column, buckets, name } = feature;
    writeln!(out, "\n[[feature]]\ncolumn = {}\nbuckets = {buckets}", quoted(column))?;
    let name = name.as_ref().map(|name| quoted(name));
    write_option(out, "name", name.as_ref(), "the name of the column with _buckets")
}

fn write_attention(out: &mut String, attention: &Attention) -> fmt::Result {
    writeln!(out, "\n[[attention]]\nkind = \"{}\"", attention.name())?;
    writeln!(out, "sequence = {}", quoted(attention.sequence()))?;
    match attention {
        Attention::Din(DinAttention { sequence: _, query, hidden, position_embedding }) => {
            writeln!(out, "query = {}\nhidden = {:?}", quoted_names(query), widths(hidden))?;
            writeln!(out, "position_embedding = {position_embedding}")
        }
        Attention::Dot(DotAttention { sequence: _, query, position_embedding }) => {
            writeln!(out, "query = {}\nposition_embedding = {position_embedding}", quoted_names(query))
        }
        Attention::Mean(MeanAttention { sequence: _ }) => Ok(()),
    }
}

fn write_table(out: &mut String, table: &Table) -> fmt::Result {
    let Table {
        columns,
        rows,
        name,
        dim,
        optimizer,
        learning_rate_factor,
        dtype,
        placement,
        exchange,
        ids_out_of_range,
        oov_row,
        frequent_rows,
        tier,
    } = table;
    writeln!(out, "\n[[table]]\ncolumns = {}", quoted_names(columns))?;
    write_option(out, "rows", rows.as_ref().map(table_rows).as_ref(), "each id has its own")?;
    write_option(
        out,
        "name",
        name.as_ref().map(|name| quoted(name)).as_ref(),
        "the names of the columns, joined with +",
    )?;
    write_option(out, "dim", dim.as_ref(), "model.embedding_dim")?;
    writeln!(out, "learning_rate_factor = {:?}", learning_rate_factor.get())?;
    write_name(out, "dtype", dtype.map(Dtype::name), "embedding.dtype")?;
    write_name(out, "placement", placement.map(Placement::name), "embedding.placement")?;
    write_name(out, "exchange", exchange.map(Exchange::name), "embedding.exchange")?;
    write_name(out, "ids_out_of_range", ids_out_of_range.map(IdPolicy::name), "guard.ids_out_of_range")?;
    write_option(out, "oov_row", oov_row.as_ref(), "row 0 if the columns have an exact vocabulary")?;
    write_option(out, "frequent_rows", frequent_rows.as_ref(), "embedding.frequent_rows")?;
    writeln!(out, "tier = \"{}\"", tier.name())?;
    match optimizer {
        Some(optimizer) => write_optimizer(out, "table.optimizer", optimizer),
        None => writeln!(out, "# optimizer: not set, same as optimizer.sparse"),
    }
}

fn table_rows(rows: &TableRows) -> String {
    let TableRows { dynamic, capacity, admit_after, evict, ttl_steps } = rows;
    let evict = evict.name();
    let ttl_steps = ttl_steps.map(|steps| format!(", ttl_steps = {steps}")).unwrap_or_default();
    format!(
        "{{ dynamic = {dynamic}, capacity = {capacity}, admit_after = {admit_after}, evict = \"{evict}\"{ttl_steps} }}"
    )
}

fn write_head(out: &mut String, head: &Head) -> fmt::Result {
    let Head { label, weight } = head;
    writeln!(out, "\n[[head]]\nlabel = {}\nweight = {:?}", quoted(label), weight.get())
}

fn write_embedding(out: &mut String, embedding: &Embedding) -> fmt::Result {
    let Embedding {
        placement,
        exchange,
        dtype,
        frequent_rows,
        sample_samples,
        device_memory,
        host_memory,
        refresh_steps,
    } = embedding;
    writeln!(out, "\n[embedding]\nplacement = \"{}\"", placement.name())?;
    writeln!(out, "exchange = \"{}\"\ndtype = \"{}\"", exchange.name(), dtype.name())?;
    write_option(out, "frequent_rows", frequent_rows.as_ref(), "chosen by the cost model")?;
    write_option(out, "sample_samples", sample_samples.as_ref(), "the dataset's statistics")?;
    let budget = device_memory.as_ref().map(|budget| quoted(&budget.to_string()));
    write_option(out, "device_memory", budget.as_ref(), "GPUs store all rows")?;
    let budget = host_memory.as_ref().map(|budget| quoted(&budget.to_string()));
    write_option(out, "host_memory", budget.as_ref(), "what is free")?;
    write_option(out, "refresh_steps", refresh_steps.as_ref(), "the GPUs' rows are chosen once")
}

fn write_optimizers(out: &mut String, optimizers: &Optimizers) -> fmt::Result {
    let Optimizers { dense, sparse, wide, dense_clip_norm, schedule } = optimizers;
    writeln!(out, "\n[optimizer]")?;
    let clip_norm = dense_clip_norm.map(|norm| format!("{:?}", norm.get()));
    write_option(out, "dense_clip_norm", clip_norm.as_ref(), "no clipping")?;
    write_optimizer(out, "optimizer.dense", dense)?;
    write_optimizer(out, "optimizer.sparse", sparse)?;
    match wide {
        Some(wide) => write_optimizer(out, "optimizer.wide", wide)?,
        None => writeln!(out, "\n# [optimizer.wide]: not set, same as optimizer.sparse")?,
    }
    write_schedule(out, schedule)
}

fn write_schedule(out: &mut String, schedule: &Schedule) -> fmt::Result {
    writeln!(out, "\n[optimizer.schedule]")?;
    match schedule {
        Schedule::Constant => writeln!(out, "kind = \"constant\""),
        Schedule::WarmupPolynomial(schedule) => {
            let WarmupPolynomial { warmup_steps, decay_start_step, decay_steps, power, end_factor } =
                schedule;
            writeln!(out, "kind = \"warmup-polynomial\"")?;
            writeln!(out, "warmup_steps = {warmup_steps}\ndecay_start_step = {decay_start_step}")?;
            writeln!(out, "decay_steps = {decay_steps}")?;
            writeln!(out, "power = {:?}\nend_factor = {:?}", power.get(), end_factor.get())
        }
        Schedule::Step(Step { factor, every_steps, milestones, warmup_steps }) => {
            writeln!(out, "kind = \"step\"\nfactor = {:?}", factor.get())?;
            write_option(out, "every_steps", every_steps.as_ref(), "milestones")?;
            let milestones: Vec<_> = milestones.iter().map(|step: &Count| step.get()).collect();
            writeln!(out, "milestones = {milestones:?}\nwarmup_steps = {warmup_steps}")
        }
        Schedule::Cosine(Cosine { warmup_steps, decay_start_step, decay_steps, end_factor }) => {
            writeln!(out, "kind = \"cosine\"\nwarmup_steps = {warmup_steps}")?;
            write_option(out, "decay_start_step", decay_start_step.as_ref(), "the end of the warm-up")?;
            writeln!(out, "decay_steps = {decay_steps}\nend_factor = {:?}", end_factor.get())
        }
    }
}

fn write_optimizer(out: &mut String, table: &str, optimizer: &Optimizer) -> fmt::Result {
    writeln!(out, "\n[{table}]\nkind = \"{}\"", optimizer.name())?;
    optimizer.keys().try_for_each(|(key, value)| writeln!(out, "{key} = {value}"))
}

fn write_train(out: &mut String, train: &Train) -> fmt::Result {
    let Train {
        batch_size,
        epochs,
        max_steps,
        log_every_steps,
        shuffle,
        shuffle_window_blocks,
        validation,
        init_from,
        init_optimizer_state,
        early_stopping,
        average,
    } = train;
    writeln!(out, "\n[train]\nbatch_size = {batch_size}\nepochs = {epochs}")?;
    write_option(out, "max_steps", max_steps.as_ref(), "all epochs")?;
    writeln!(out, "log_every_steps = {log_every_steps}\nshuffle = {shuffle}")?;
    writeln!(out, "shuffle_window_blocks = {shuffle_window_blocks}\nvalidation = \"{validation}\"")?;
    let init_from = init_from.as_ref().map(|path| quoted_path(path));
    write_option(out, "init_from", init_from.as_ref(), "a new model")?;
    writeln!(out, "init_optimizer_state = {init_optimizer_state}")?;
    match early_stopping {
        None => writeln!(out, "\n# [train.early_stopping]: not set, the last model is saved")?,
        Some(EarlyStopping { metric, patience, min_delta, refit }) => {
            writeln!(out, "\n[train.early_stopping]\nmetric = \"{}\"\npatience = {patience}", metric.name())?;
            writeln!(out, "min_delta = {:?}\nrefit = {refit}", min_delta.get())?;
        }
    }
    let Some(average @ Average { kind, every_steps, count, decay: _, save }) = average else {
        return writeln!(out, "\n# [train.average]: not set, weights are not averaged");
    };
    writeln!(out, "\n[train.average]\nkind = \"{}\"\nevery_steps = {every_steps}", kind.name())?;
    writeln!(out, "count = {count}")?;
    if *kind == AverageKind::Ema {
        writeln!(out, "decay = {:?}", average.decay().get())?;
    }
    writeln!(out, "save = \"{}\"", save.name())
}

fn write_eval(out: &mut String, eval: &Eval) -> fmt::Result {
    let Eval { every_steps, every, batch_size, target_auc, beside_training, set } = eval;
    writeln!(out, "\n[eval]")?;
    match every {
        Some(epochs) => writeln!(out, "every = {epochs}")?,
        None => write_option(out, "every_steps", every_steps.as_ref(), "at the end only")?,
    }
    writeln!(out, "batch_size = {batch_size}")?;
    write_option(out, "target_auc", target_auc.as_ref(), "no early stop")?;
    writeln!(out, "beside_training = {beside_training}")?;
    for EvalSet { name, data } in set {
        writeln!(out, "\n[[eval.set]]\nname = {}\ndata = {}", quoted(name), quoted_folders(data))?;
    }
    Ok(())
}

fn write_checkpoint(out: &mut String, checkpoint: &Checkpoint) -> fmt::Result {
    let Checkpoint { every_steps, every_minutes, keep, incremental, full_every, on_failure } = checkpoint;
    writeln!(out, "\n[checkpoint]")?;
    write_option(out, "every_steps", every_steps.as_ref(), "not by steps")?;
    let every_minutes = every_minutes.map(|minutes| format!("{:?}", minutes.get()));
    write_option(out, "every_minutes", every_minutes.as_ref(), "not by time")?;
    writeln!(out, "keep = {keep}\nincremental = {incremental}\nfull_every = {full_every}")?;
    writeln!(out, "on_failure = \"{}\"", on_failure.name())
}

fn write_guard(out: &mut String, guard: &Guard) -> fmt::Result {
    let Guard {
        non_finite,
        skipped_in_a_row_max,
        step_timeout_s,
        barrier_timeout_s,
        silence_timeout_s,
        ids_out_of_range,
    } = guard;
    writeln!(out, "\n[guard]\nnon_finite = \"{}\"", non_finite.name())?;
    writeln!(out, "skipped_in_a_row_max = {skipped_in_a_row_max}")?;
    let step_timeout_s = step_timeout_s.map(|seconds| format!("{:?}", seconds.get()));
    let absent = "45 with several processes, 300 with one";
    write_option(out, "step_timeout_s", step_timeout_s.as_ref(), absent)?;
    writeln!(out, "barrier_timeout_s = {:?}", barrier_timeout_s.get())?;
    writeln!(out, "silence_timeout_s = {:?}", silence_timeout_s.get())?;
    writeln!(out, "ids_out_of_range = \"{}\"", ids_out_of_range.name())
}

/// Writes an optional setting. TOML has no null, so a missing value becomes a comment that states its meaning.
fn write_option(out: &mut String, key: &str, value: Option<&impl fmt::Display>, absent: &str) -> fmt::Result {
    match value {
        Some(value) => writeln!(out, "{key} = {value}"),
        None => writeln!(out, "# {key}: not set, {absent}"),
    }
}

/// Writes an optional setting whose value is a name.
fn write_name(out: &mut String, key: &str, name: Option<&str>, absent: &str) -> fmt::Result {
    write_option(out, key, name.map(|name| format!("\"{name}\"")).as_ref(), absent)
}

fn widths(layers: &[Width]) -> Vec<u32> {
    layers.iter().map(|width| width.get()).collect()
}

fn quoted(text: &str) -> toml::Value {
    toml::Value::String(text.to_owned())
}

fn quoted_names(names: &[String]) -> toml::Value {
    toml::Value::Array(names.iter().map(|name| quoted(name)).collect())
}

fn quoted_paths(paths: &[PathBuf]) -> toml::Value {
    toml::Value::Array(paths.iter().map(|path| quoted_path(path)).collect())
}

fn quoted_folders(folders: &Folders) -> toml::Value {
    match folders.paths() {
        [path] => quoted_path(path),
        paths => quoted_paths(paths),
    }
}

fn quoted_path(path: &Path) -> toml::Value {
    quoted(&path.to_string_lossy())
}
