"""One definition of every option, four sources, and the origin of every value."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import (
    EngineOptions,
    OptionSpec,
    Origin,
    ReplicaOptions,
    ServerOptions,
    Source,
    format_size,
    option_specs,
    parse_size,
    resolve_options,
)
from octavo.config.definition import variable_of
from octavo.errors import ConfigError

KINDS = (EngineOptions, ServerOptions, ReplicaOptions)
SPECS = tuple(spec for kind in KINDS for spec in option_specs(kind))
# Three values of each option as users type them, different from each other and from the default.
SAMPLES: Mapping[str, tuple[tuple[str, object], ...]] = {
    "model": (("a/b", "a/b"), ("c", "c"), ("./d.gguf", "./d.gguf")),
    "checkpoint_path": (("a", "a"), ("b", "b"), ("c", "c")),
    "revision": (("main", "main"), ("v1", "v1"), ("0123", "0123")),
    "tokenizer": (("a", "a"), ("b", "b"), ("none", None)),
    "device": (("cpu", "cpu"), ("cuda:1", "cuda:1"), ("mps", "mps")),
    "dtype": (("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16")),
    "quantize": (("int8", "int8"), ("int4", "int4"), ("none", None)),
    "threads": (("1", 1), ("2", 2), ("none", None)),
    "kernels": (("torch", "torch"), ("portable", "portable"), ("amx", "amx")),
    "weights": (("widened", "widened"), ("kept", "kept"), ("widened", "widened")),
    "tape": (("false", False), ("no", False), ("1", True)),
    "max_model_len": (("1", 1), ("2048", 2048), ("none", None)),
    "block_size": (("0", 0), ("16", 16), ("64", 64)),
    "kv_memory": (("4GiB", 4 << 30), ("800MB", 800_000_000), ("12345", 12345)),
    "kv_fraction": (("0.25", 0.25), ("1", 1.0), ("none", None)),
    "prefix_caching": (("false", False), ("no", False), ("1", True)),
    "weight_cache_size": (("40GB", 40 * 10**9), ("0", 0), ("none", None)),
    "max_running": (("1", 1), ("2", 2), ("512", 512)),
    "max_step_tokens": (("0", 0), ("64", 64), ("8192", 8192)),
    "admission": (("static", "static"), ("continuous", "continuous"), ("static", "static")),
    "speculate": (("auto", "auto"), ("suffix", "suffix"), ("draft:a/b", "draft:a/b")),
    "draft_tokens": (("1", 1), ("4", 4), ("64", 64)),
    "log_level": (("debug", "debug"), ("info", "info"), ("error", "error")),
    "host": (("0.0.0.0", "0.0.0.0"), ("::1", "::1"), ("localhost", "localhost")),
    "port": (("0", 0), ("80", 80), ("65535", 65535)),
    "served_model_name": (("a", "a"), ("b/c", "b/c"), ("none", None)),
    "replicas": (("1", 1), ("4", 4), ("64", 64)),
    "audit": (("0", 0.0), ("0.05", 0.05), ("1", 1.0)),
    "page": (("false", False), ("no", False), ("1", True)),
    "grace": (("0", 0.0), ("2.5", 2.5), ("600", 600.0)),
    "log_format": (("json", "json"), ("json", "json"), ("json", "json")),
    "profile": (("a.json", "a.json"), ("b", "b"), ("none", None)),
    "profile_seconds": (("1", 1.0), ("2.5", 2.5), ("60", 60.0)),
    "stalled_timeout": (("1", 1.0), ("2.5", 2.5), ("60", 60.0)),
    "otlp_endpoint": (("http://a", "http://a"), ("http://b:1", "http://b:1"), ("none", None)),
    "api_key": (("a", "a"), ("b", "b"), ("none", None)),
    "api_key_file": (("a", "a"), ("b", "b"), ("none", None)),
    "priority_across_keys": (("true", True), ("yes", True), ("1", True)),
    "cors_origins": (("*", "*"), ("https://a.b", "https://a.b"), ("none", None)),
    "allowed_hosts": (("*", "*"), ("a.example,b", "a.example,b"), ("none", None)),
    "max_queued_requests": (("1", 1), ("2", 2), ("100000", 100000)),
    "max_queued_tokens": (("1", 1), ("2", 2), ("100000", 100000)),
    "max_body": (("1MiB", 1 << 20), ("8MB", 8_000_000), ("1024", 1024)),
    "max_stored_responses": (("0", 0), ("8MB", 8_000_000), ("64MiB", 64 << 20)),
    "response_store": (("a.db", "a.db"), ("/b", "/b"), ("none", None)),
    "max_kept_answers": (("0", 0), ("8MB", 8_000_000), ("64MiB", 64 << 20)),
    "max_held": (("64MiB", 64 << 20), ("8MB", 8_000_000), ("131072", 131_072)),
    "max_n": (("1", 1), ("2", 2), ("128", 128)),
    "request_timeout": (("1", 1.0), ("0.5", 0.5), ("60", 60.0)),
    "fleet_key": (("a", "a"), ("b/c.key", "b/c.key"), ("none", None)),
    "listen": (("0.0.0.0:7070", "0.0.0.0:7070"), ("[::]:1", "[::]:1"), ("127.0.0.1:0", "127.0.0.1:0")),
    "supervisor_timeout": (("1", 1.0), ("900", 900.0), ("none", None)),
    "replica_name": (("a", "a"), ("gpu-7", "gpu-7"), ("none", None)),
}
# These must be set together, and have their own test.
PAIRED = {"tls_cert", "tls_key", "fleet"}
SINGLE = [spec for spec in SPECS if spec.name not in PAIRED]


def yaml_file(folder: Path, content: object) -> Path:
    path = folder / "octavo.yaml"
    path.write_bytes(msgspec.yaml.encode(content))
    return path


def test_every_option_has_samples() -> None:
    names = [name for kind in KINDS for name in kind.model_fields]
    assert set(SAMPLES) | PAIRED == set(names)
    assert len(names) == len(set(names))


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ConfigError, match="tls_cert and tls_key belong together"):
        resolve_options({"tls_cert": "a.pem"}, {})
    assert resolve_options({"tls_cert": "a.pem", "tls_key": "b.pem"}, {}).server.tls_key == "b.pem"


def test_a_fleet_needs_a_key_and_no_engines_here() -> None:
    fleet = {"fleet": "a:1", "fleet_key": "b.key"}
    assert resolve_options(fleet, {}).server.fleet == "a:1"
    with pytest.raises(ConfigError, match="octavo fleet keys"):
        resolve_options({"fleet": "a:1"}, {})
    with pytest.raises(ConfigError, match="fleet and replicas exclude each other"):
        resolve_options(fleet | {"replicas": 2}, {})


def test_a_misspelled_key_suggests_the_nearest_option(tmp_path: Path) -> None:
    for slip, meant in (("prot", "port"), ("block_sise", "block_size")):
        with pytest.raises(ConfigError, match=f"did you mean {meant}"):
            resolve_options({}, {}, yaml_file(tmp_path, {slip: 1}))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_option_is_described(spec: OptionSpec) -> None:
    assert spec.description
    assert spec.allowed


@given(
    option=st.sampled_from([spec.name for spec in SINGLE]),
    given_in=st.sets(st.sampled_from([Source.FLAG, Source.ENVIRONMENT, Source.FILE])),
    order=st.permutations([0, 1, 2]),
)
def test_the_source_with_the_highest_precedence_wins_and_is_named(
    tmp_path_factory: pytest.TempPathFactory, option: str, given_in: set[Source], order: list[int]
) -> None:
    spec = next(spec for spec in SPECS if spec.name == option)
    samples = dict(zip([Source.FLAG, Source.ENVIRONMENT, Source.FILE], order, strict=True))
    typed = {source: SAMPLES[option][index] for source, index in samples.items()}
    flags = {option: typed[Source.FLAG][0]} if Source.FLAG in given_in else {}
    environ = {spec.variable: typed[Source.ENVIRONMENT][0]} if Source.ENVIRONMENT in given_in else {}
    path = None
    if Source.FILE in given_in:
        path = yaml_file(tmp_path_factory.getbasetemp(), {option: typed[Source.FILE][0]})

    resolved = resolve_options(flags, environ, path)

    places = {
        Source.FLAG: spec.flag,
        Source.ENVIRONMENT: spec.variable,
        Source.FILE: f"{path}:{option}",
    }
    winner = next((source for source in places if source in given_in), None)
    groups = (resolved.options, resolved.server, resolved.replica)
    options = next(group for group in groups if option in type(group).model_fields)
    if winner is None:
        assert getattr(options, option) == spec.default
        assert resolved.origins[option] == Origin(Source.DEFAULT)
    else:
        assert getattr(options, option) == typed[winner][1]
        assert resolved.origins[option] == Origin(winner, places[winner])
    others = [origin for name, origin in resolved.origins.items() if name != option]
    assert others == [Origin(Source.DEFAULT)] * (len(SPECS) - 1)


def test_yaml_values_may_be_typed(tmp_path: Path) -> None:
    content = {
        "block_size": 16,
        "prefix_caching": False,
        "kv_fraction": 0.25,
        "threads": None,
        "kv_memory": 9,
    }
    options = resolve_options({}, {}, yaml_file(tmp_path, content)).options
    assert options.model_dump(include=set(content)) == content


def test_off_in_yaml_needs_no_quotes(tmp_path: Path) -> None:
    path = tmp_path / "octavo.yaml"
    path.write_text("speculate: off\n")  # a boolean to YAML
    options = resolve_options({}, {"OCTAVO_SPECULATE": "ngram", "OCTAVO_CONFIG": str(path)}).options
    assert options.speculate == "ngram"
    assert resolve_options({}, {}, path).options.speculate == "off"
    path.write_text("speculate: on\n")
    with pytest.raises(ConfigError, match="off, auto"):
        resolve_options({}, {}, path)


def test_a_draft_model_is_named_after_the_method() -> None:
    assert EngineOptions(speculate="draft:./a:b.gguf").draft_model == "./a:b.gguf"
    assert EngineOptions(speculate="suffix").draft_model is None
    for text in ("draft", "draft:", "Draft:a", "none"):
        with pytest.raises(ConfigError, match="draft:MODEL"):
            EngineOptions(speculate=text)


def test_config_variable_names_the_file_unless_a_flag_does(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, {"block_size": 16})
    other = tmp_path / "other.yaml"
    other.write_text("block_size: 64\n")
    environ = {"OCTAVO_CONFIG": str(path)}
    assert resolve_options({}, environ).options.block_size == 16
    assert resolve_options({}, environ, other).options.block_size == 64


def test_an_empty_file_and_an_empty_variable_set_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing yet\n")
    assert resolve_options({}, {"OCTAVO_BLOCK_SIZE": ""}, path).options == EngineOptions()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("blocksize: 3", "octavo.yaml:blocksize: unknown option 'blocksize'; did you mean block_size?"),
        ("block_size: -1", "octavo.yaml:block_size: -1 is not allowed; give a whole number, at least 0"),
        (
            "block_size: true",
            "octavo.yaml:block_size: True is a boolean; give a whole number, at least 0",
        ),
        ("revision: 1234", "octavo.yaml:revision: 1234 is not allowed; give text, or none (in quotes)"),
        ("block_size: null", "octavo.yaml:block_size: None is not allowed"),
        ("- block_size", "must hold one option per line"),
        ("a: [", "is not YAML"),
    ],
)
def test_invalid_files_are_explained(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "octavo.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as error:
        resolve_options({}, {}, path)
    assert expected in str(error.value)
    assert str(path) in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: No such file"):
        resolve_options({}, {}, tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ({"dtype": "int8"}, {}, "flag --dtype: 'int8' is not allowed; give one of auto, float32, bfloat16"),
        (
            {},
            {"OCTAVO_KV_FRACTION": "1.5"},
            "environment OCTAVO_KV_FRACTION: '1.5' is not allowed; give a number",
        ),
        ({}, {"OCTAVO_KV_FRACTION": "nan"}, "environment OCTAVO_KV_FRACTION: 'nan' is not allowed"),
        ({"block_size": "none"}, {}, "flag --block-size: 'none' is not allowed"),
        ({"kv_memory": "4G"}, {}, "write 4GB (powers of 1000) or 4GiB (powers of 1024)"),
        (
            {"model": "m"},
            {"OCTAVO_CHECKPOINT_PATH": "p"},
            "both flag --model ('m') and environment OCTAVO_CHECKPOINT_PATH ('p') name the checkpoint",
        ),
    ],
)
def test_invalid_values_are_reported_with_origin_and_allowed_values(
    flags: dict[str, str], environ: dict[str, str], expected: str
) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_options(flags, environ)
    assert expected in str(error.value)


def test_none_overrides_a_value_of_lower_precedence() -> None:
    resolved = resolve_options({"model": "none", "checkpoint_path": "p"}, {"OCTAVO_MODEL": "m"})
    assert (resolved.options.model, resolved.options.checkpoint_path) == (None, "p")


def test_options_created_directly_raise_the_same_errors() -> None:
    with pytest.raises(ConfigError, match=r"max_runing: unknown option .*; did you mean max_running\?"):
        EngineOptions(max_runing=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"max_running: 0 is not allowed.*; threads: 0 is not allowed"):
        EngineOptions(max_running=0, threads=0)


def test_only_unknown_octavo_variables_cause_a_warning() -> None:
    ours = {"OCTAVO_API_KEY": "k", "OCTAVO_TEST_ASSETS": "p", "OCTAVO_CI_VENV": "v", "OCTAVO_BLOCK_SIZE": "8"}
    assert resolve_options({}, ours).warnings == ()
    (warning,) = resolve_options({}, {"OCTAVO_BLOCKSIZE": "8", "OTHER": "x"}).warnings
    assert warning == "OCTAVO_BLOCKSIZE is set but is not an option; did you mean OCTAVO_BLOCK_SIZE?"


@given(
    number=st.integers(0, 10**6),
    unit=st.sampled_from(["B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"]),
)
def test_sizes_are_parsed_exactly(number: int, unit: str) -> None:
    power = " kmgt".index(unit[0].lower()) if len(unit) > 1 else 0
    factor = (1024 if "i" in unit else 1000) ** power
    assert parse_size(f"{number}{unit}") == parse_size(f" {number} {unit.lower()} ") == number * factor


@pytest.mark.parametrize("text", ["", "GiB", "-1", "4XB", "1e9", "4 G", "inf", "1.GiB"])
def test_invalid_sizes_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a size|unknown unit|ambiguous"):
        parse_size(text)


@given(num_bytes=st.integers(0, 1 << 50))
def test_formatted_sizes_are_accurate(num_bytes: int) -> None:
    assert parse_size(format_size(num_bytes)) == pytest.approx(num_bytes, rel=0.006)


def test_the_default_kv_fraction_is_lower_on_a_cpu() -> None:
    assert EngineOptions().kv_fraction_on("cpu") == 0.5
    assert EngineOptions().kv_fraction_on("cuda") == 0.9
    assert EngineOptions(kv_fraction=0.3).kv_fraction_on("cpu") == 0.3


def test_a_step_has_a_token_for_every_running_sequence() -> None:
    with pytest.raises(ConfigError, match=r"max_step_tokens \(63\) must be at least max_running \(64\)"):
        EngineOptions(max_step_tokens=63)
    assert EngineOptions(max_step_tokens=63, max_running=63).max_step_tokens == 63
    assert EngineOptions(max_step_tokens=0).max_step_tokens == 0


FORMER = [spec for spec in SPECS if spec.former_name is not None]


@pytest.mark.parametrize("spec", FORMER, ids=lambda spec: spec.name)
@pytest.mark.parametrize("source", [Source.FLAG, Source.ENVIRONMENT, Source.FILE])
def test_former_names_still_work(tmp_path: Path, spec: OptionSpec, source: Source) -> None:
    (text, value), former = SAMPLES[spec.name][0], str(spec.former_name)
    flags = {former: text} if source is Source.FLAG else {}
    environ = {variable_of(former): text} if source is Source.ENVIRONMENT else {}
    path = yaml_file(tmp_path, {former: text}) if source is Source.FILE else None
    resolved = resolve_options(flags, environ, path)
    assert resolved.options.model_dump()[spec.name] == value
    assert resolved.origins[spec.name].source is source
    assert not resolved.warnings


def test_one_source_cannot_use_both_names_of_an_option(tmp_path: Path) -> None:
    """Between sources, precedence decides as usual; within one source, using both names is an error."""
    path = yaml_file(tmp_path, {"page_size": 16})
    assert resolve_options({}, {"OCTAVO_BLOCK_SIZE": "64"}, path).options.block_size == 64
    assert resolve_options({"block_size": "8"}, {"OCTAVO_PAGE_SIZE": "64"}, path).options.block_size == 8
    with pytest.raises(ConfigError, match="page_size is the former name of block_size: give one of them"):
        resolve_options({}, {}, yaml_file(tmp_path, {"page_size": 16, "block_size": 16}))
    with pytest.raises(ConfigError, match="former name of block_size"):
        EngineOptions(block_size=16, page_size=16)  # type: ignore[call-arg]
    assert EngineOptions(page_size=16).block_size == 16  # type: ignore[call-arg]
