"""`octavo inspect`: describe a checkpoint and its memory needs. Reads headers, never weights."""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from octavo.cli.flags import add_option_flags
from octavo.cli.invocation import Invocation
from octavo.cli.machine import describe_machine
from octavo.cli.model import require_model
from octavo.cli.terminal import Terminal, TextStyle, table
from octavo.config import DTYPE_BYTES, EngineOptions, counted, format_size
from octavo.errors import CapacityError, TemplateError

if TYPE_CHECKING:
    from octavo.checkpoint import Checkpoint
    from octavo.models.config import ModelConfig

USAGE = "inspect MODEL"
DESCRIPTION = """\
Describe a model: architecture, size, tokenizer, chat template, KV bytes per token, and how much fits in the
memory of this machine. The weights are not loaded. With --machine, print versions, processor and kernels for
a bug report."""

SAMPLE_CHAT = [{"role": "user", "content": "Hello!"}]
SEQUENCE_LENGTHS = (2048, 512)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model_argument", metavar="MODEL", nargs="?", help="model to describe; same as --model"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--template", action="store_true", help="print only the chat template")
    parser.add_argument("--machine", action="store_true", help="describe this machine; needs no MODEL")
    add_option_flags(parser)


def run(call: Invocation) -> int:
    options, terminal = call.options, call.terminal
    if call.args.machine:
        machine = describe_machine()
        terminal.write(
            (json.dumps(machine, indent=2) if call.args.json else table(list(machine.items()))) + "\n"
        )
        return 0
    require_model(options, "inspect")
    from octavo.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(
        options.model,
        checkpoint_path=options.checkpoint_path,
        revision=options.revision,
        tokenizer=options.tokenizer,
        quantize=options.quantize,
    )
    if call.args.template:
        terminal.write(_template_source(checkpoint) + "\n")
        return 0
    facts = describe(checkpoint, options)
    if call.args.json:
        terminal.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    else:
        _print(facts, terminal)
    return 0


def describe(checkpoint: "Checkpoint", options: EngineOptions) -> dict[str, Any]:
    """Return all facts about a checkpoint, in groups, as JSON values."""
    from octavo.checkpoint import open_checkpoint
    from octavo.checkpoint.same_tokens import check_same_tokens
    from octavo.models.config import ModelConfig

    config = ModelConfig.from_huggingface(checkpoint.config)
    dtype = options.dtype_for(checkpoint.config)
    memory = _free_memory_of(options.device)
    in_memory = _bytes_in_memory(checkpoint, config, options, dtype, memory[0])
    configs, weight_bytes = [config], in_memory.total()
    if options.draft_model is not None:
        draft = open_checkpoint(options.draft_model)
        check_same_tokens(checkpoint, draft)
        configs.append(ModelConfig.from_huggingface(draft.config))
        weight_bytes += _bytes_in_memory(draft, configs[1], options, dtype, memory[0]).total()
    return {
        "model": _describe_files(checkpoint, config, options, in_memory),
        "shape": _describe_shape(config),
        "text": _describe_text(checkpoint),
        "kv": _describe_kv(configs, options, DTYPE_BYTES[dtype], memory, weight_bytes),
    }


def _bytes_in_memory(
    checkpoint: "Checkpoint", config: "ModelConfig", options: EngineOptions, dtype: str, device: str
) -> Counter[str]:
    """Return the bytes of the loaded weights by format: as stored if the kernels keep it, else the dtype."""
    from octavo.kernels.library import KernelLibrary, find_library
    from octavo.kernels.shapes import native_problem

    library = find_library()
    keeps = (
        options.weights == "kept"
        and dtype == "bfloat16"
        and device == "cpu"
        and options.kernels != "torch"
        and native_problem(options.block_size, config.head_dim) is None
    )
    kernels = KernelLibrary(library) if keeps and library is not None else None
    found = Counter[str]()
    for name, tensor in checkpoint.tensors.items():
        form = checkpoint.formats.get(name)
        if form is not None and kernels is not None and kernels.has_format(form):
            found[form] += tensor.nbytes
        else:
            found[dtype] += prod(tensor.shape) * DTYPE_BYTES[dtype]
    return found


def _describe_files(
    checkpoint: "Checkpoint", config: "ModelConfig", options: EngineOptions, in_memory: Counter[str]
) -> dict[str, Any]:
    stored = Counter[str]()
    for tensor in checkpoint.tensors.values():
        stored[tensor.source_dtype] += tensor.nbytes
    return {
        "name": checkpoint.name,
        "path": str(checkpoint.path),
        "revision": checkpoint.revision,
        "format": checkpoint.format,
        "architecture": config.architecture,
        "parameters": checkpoint.num_parameters,
        "bytes_on_disk": stored.total(),
        "bytes_by_stored_dtype": dict(stored.most_common()),
        "dtype": options.dtype_for(checkpoint.config),
        "bytes_in_memory": in_memory.total(),
        "bytes_by_form_in_memory": dict(in_memory.most_common()),
    }


def _describe_shape(config: "ModelConfig") -> dict[str, Any]:
    windows = Counter(layer.window for layer in config.layers)
    ropes = Counter(layer.rope for layer in config.layers)
    return {
        "layers": config.num_layers,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "tied_embeddings": config.tie_embeddings,
        "context": config.max_positions,
        "rope": [
            {
                "theta": rope.theta,
                "scaling": None
                if rope.scaling is None
                else type(rope.scaling).__name__.removesuffix("Scaling"),
                "layers": count,
            }
            for rope, count in ropes.most_common()
        ],
        "windows": [{"window": window, "layers": count} for window, count in windows.most_common()],
    }


def _describe_text(checkpoint: "Checkpoint") -> dict[str, Any]:
    from octavo.text.chat_template import ChatTemplate
    from octavo.text.tokenizer import Tokenizer

    assets = checkpoint.text
    tokenizer = Tokenizer(assets)
    sample: str | None = None
    if assets.chat_template is not None:
        try:
            sample = ChatTemplate(assets).render(SAMPLE_CHAT)
        except TemplateError as error:
            sample = f"(cannot be rendered: {error})"
    return {
        "tokenizer": json.loads(assets.tokenizer_json)["model"].get("type"),
        "vocabulary": tokenizer.vocab_size,
        "bos": None if tokenizer.bos_id is None else _token(tokenizer, tokenizer.bos_id),
        "eos": [_token(tokenizer, token_id) for token_id in tokenizer.eos_ids],
        "chat_template": assets.chat_template is not None,
        "other_templates": sorted(assets.named_templates),
        "rendered_sample": sample,
    }


def _token(tokenizer: Any, token_id: int) -> dict[str, Any]:
    return {"id": token_id, "text": tokenizer.token_text(token_id)}


def _describe_kv(
    configs: Sequence["ModelConfig"],
    options: EngineOptions,
    item_bytes: int,
    memory: tuple[str, int],
    weights: int,
) -> dict[str, Any]:
    """Return how much KV fits. `configs`: of the model, and of the draft model if there is one.

    `memory` is the device type and its free bytes.
    """
    from octavo.capacity import KVShape, plan_kv

    device, free_now = memory
    shapes = [KVShape(one.num_layers, one.num_kv_heads, one.head_dim, item_bytes) for one in configs]
    facts: dict[str, Any] = {
        "bytes_per_token": sum(shape.bytes_per_token for shape in shapes),
        "device": device,
        "weight_bytes": weights,
        "free_bytes": free_now,
        "free_bytes_after_weights": max(0, free_now - weights),
    }
    try:
        plan = plan_kv(
            shapes[0],
            free_bytes=facts["free_bytes_after_weights"],
            fraction=options.kv_fraction_on(device),
            kv_memory=options.kv_memory,
            block_size=options.block_size,
            max_model_len=options.max_model_len,
            model_max_len=configs[0].max_positions,
            draft_shape=shapes[1] if len(shapes) > 1 else None,
        )
    except CapacityError as error:
        return facts | {
            "tokens": 0,
            "problem": str(error),
            "explanation": [one.explain() for one in shapes],
            "sequences": [],
        }
    lengths = [plan.max_model_len, *(length for length in SEQUENCE_LENGTHS if length < plan.max_model_len)]
    return facts | {
        "max_model_len": plan.max_model_len,
        "block_size": plan.block_size,
        "blocks": plan.num_blocks,
        "tokens": plan.num_tokens,
        "problem": None,
        "explanation": list(plan.explanation),
        "sequences": [
            {"length": length, "fit": plan.num_blocks // -(-length // plan.block_size)} for length in lengths
        ],
    }


def _free_memory_of(device: str) -> tuple[str, int]:
    """Return the device type and its free bytes. For `cpu`, avoid the slow import of torch."""
    if device == "cpu":
        from octavo.capacity import free_memory

        return device, free_memory()
    from octavo.devices import free_device_memory, resolve_device

    resolved = resolve_device(device)
    return resolved.type, free_device_memory(resolved)


def _template_source(checkpoint: "Checkpoint") -> str:
    if checkpoint.text.chat_template is None:
        raise TemplateError(
            f"{checkpoint.name} has no chat template; complete text with `octavo generate` instead"
        )
    return checkpoint.text.chat_template


def _print(facts: dict[str, Any], terminal: Terminal) -> None:
    model, shape, text, kv = facts["model"], facts["shape"], facts["text"], facts["kv"]
    revision = f" at {model['revision']}" if model["revision"] else ""
    on_disk, in_memory = _sizes(model["bytes_by_stored_dtype"]), _sizes(model["bytes_by_form_in_memory"])
    rows = [
        ("architecture", f"{model['architecture']} ({model['format']}{revision})"),
        ("parameters", f"{model['parameters']:,}"),
        ("on disk", f"{format_size(model['bytes_on_disk'])} ({on_disk})"),
        (
            "in memory",
            f"{format_size(model['bytes_in_memory'])} ({in_memory})",
        ),
        ("layers", f"{shape['layers']}, {_windows(shape)}"),
        ("heads", f"{shape['heads']} query, {shape['kv_heads']} key-value, {shape['head_dim']} wide"),
        ("dimensions", f"{shape['hidden_size']:,} hidden, {shape['intermediate_size']:,} in the MLP"),
        ("embeddings", f"{shape['vocab_size']:,} rows, {'tied' if shape['tied_embeddings'] else 'not tied'}"),
        ("context", f"{shape['context']:,} tokens"),
        ("rope", "; ".join(_rope(rope, len(shape["rope"]) > 1) for rope in shape["rope"])),
        ("tokenizer", f"{text['tokenizer']}, {text['vocabulary']:,} tokens"),
        ("BOS token", _tokens([text["bos"]] if text["bos"] else [])),
        ("EOS tokens", _tokens(text["eos"])),
        ("chat template", _templates(text)),
    ]
    terminal.write(
        terminal.styled(model["name"], TextStyle.BOLD, terminal.stdout) + "\n" + table(rows) + "\n"
    )
    if text["rendered_sample"] is not None:
        _heading('chat template applied to the user message "Hello!"', terminal)
        terminal.write(_indented(text["rendered_sample"].rstrip("\n").splitlines()))
    _heading(f"memory ({kv['device']})", terminal)
    terminal.write(_indented(_memory_lines(kv)))


def _sizes(by_form: dict[str, int]) -> str:
    return ", ".join(f"{form} {format_size(size)}" for form, size in by_form.items())


def _heading(text: str, terminal: Terminal) -> None:
    terminal.write("\n" + terminal.styled(text, TextStyle.BOLD, terminal.stdout) + "\n")


def _indented(lines: list[str]) -> str:
    return "".join(f"  {line}".rstrip() + "\n" for line in lines)


def _memory_lines(kv: dict[str, Any]) -> list[str]:
    from octavo.capacity import sequences_that_fit

    lines = [
        f"{format_size(kv['free_bytes'])} free - {format_size(kv['weight_bytes'])} of weights"
        f" = {format_size(kv['free_bytes_after_weights'])}"
    ]
    lines += kv["explanation"]
    if kv["problem"]:
        return [*lines, f"does not fit: {kv['problem']}"]
    return lines + [
        sequences_that_fit(sequence["fit"], sequence["length"]) for sequence in kv["sequences"][1:]
    ]


def _windows(shape: dict[str, Any]) -> str:
    several = len(shape["windows"]) > 1
    return ", ".join(
        f"{group['layers'] if several else 'all'} with "
        + ("full attention" if group["window"] is None else f"a window of {group['window']:,} tokens")
        for group in shape["windows"]
    )


def _rope(rope: dict[str, Any], several: bool) -> str:
    scaling = f", {rope['scaling']} scaling" if rope["scaling"] else ""
    return f"base {rope['theta']:,.0f}{scaling}" + (
        f" in {counted(rope['layers'], 'layer')}" if several else ""
    )


def _tokens(tokens: list[dict[str, Any]]) -> str:
    return ", ".join(f"{token['text']} ({token['id']})" for token in tokens) or "none"


def _templates(text: dict[str, Any]) -> str:
    if not text["chat_template"]:
        return "no"
    return ", ".join(["yes", *text["other_templates"]]) + " (--template prints it)"
