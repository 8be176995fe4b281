"""`octavo quantize`: write a quantised copy of a checkpoint."""

import argparse
from pathlib import Path

from octavo.cli.invocation import Invocation
from octavo.cli.model import require_model
from octavo.config import format_size
from octavo.errors import ConfigError

USAGE = "quantize MODEL OUT --scheme int8|int4"
DESCRIPTION = """\
Quantise the weights of a model's linear layers and write them to a new folder OUT in the compressed-tensors
format, which transformers also reads. Answers are the same as with --quantize on the original model.
Embedding and head are not quantised. int8 uses one scale per row, int4 one scale per 128 columns."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model_argument", metavar="MODEL", help="Hugging Face Hub id, or path of a checkpoint folder"
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to write; must not exist")
    parser.add_argument(
        "--scheme", choices=["int8", "int4"], required=True, help="type of the quantised weights"
    )
    parser.add_argument(
        "--revision",
        metavar="TEXT",
        default=argparse.SUPPRESS,
        help="commit, tag or branch of a Hub model (none: its main branch)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="hide progress and statistics")
    parser.set_defaults(config=None)


def run(call: Invocation) -> int:
    args, options, terminal = call.args, call.options, call.terminal
    require_model(options, "quantize")
    from tqdm import tqdm

    from octavo.checkpoint import open_checkpoint
    from octavo.checkpoint.quantized.write import write_quantised

    checkpoint = open_checkpoint(options.model, revision=options.revision)
    if checkpoint.format != "safetensors":
        raise ConfigError(
            f"{checkpoint.name} is a GGUF file; quantise the safetensors checkpoint that it was made from"
        )
    before = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    shown = not args.quiet and terminal.stderr.isatty()
    with tqdm(
        total=before,
        desc=f"Quantising {checkpoint.name}",
        unit="B",
        unit_scale=True,
        file=terminal.stderr,
        disable=not shown,
    ) as bar:
        write_quantised(
            checkpoint.path,
            checkpoint.config,
            checkpoint.store,
            args.scheme,
            args.out,
            on_written=bar.update,
        )
    if not args.quiet:
        after = sum(file.stat().st_size for file in args.out.glob("*.safetensors"))
        terminal.note(f"{args.out}: {format_size(before)} quantised to {format_size(after)}")
    return 0
