"""Read the tokenizer files of a Hugging Face directory."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octavo.errors import CheckpointError
from octavo.json_file import parse_json_object, read_json_object, read_text
from octavo.text.assets import TextAssets

_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_MORE_NAMED_TOKENS = ("sep_token", "cls_token", "mask_token")


def text_assets_from_directory(path: Path) -> TextAssets:
    """Read and check all files; only the contents of tokenizer.json are checked later, by `Tokenizer`.

    The post-processor in tokenizer.json alone decides which special tokens surround a prompt: if there is a
    tokenizer.json, transformers ignores `add_bos_token` and `add_eos_token` of tokenizer_config.json.
    """
    config = _read_object(path / "tokenizer_config.json")
    names = {**_read_object(path / "special_tokens_map.json"), **config}
    bos_token, eos_token, pad_token, unk_token = (_token_text(names.get(n), n) for n in _NAMED_TOKENS)
    source, tokenizer = _read_tokenizer(path / "tokenizer.json")
    changed = _add_missing_tokens(tokenizer, config) + _mark_special_tokens(tokenizer, names)
    templates = _templates(path, config)
    return TextAssets(
        tokenizer_json=json.dumps(tokenizer, ensure_ascii=False) if changed else source,
        bos_token=bos_token,
        eos_token=eos_token,
        pad_token=pad_token,
        unk_token=unk_token,
        eos_ids=_end_ids(path, tokenizer, eos_token),
        chat_template=templates.pop("default", None),
        named_templates=templates,
    )


def _read_tokenizer(file: Path) -> tuple[str, dict[str, Any]]:
    if not file.is_file():
        raise CheckpointError(
            f"{file.parent} has no tokenizer.json. If it has another kind of tokenizer, load it with "
            "transformers and `save_pretrained` it; or pass a directory that has one with `tokenizer`."
        )
    source = read_text(file)
    tokenizer = parse_json_object(source, file)
    model, added = tokenizer.get("model"), tokenizer.setdefault("added_tokens", [])
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), (dict, list)):
        raise CheckpointError(f"{file} has no vocabulary. It is damaged: fetch it again.")
    if not isinstance(added, list) or not all(_is_added_token(entry) for entry in added):
        raise CheckpointError(f"{file} has malformed added_tokens. It is damaged: fetch it again.")
    return source, tokenizer


def _is_added_token(entry: object) -> bool:
    return isinstance(entry, dict) and _is_id(entry.get("id")) and isinstance(entry.get("content"), str)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _added_token(token_id: int, content: str, attributes: dict[str, Any]) -> dict[str, Any]:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": token_id, "content": content} | {flag: attributes.get(flag) is True for flag in flags}


def _add_missing_tokens(tokenizer: dict[str, Any], config: dict[str, Any]) -> int:
    """Add tokens that only tokenizer_config.json lists, as they were added after tokenizer.json was written.

    Return their number.
    """
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict):
        raise CheckpointError("added_tokens_decoder in tokenizer_config.json should map ids to tokens.")
    known = {entry["id"] for entry in tokenizer["added_tokens"]}
    missing = []
    for key, entry in listed.items():
        if not key.isdecimal() or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise CheckpointError(f"added_tokens_decoder in tokenizer_config.json is malformed at {key!r}.")
        if int(key) not in known:
            missing.append(_added_token(int(key), entry["content"], entry))
    tokenizer["added_tokens"] += sorted(missing, key=lambda entry: int(entry["id"]))
    return len(missing)


def _mark_special_tokens(tokenizer: dict[str, Any], names: dict[str, Any]) -> int:
    """Mark tokens with a role (such as EOS) as special, even if tokenizer.json lists them as plain words.

    Return the number of changes.
    """
    by_content = {entry["content"]: entry for entry in tokenizer["added_tokens"]}
    changes = 0
    for content in _special_tokens(names):
        entry = by_content.get(content)
        if entry is None and (token_id := _model_id(tokenizer, content)) is not None:
            entry = by_content[content] = _added_token(token_id, content, {})
            tokenizer["added_tokens"].append(entry)
        if entry is not None and entry.get("special") is not True:
            entry["special"] = True
            changes += 1
    return changes


def _special_tokens(names: dict[str, Any]) -> Iterator[str]:
    values = [names.get(name) for name in _NAMED_TOKENS + _MORE_NAMED_TOKENS]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = names.get(key)
        if isinstance(more, (list, dict)):
            values += more.values() if isinstance(more, dict) else more
    for value in values:
        content = _token_text(value, "special token")
        if content is not None:
            yield content


def _token_text(value: object, name: str) -> str | None:
    """Return the text of a token, which is a string or an object with `content`."""
    content = value.get("content") if isinstance(value, dict) else value
    if content is None or isinstance(content, str):
        return content or None
    raise CheckpointError(f"The {name} in the tokenizer's configuration should be a string, not {content!r}.")


def _model_id(tokenizer: dict[str, Any], token: str | None) -> int | None:
    vocab = tokenizer["model"]["vocab"]
    token_id = vocab.get(token) if isinstance(vocab, dict) else None
    return token_id if _is_id(token_id) else None


def _end_ids(path: Path, tokenizer: dict[str, Any], eos_token: str | None) -> tuple[int, ...]:
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = _read_object(path / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(_is_id(token_id) for token_id in ids):
            raise CheckpointError(
                f"eos_token_id in {path / name} should be an id or a list of ids, not {value!r}."
            )
        if ids:
            break
    added = {entry["content"]: int(entry["id"]) for entry in tokenizer["added_tokens"]}
    eos_id = added[eos_token] if eos_token in added else _model_id(tokenizer, eos_token)
    return tuple(dict.fromkeys(ids if eos_id is None else [*ids, eos_id]))


def _templates(path: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return templates by name; the main one is "default". Separate files override tokenizer_config.json."""
    others = sorted((path / "additional_chat_templates").glob("*.jinja"))
    templates = {file.stem: read_text(file) for file in others}
    value = config.get("chat_template")
    value = _read_object(path / "chat_template.json").get("chat_template", value)
    if (path / "chat_template.jinja").is_file():
        value = read_text(path / "chat_template.jinja")
    if value is None:
        return templates
    if isinstance(value, str):
        return {**templates, "default": value}
    if isinstance(value, list) and all(_is_named_template(entry) for entry in value):
        return {**templates, **{entry["name"]: entry["template"] for entry in value}}
    raise CheckpointError(f"The chat_template in {path} should be a string or a list of named templates.")


def _is_named_template(entry: object) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("name", "template"))


def _read_object(file: Path) -> dict[str, Any]:
    """Return {} if the file does not exist."""
    return read_json_object(file) if file.is_file() else {}
