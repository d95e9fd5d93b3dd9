//! Random texts and random jobs.

use proptest::prelude::*;

use rankine_reader::Split;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StringDeserializer};

use super::*;

proptest! {
    #[test]
    fn no_text_panics(text in ".*", set in ".*") {
        let _ = Job::from_toml("job.toml", &text, &NO_SETS).map_err(|error| error.to_string());
        let _ = Job::from_toml("job.toml", SOUND, &[set]).map_err(|error| error.to_string());
    }

    /// Nearly sound jobs get further than noise does.
    #[test]
    fn no_damage_panics(
        at in 0..SOUND.len(),
        removed in 0usize..20,
        inserted in "[a-z_=.\\[\\]{}\"'#0-9\\n\u{e4} -]{0,6}",
    ) {
        let end = (at + removed).min(SOUND.len());
        let text = format!("{}{inserted}{}", &SOUND[..at], &SOUND[end..]);
        let _ = Job::from_toml("job.toml", &text, &NO_SETS).map_err(|error| error.to_string());
    }

    #[test]
    fn an_effective_job_loads_back_equal(job in any_job()) {
        let text = job.to_toml();
        let again = Job::from_toml("effective.toml", &text, &NO_SETS)
            .map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(again, job);
    }
}

/// Attention over this many sequences, of every kind.
fn attention(count: usize) -> Vec<Attention> {
    let query = || vec!["C1".into(), "a \"b\"".into()];
    let of = |number: usize| {
        let sequence = format!("sequence \"{number}\"");
        let hidden = || (1..=number as u32).filter_map(Width::new).collect();
        let position_embedding = number.is_multiple_of(2);
        match number % 3 {
            0 => Attention::Din(DinAttention {
                sequence,
                query: query(),
                hidden: hidden(),
                position_embedding,
            }),
            1 => Attention::Dot(DotAttention { sequence, query: query(), position_embedding }),
            _ => Attention::Mean(MeanAttention { sequence }),
        }
    };
    (count..count + 3).map(of).collect()
}

/// Up to three, which differ in their kind.
fn features(count: usize) -> Vec<Feature> {
    let kinds = [Buckets::Quantiles(64), Buckets::Log, Buckets::Boundaries(vec![-1.0, 0.0, 1e-7, 18.5])];
    let feature = |(number, buckets): (usize, Buckets)| Feature {
        column: format!("I \"{number}\""),
        buckets,
        name: (number == 1).then(|| "age's".into()),
    };
    kinds.into_iter().enumerate().map(feature).take(count).collect()
}

fn placement() -> impl Strategy<Value = Placement> {
    prop_oneof![
        Just(Placement::Auto),
        Just(Placement::Replicated),
        Just(Placement::Hybrid),
        Just(Placement::RowWise),
        Just(Placement::TableWise),
        Just(Placement::ColumnWise),
    ]
}

fn table_rows() -> impl Strategy<Value = TableRows> {
    let evict = prop_oneof![Just(Evict::None), Just(Evict::Lru), Just(Evict::Lfu), Just(Evict::Ttl)];
    let capacity = prop_oneof![Just("7"), Just("'50M'"), Just("'1.5k'"), Just("100000000000")];
    (capacity, 1..=255_u8, evict, 1..=i64::MAX as u64).prop_map(|(capacity, admit_after, evict, steps)| {
        TableRows {
            dynamic: true,
            capacity: Capacity::deserialize(toml::de::ValueDeserializer::parse(capacity).unwrap()).unwrap(),
            admit_after: AdmitAfter::new(admit_after).unwrap(),
            evict,
            ttl_steps: (evict == Evict::Ttl).then(|| Count::new(steps).unwrap()),
        }
    })
}

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![Just(Tier::Auto), Just(Tier::Device), Just(Tier::Host)]
}

/// No budgets, or one for GPUs and perhaps one for the host.
fn budgets() -> impl Strategy<Value = (Option<MemoryBudget>, Option<ByteSize>)> {
    let size = || {
        let text = prop_oneof![Just("96GB"), Just("1.5 TiB"), Just("123456789")];
        text.prop_map(|text| text.to_owned().into_deserializer())
            .prop_map(|text: StringDeserializer<ValueError>| ByteSize::deserialize(text).unwrap())
    };
    let device = prop_oneof![Just(MemoryBudget::Auto), size().prop_map(MemoryBudget::Bytes)];
    let both = (device, proptest::option::of(size()));
    prop_oneof![Just((None, None)), both.prop_map(|(device, host)| (Some(device), host))]
}

fn dtype() -> impl Strategy<Value = Dtype> {
    prop_oneof![Just(Dtype::Fp32), Just(Dtype::Bf16), Just(Dtype::Fp16)]
}

fn exchange() -> impl Strategy<Value = Exchange> {
    prop_oneof![Just(Exchange::Auto), Just(Exchange::Rows), Just(Exchange::Pooled)]
}

fn any_job() -> impl Strategy<Value = Job> {
    let count = || (1..=i64::MAX as u64).prop_map(|n| Count::new(n).unwrap());
    let non_negative = || (0.0..1e38).prop_map(|x| NonNegative::new(x).unwrap());
    let decay = || (0.0..0.999_999).prop_map(|x| Decay::new(x).unwrap());
    let fraction = || (0.0..=1.0).prop_map(|x| Fraction::new(x).unwrap());
    let positive = || (1e-37..1e38).prop_map(|x| Positive::new(x).unwrap());
    let width = || (1u32..=65_536).prop_map(|n| Width::new(n).unwrap());
    let rates = move || (non_negative(), non_negative());
    let optimizer = move || {
        prop_oneof![
            rates().prop_map(|(learning_rate, weight_decay)| Optimizer::Sgd(Sgd {
                learning_rate,
                weight_decay
            })),
            (rates(), decay(), any::<bool>()).prop_map(
                |((learning_rate, weight_decay), momentum, nesterov)| {
                    Optimizer::Momentum(Momentum { learning_rate, weight_decay, momentum, nesterov })
                }
            ),
            (rates(), non_negative(), positive()).prop_map(
                |((learning_rate, weight_decay), initial_accumulator, epsilon)| {
                    Optimizer::Adagrad(Adagrad { learning_rate, weight_decay, initial_accumulator, epsilon })
                }
            ),
            (rates(), decay(), decay(), positive()).prop_map(
                |((learning_rate, weight_decay), beta1, beta2, epsilon)| {
                    Optimizer::Adam(Adam { learning_rate, weight_decay, beta1, beta2, epsilon })
                }
            ),
            (rates(), non_negative(), non_negative(), non_negative()).prop_map(
                |((learning_rate, weight_decay), beta, l1, l2)| {
                    Optimizer::Ftrl(Ftrl { learning_rate, weight_decay, beta, l1, l2 })
                }
            ),
        ]
    };
    // What is for tables alone, too.
    let table_optimizer = move || {
        let rowwise = (rates(), non_negative(), positive()).prop_map(
            |((learning_rate, weight_decay), initial_accumulator, epsilon)| {
                Optimizer::RowwiseAdagrad(RowwiseAdagrad {
                    learning_rate,
                    weight_decay,
                    initial_accumulator,
                    epsilon,
                })
            },
        );
        prop_oneof![4 => optimizer(), 1 => rowwise]
    };
    let schedule = prop_oneof![
        Just(Schedule::Constant),
        (any::<u32>(), any::<u32>(), count(), positive(), fraction()).prop_map(
            |(warmup_steps, plateau, decay_steps, power, end_factor)| {
                Schedule::WarmupPolynomial(WarmupPolynomial {
                    warmup_steps: warmup_steps.into(),
                    decay_start_step: u64::from(warmup_steps) + u64::from(plateau),
                    decay_steps,
                    power,
                    end_factor,
                })
            }
        ),
        (fraction(), proptest::option::of(count()), any::<u32>()).prop_map(
            |(factor, every_steps, warmup_steps)| {
                let milestones = if every_steps.is_none() { [1, 2, u64::MAX / 2].as_slice() } else { &[] };
                Schedule::Step(Step {
                    factor,
                    every_steps,
                    milestones: milestones.iter().map(|&step| Count::new(step).unwrap()).collect(),
                    warmup_steps: warmup_steps.into(),
                })
            }
        ),
        (any::<u32>(), proptest::option::of(any::<u32>()), count(), fraction()).prop_map(
            |(warmup_steps, plateau, decay_steps, end_factor)| {
                Schedule::Cosine(Cosine {
                    warmup_steps: warmup_steps.into(),
                    decay_start_step: plateau.map(|steps| u64::from(warmup_steps) + u64::from(steps)),
                    decay_steps,
                    end_factor,
                })
            }
        ),
    ];
    let shape = prop_oneof![
        Just(Shape::Dlrm),
        Just(Shape::DlrmDcnv2),
        Just(Shape::Churn),
        Just(Shape::Sequences),
        "[a-z \"'\\\\]{0,9}/[a-z]{1,9}".prop_map(|path| Shape::File(path.into())),
    ];
    let generate =
        (shape, proptest::option::of(count()), count(), any::<u64>(), non_negative(), any::<u64>()).prop_map(
            |(shape, rows_cap, samples, eval_samples, alpha, seed)| Generate {
                shape,
                rows_cap,
                samples,
                eval_samples,
                alpha,
                seed,
            },
        );
    let folder = ("[^\\x00]{1,20}", proptest::option::of(generate)).prop_map(
        |(dir, generate): (String, Option<Generate>)| Data {
            shape: (generate.is_none() && dir.len() % 2 == 0).then_some(Shape::DlrmDcnv2),
            dir: Some(Folders::one(dir)),
            raw: None,
            cache: DataCache::Gpu,
            generate,
        },
    );
    let paths = |least| proptest::collection::vec("[^\\x00]{1,20}".prop_map(PathBuf::from), least..3);
    let raw =
        (prop_oneof![Just(Shape::Dlrm), Just(Shape::DlrmDcnv2)], proptest::option::of(count()), paths(1))
            .prop_flat_map(move |(shape, rows_cap, train)| {
                (Just(shape), Just(rows_cap), Just(train), paths(0), count(), any::<bool>(), any::<bool>())
            })
            .prop_map(|(shape, rows_cap, train, eval, labels, int, global)| {
                let dense = if int { RawDense::Int } else { RawDense::Float };
                let ids = if global { RawIds::GlobalOffset } else { RawIds::PerTable };
                Data {
                    raw: Some(Raw { shape, rows_cap, train, eval, labels, dense, ids }),
                    ..Data::default()
                }
            });
    let data = prop_oneof![folder, raw];
    let widths = move || proptest::collection::vec(width(), 0..4);
    let cross = (width(), proptest::option::of(width()));
    let model = (0..4, width(), widths(), widths(), cross).prop_map(
        |(kind, embedding_dim, mut bottom_mlp, top_mlp, (cross_layers, cross_rank))| {
            if let Some(last) = bottom_mlp.last_mut() {
                *last = embedding_dim;
            }
            match kind {
                0 => Model::Dlrm(Dlrm { embedding_dim, bottom_mlp, top_mlp }),
                1 => Model::DeepFm(DeepFm { embedding_dim, bottom_mlp, top_mlp }),
                2 => Model::WideDeep(WideDeep { embedding_dim, bottom_mlp, top_mlp }),
                _ => Model::Dcnv2(Dcnv2 { embedding_dim, bottom_mlp, cross_layers, cross_rank, top_mlp }),
            }
        },
    );
    let tables = proptest::collection::vec(
        (
            1usize..4,
            proptest::option::of("[a-z\"' ]{1,5}"),
            proptest::option::of(table_optimizer()),
            non_negative(),
            proptest::option::of(placement()),
            proptest::option::of(exchange()),
            proptest::option::of(dtype()),
            proptest::option::of(count()),
            (tier(), proptest::option::of(table_rows())),
        ),
        0..4,
    )
    .prop_map(|tables| {
        let numbered = tables.into_iter().enumerate();
        let of_tables = numbered.map(
            |(
                number,
                (
                    columns,
                    name,
                    optimizer,
                    learning_rate_factor,
                    placement,
                    exchange,
                    dtype,
                    frequent_rows,
                    (tier, rows),
                ),
            )| Table {
                columns: (0..columns).map(|column| format!("{number} \"{column}\"")).collect(),
                name: name.map(|name| format!("{name}{number}")),
                dim: None,
                optimizer,
                learning_rate_factor,
                dtype,
                placement: placement.filter(|&placement| rows.is_none() || placement != Placement::Hybrid),
                exchange: exchange.filter(|_| placement != Some(Placement::Replicated)),
                ids_out_of_range: placement.map(|_| IdPolicy::Oov),
                oov_row: placement.map(|_| 7).filter(|_| rows.is_none()),
                frequent_rows: frequent_rows.filter(|_| {
                    rows.is_none() && matches!(placement, None | Some(Placement::Auto | Placement::Hybrid))
                }),
                tier,
                rows,
            },
        );
        of_tables.collect::<Vec<_>>()
    });
    let heads = proptest::collection::vec(positive(), 0..3).prop_map(|weights| {
        let head = |(number, weight)| Head { label: format!("label {number}"), weight };
        weights.into_iter().enumerate().map(head).collect::<Vec<_>>()
    });
    let validation = prop_oneof![
        Just(Split::None),
        (0.001..0.999).prop_map(|share| Split::Last { share }),
        (0.001..0.999, any::<u64>()).prop_map(|(share, seed)| Split::Random { share, seed }),
    ];
    let batches = (1u32..=16_777_216, count(), proptest::option::of(count()), count());
    let train = (batches, any::<bool>(), 1u32..=65_536, validation).prop_map(
        |((batch_size, epochs, max_steps, log_every_steps), shuffle, window, validation)| Train {
            batch_size: BatchSize::new(batch_size).unwrap(),
            epochs,
            max_steps,
            log_every_steps,
            shuffle,
            shuffle_window_blocks: WindowBlocks::new(window).unwrap(),
            validation,
            init_from: None,
            init_optimizer_state: false,
            early_stopping: None,
            average: None,
        },
    );
    let average =
        proptest::option::of((any::<bool>(), count(), 2u32..=1000, 0.0..0.999, any::<bool>()).prop_map(
            |(ema, every_steps, count, decay, always)| Average {
                kind: if ema { AverageKind::Ema } else { AverageKind::Last },
                every_steps,
                count: AverageCount::new(count).unwrap(),
                decay: ema.then(|| Decay::new(decay).unwrap()),
                save: if always { AverageSave::Always } else { AverageSave::Better },
            },
        ));
    let metric = prop_oneof![Just(StoppingMetric::Auc), Just(StoppingMetric::LogLoss)];
    let early_stopping = proptest::option::of((metric, count(), 0.0..1.0, any::<bool>()).prop_map(
        |(metric, patience, min_delta, refit)| EarlyStopping {
            metric,
            patience,
            min_delta: NonNegative::new(min_delta).unwrap(),
            refit,
        },
    ));
    let epochs = (0.001..1000.0_f64).prop_map(|epochs| Epochs::new(epochs).unwrap());
    let every = prop_oneof![
        Just((None, None)),
        count().prop_map(|steps| (Some(steps), None)),
        prop_oneof![Just(Epochs::ONE), epochs].prop_map(|epochs| (None, Some(epochs))),
    ];
    let scored = proptest::option::of(1u32..=16_777_216);
    let eval = (every, scored, proptest::option::of(0.500_001..=1.0));
    let eval = eval.prop_map(|((every_steps, every), scored, auc)| {
        let batch_size = scored.and_then(BatchSize::new).map_or(EvalBatchSize::Auto, EvalBatchSize::Count);
        let mut eval = Eval { every_steps, every, batch_size, ..Eval::default() };
        eval.target_auc = auc.filter(|_| eval.is_repeated()).map(|auc| AucTarget::new(auc).unwrap());
        eval
    });
    let mode = prop_oneof![
        Just(IoMode::Auto),
        Just(IoMode::UringDirect),
        Just(IoMode::UringBuffered),
        Just(IoMode::Pread),
        Just(IoMode::Mmap),
    ];
    let reader = (mode, 1u32..=128)
        .prop_map(|(mode, depth)| Reader { mode, queue_depth: QueueDepth::new(depth).unwrap() });
    let checkpoint =
        (
            proptest::option::of(count()),
            proptest::option::of(positive()),
            count(),
            any::<bool>(),
            count(),
            prop_oneof![Just(OnFailure::Stop), Just(OnFailure::Continue)],
        )
            .prop_map(|(every_steps, every_minutes, keep, incremental, full_every, on_failure)| {
                Checkpoint { every_steps, every_minutes, keep, incremental, full_every, on_failure }
            });
    let kind = prop_oneof![Just(DeviceKind::Auto), Just(DeviceKind::Cpu), Just(DeviceKind::Cuda)];
    let precision = prop_oneof![
        Just(Precision::Fp32),
        Just(Precision::Tf32),
        Just(Precision::Bf16),
        Just(Precision::Fp16),
        Just(Precision::Fp8)
    ];
    let kind = (kind, proptest::option::of(precision));
    let device = (kind, proptest::option::of(1u32..=4096), 1u32..=64, 1u32..=64, any::<bool>()).prop_map(
        |((kind, precision), threads, per_node, nodes, sharded)| Device {
            kind,
            precision,
            tune: sharded,
            tuning: (!sharded).then(|| "runs/a \"b\"/tuning.json".into()),
            machine: sharded.then(|| "runs/a \"b\"/machine.toml".into()),
            threads: threads.and_then(ThreadCount::new),
            ranks: RankCount::new(per_node * nodes).map_or(Ranks::Auto, Ranks::Count),
            nodes: if sharded { Ranks::Auto } else { Ranks::Count(RankCount::new(nodes).unwrap()) },
            dense_update: if sharded { DenseUpdate::Sharded } else { DenseUpdate::Replicated },
            bind: if sharded { ThreadBinding::Off } else { ThreadBinding::Auto },
            feed: if sharded { BlockFeed::Needed } else { BlockFeed::Broadcast },
            copies: if sharded { CopyTiming::Any } else { CopyTiming::BetweenExchanges },
        },
    );
    let counts = || proptest::option::of(count());
    let embedding = (placement(), exchange(), dtype(), counts(), counts(), (budgets(), counts())).prop_map(
        |(
            placement,
            exchange,
            dtype,
            frequent_rows,
            sample_samples,
            ((device_memory, host_memory), steps),
        )| {
            Embedding {
                placement,
                exchange,
                dtype,
                frequent_rows,
                sample_samples,
                refresh_steps: device_memory.is_some().then_some(steps).flatten(),
                device_memory,
                host_memory,
            }
        },
    );
    let optimizers = (
        optimizer(),
        table_optimizer(),
        proptest::option::of(table_optimizer()),
        proptest::option::of(positive()),
        schedule,
    )
        .prop_map(|(dense, sparse, wide, dense_clip_norm, schedule)| Optimizers {
            dense,
            sparse,
            wide,
            dense_clip_norm,
            schedule,
        });
    let name = "[^./\\\\\\pC][^/\\\\\\pC]{0,20}".prop_map(|name| name.parse().unwrap());
    let model = (model, tables, heads, optimizers).prop_map(|(model, mut tables, heads, mut optimizer)| {
        if !model.kind().is_wide {
            optimizer.wide = None;
        }
        for (table, dim) in tables.iter_mut().zip([1, 65_536]).filter(|_| !model.kind().multiplies_vectors) {
            table.dim = Width::new(dim);
        }
        let features = features(tables.len());
        let attention = attention(heads.len());
        (model, (features, attention), tables, heads, optimizer)
    });
    let guard = (prop_oneof![Just(NonFinite::Stop), Just(NonFinite::Skip)], count()).prop_map(
        |(non_finite, skipped_in_a_row_max)| Guard {
            non_finite,
            skipped_in_a_row_max,
            step_timeout_s: Seconds::new(0.5).filter(|_| non_finite == NonFinite::Skip),
            barrier_timeout_s: Seconds::new(7.25).unwrap(),
            silence_timeout_s: Seconds::new(8.0).unwrap(),
            ids_out_of_range: if non_finite == NonFinite::Stop { IdPolicy::Fail } else { IdPolicy::Skip },
        },
    );
    let metrics = (any::<bool>(), any::<bool>(), 0u16..).prop_map(|(tensorboard, mllog, port)| Metrics {
        listen: tensorboard.then(|| format!("[::1]:{port}").parse().unwrap()),
        textfile: mllog.then(|| "a \"b\"/rankine.prom".into()),
        tensorboard,
        mllog,
    });
    let saving = (eval, early_stopping, average, checkpoint, guard, metrics);
    (name, any::<u64>(), data, model, embedding, train, saving, reader, device).prop_map(
        |(
            name,
            seed,
            data,
            (model, (features, attention), tables, heads, optimizer),
            embedding,
            train,
            (eval, early_stopping, average, checkpoint, guard, metrics),
            reader,
            device,
        )| Job {
            name,
            seed,
            // Only GPUs keep data.
            data: match device.kind {
                DeviceKind::Cpu => Data { cache: DataCache::None, ..data },
                DeviceKind::Auto | DeviceKind::Cuda => data,
            },
            model,
            features,
            attention,
            tables,
            heads,
            embedding,
            optimizer,
            train: Train {
                early_stopping: early_stopping.filter(|_| eval.is_repeated()).map(|stopping| EarlyStopping {
                    refit: stopping.refit && train.validation != Split::None,
                    ..stopping
                }),
                average,
                ..train
            },
            eval,
            checkpoint,
            guard,
            reader,
            network: Network {
                collnet: if device.kind == DeviceKind::Cpu { CollNet::Auto } else { CollNet::Require },
            },
            device,
            metrics,
        },
    )
}
