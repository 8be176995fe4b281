"""`octavo bench step`: compare whole steps of a model with their roofline."""

import argparse
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.bench_output import (
    Column,
    GrowingTable,
    add_output_flags,
    draw_roofline,
    open_machine,
    percent_of_limit,
    report_dropped,
    write_json,
)
from octavo.cli.flags import SAMPLING_FLAGS, add_option_flags, add_sampling_flags, sampling_from
from octavo.cli.invocation import Invocation
from octavo.cli.model import require_model
from octavo.config import DTYPE_BYTES, EngineOptions
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.bench.step import StepCase, StepFigures, StepRunner
    from octavo.checkpoint import Checkpoint
    from octavo.models.config import ModelConfig

USAGE = "bench step MODEL"
DESCRIPTION = """\
Benchmark whole engine steps, from scheduling to the sampled token, and compare them with the minimum time
that memory bandwidth and processor allow. MODEL may be random:llama-3.2-1b or random:smollm2-135m: a model of
that shape with random weights. docs/benchmarks.md explains the table."""

SHARES = ("gemm", "attention", "rows", "sampling", "python")
COLUMNS = (
    Column("step", -18),
    Column("ms", 8),
    Column("tok/s", 8),
    Column("roof ms", 8),
    Column("reached", 8),
    *(Column(share, max(5, len(share))) for share in SHARES),
)
BASELINE_COLUMNS = (Column("torch ms", 9), Column("x torch", 7))
STEP_FLAGS = tuple(
    flag for flag in SAMPLING_FLAGS if flag.field in ("temperature", "top_p", "top_k", "min_p")
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_argument", metavar="MODEL", nargs="?", help="model to run; same as --model")
    parser.add_argument(
        "--batch",
        metavar="N",
        type=int,
        nargs="+",
        default=[1, 8, 16, 32],
        help="number of sequences that decode together [1 8 16 32]",
    )
    parser.add_argument(
        "--context", metavar="N", type=int, default=256, help="tokens in the context of each sequence [256]"
    )
    parser.add_argument(
        "--prefill",
        metavar="N",
        type=int,
        nargs="*",
        default=[1024],
        help="tokens of a prompt that is computed in one step [1024]",
    )
    parser.add_argument(
        "--against", choices=["torch"], default=None, help="alternate with the same engine on plain torch"
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        default=None,
        help="quantised weight format of a random model, such as Q4_K [bfloat16]",
    )
    add_output_flags(parser)
    add_sampling_flags(parser, STEP_FLAGS)
    add_option_flags(parser)


def run(call: Invocation) -> int:
    args = call.args
    from octavo.bench.random_model import is_random_model, write_random_model
    from octavo.bench.roofline import check_plot

    if args.plot is not None:
        check_plot(args.plot)
    if min([*args.batch, args.context, *args.prefill]) < 1:
        raise ConfigError("--batch, --context and --prefill must be whole numbers of at least 1")
    require_model(call.options, "bench step")
    name = call.options.model
    if not is_random_model(name):
        if args.format is not None:
            raise ConfigError("--format applies to random models only; a checkpoint has its own format")
        _bench(call, call.options)
        return 0
    assert name is not None
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as folder:
        call.terminal.note(f"writing {name}")
        write_random_model(name, Path(folder), args.format)
        _bench(call, call.options.model_copy(update={"model": folder}))
    return 0


def _bench(call: Invocation, options: EngineOptions) -> None:
    from octavo.bench.step import QUICK, StepCase, StepScale, measure_steps
    from octavo.checkpoint import open_checkpoint
    from octavo.models.config import ModelConfig

    args, terminal = call.args, call.terminal
    checkpoint = open_checkpoint(
        options.model,
        checkpoint_path=options.checkpoint_path,
        revision=options.revision,
        tokenizer=options.tokenizer,
        quantize=options.quantize,
    )
    config = ModelConfig.from_huggingface(checkpoint.config)
    item_bytes = DTYPE_BYTES[options.dtype_for(checkpoint.config)]
    decodes = [StepCase(batch, 1, args.context) for batch in args.batch]
    cases = [*decodes, *(StepCase(1, length, length) for length in args.prefill)]
    pool, machine = open_machine(options.threads, options.kernels, quick=args.quick)
    step_runners = _open_step_runners(
        call, _fitted(options, config, item_bytes, cases), checkpoint, config, pool.num_threads
    )
    table = GrowingTable(terminal, COLUMNS + (BASELINE_COLUMNS if len(step_runners) > 1 else ()))
    results = []
    try:
        for result in measure_steps(cases, step_runners, machine, QUICK if args.quick else StepScale()):
            results.append(result)
            table.add(_cells(result))
    finally:
        for step_runner in step_runners:
            step_runner.close()
    report_dropped(results, terminal)
    name = _name(call.options, checkpoint.name)
    if args.json is not None:
        facts = {"model": name, "dtype": options.dtype_for(checkpoint.config), "results": results}
        write_json(args.json, pool, machine, facts)
    if args.plot is not None:
        _plot(results, args.plot, machine.best_peak, f"Steps of {name}")


def _name(options: EngineOptions, checkpoint_name: str) -> str:
    from octavo.bench.random_model import is_random_model

    return str(options.model) if is_random_model(options.model) else checkpoint_name


def _fitted(
    options: EngineOptions, config: "ModelConfig", item_bytes: int, cases: "list[StepCase]"
) -> EngineOptions:
    """Return options that run every case in one step, with KV memory for no more than the largest case: two
    engines may share the machine's memory."""
    from octavo.capacity import KVShape

    shape = KVShape(config.num_layers, config.num_kv_heads, config.head_dim, item_bytes)
    block_size = max(options.block_size, 1)
    room = 256  # tokens that a sequence may grow by
    tokens = max(case.batch * (case.context + room + block_size) for case in cases)
    changes = {
        "max_running": max(options.max_running, *(case.batch for case in cases)),
        "max_step_tokens": max(options.max_step_tokens, *(case.batch * case.num_rows for case in cases)),
        "kv_memory": options.kv_memory or 2 * tokens * shape.bytes_per_token,
    }
    return options.model_copy(update=changes)


def _open_step_runners(
    call: Invocation,
    options: EngineOptions,
    checkpoint: "Checkpoint",
    config: "ModelConfig",
    threads: int,
) -> "list[StepRunner]":
    """Open the engine and the one to compare it with, each with the number of torch threads that suits it."""
    from octavo.bench.step import StepRunner, use_torch_threads
    from octavo.llm import LLM
    from octavo.protocol import SamplingParams

    params = SamplingParams(**{"temperature": 0.0, **sampling_from(call.args)})
    configurations = [options] + [options.model_copy(update={"kernels": call.args.against})] * (
        call.args.against is not None
    )
    step_runners = []
    for configuration in configurations:
        llm = LLM(**configuration.model_dump(), progress=call.terminal.stderr.isatty())
        use_torch_threads(llm, threads if llm.kernel_times() is None else 1)
        item_bytes = DTYPE_BYTES[options.dtype_for(checkpoint.config)]
        weight_bytes = _weights_read(llm.facts.weight_bytes, checkpoint, config, item_bytes)
        step_runners.append(StepRunner(llm, config, weight_bytes, item_bytes, params))
    return step_runners


def _weights_read(
    weight_bytes: Mapping[str, int], checkpoint: "Checkpoint", config: "ModelConfig", item_bytes: int
) -> int:
    """Return the bytes of weights a step reads: all but the embeddings, unless they are also the head."""
    total = sum(weight_bytes.values())
    if config.tie_embeddings:
        return total
    table = checkpoint.tensors["model.embed_tokens.weight"]
    is_kept = table.source_dtype in weight_bytes
    return total - (table.nbytes if is_kept else prod(table.shape) * item_bytes)


def _cells(result: "StepFigures") -> tuple[str, ...]:
    cells = (
        result.name,
        f"{result.milliseconds:,.2f}",
        f"{result.tokens_per_second:,.0f}",
        f"{result.roofline_milliseconds:,.2f}",
        percent_of_limit(result.fraction, is_throttled=result.is_throttled),
        *(f"{result.shares[share]:.1%}" for share in SHARES),
    )
    if result.baseline_milliseconds is None:
        return cells
    return (*cells, f"{result.baseline_milliseconds:,.2f}", f"{result.speedup:.2f}")


def _plot(results: "list[StepFigures]", path: Path, best_peak: float, title: str) -> None:
    from octavo.bench.roofline import Point

    points = [
        Point(
            result.name.split()[0],
            f"{result.name}, {result.fraction:.0%}",
            result.gigaflop / result.gigabytes,
            result.gigaflop / result.milliseconds * 1e3,
        )
        for result in results
    ]
    draw_roofline(points, results, best_peak, path, title)
