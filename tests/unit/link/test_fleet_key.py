"""Key files of a fleet: what is read, what is rejected, and that no error contains a secret."""

import os
from pathlib import Path

import pytest
import zmq

from octavo.errors import ConfigError
from octavo.link.fleet_key import MAX_FILE_BYTES, FleetKey, new_fleet_keys, public_of

REPLICA, FRONT_END = new_fleet_keys()
SECRET, PUBLIC, OTHER = REPLICA.secret.hex(), REPLICA.public.hex(), FRONT_END.public.hex()
VALID = (f"secret {SECRET}", f"public {PUBLIC}", f"allow {OTHER} front-end")


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_file_that_was_written_is_read(tmp_path: Path) -> None:
    for key in (REPLICA, FRONT_END):
        assert FleetKey.read(written(tmp_path / "key", key.text("a comment"))) == key


def test_the_two_keys_allow_each_other() -> None:
    assert REPLICA.allowed == {FRONT_END.public: "front-end"}
    assert FRONT_END.allowed == {REPLICA.public: "replica"}
    assert public_of(REPLICA.secret) == REPLICA.public
    assert REPLICA.secret != FRONT_END.secret


def test_comments_upper_case_order_and_missing_names(tmp_path: Path) -> None:
    text = f"\ufeff# first\r\n\n  allow\t{OTHER.upper()} # no name\npublic {PUBLIC}\nsecret {SECRET}"
    path = written(tmp_path / "key", text)
    key = FleetKey.read(path)
    assert (key.secret, key.public) == (REPLICA.secret, REPLICA.public)
    assert key.allowed == {FRONT_END.public: OTHER[:16]}
    with pytest.raises(ConfigError, match="line 5: `secret` must be followed"):
        FleetKey.read(written(path, text + "#not-a-comment"))


def test_a_secret_is_not_in_a_repr() -> None:
    assert repr(REPLICA.secret) not in repr(REPLICA)
    assert SECRET not in repr(REPLICA)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "no line with `secret`"),
        (VALID[1:], "no line with `secret`"),
        ((VALID[0], VALID[2]), "no line with `public`"),
        (VALID[:2], "no line with `allow`"),
        ((VALID[0], f"public {OTHER}", VALID[2]), "does not belong to the secret key"),
        ((*VALID, f"secret {SECRET}"), "line 4: there is an earlier line with `secret`"),
        ((*VALID, f"public {PUBLIC}"), "line 4: there is an earlier line with `public`"),
        ((*VALID, f"allow {OTHER.upper()} again"), "line 4: an earlier line allows the same key"),
        ((SECRET, *VALID), "line 1: the line must begin with"),
        ((f"secret={SECRET}", *VALID), "line 1: the line must begin with"),
        (("secret", *VALID), "line 1: `secret` must be followed by a key of 64 hex digits"),
        ((f"secret {SECRET[:-1]}", *VALID[1:]), "line 1: `secret` must be followed"),
        ((f"secret {SECRET}0", *VALID[1:]), "line 1: `secret` must be followed"),
        ((f"secret {SECRET[:-1]}g", *VALID[1:]), "line 1: `secret` must be followed"),
        ((f"secret {SECRET} mine", *VALID[1:]), "line 1: only the key may follow"),
        ((*VALID[:2], f"allow {OTHER} two words"), "line 3: after the key"),
        ((*VALID[:2], f"allow {OTHER} {'x' * 65}"), "line 3: after the key"),
        ((*VALID[:2], f"allow front-end {OTHER}"), "line 3: `allow` must be followed"),
    ],
)
def test_invalid_content_is_rejected_without_showing_it(
    lines: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "key", "\n".join(lines))
    with pytest.raises(ConfigError) as raised:
        FleetKey.read(path)
    message = str(raised.value)
    assert complaint in message
    assert str(path) in message
    assert SECRET[:8] not in message.lower()
    assert raised.value.__cause__ is None


def test_what_is_not_a_text_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(ConfigError, match=r"there is no file .*octavo fleet keys"):
        FleetKey.read(path)
    with pytest.raises(ConfigError, match="invalid path"):
        FleetKey.read(Path("a\0b"))
    with pytest.raises(ConfigError, match="is not a file"):
        FleetKey.read(tmp_path)
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="is not a file"):
        FleetKey.read(path)
    path.unlink()
    path.write_bytes(b"\xff\xfe")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="is not a text file"):
        FleetKey.read(path)
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="is larger than"):
        FleetKey.read(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o777])
def test_a_file_that_other_users_can_access_is_rejected(mode: int, tmp_path: Path) -> None:
    path = written(tmp_path / "key", "\n".join(VALID))
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*chmod 600"):
        FleetKey.read(path)
    path.chmod(0o400)
    assert FleetKey.read(path).public == REPLICA.public


def test_the_mode_of_a_file_of_another_user_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "key", "\n".join(VALID))
    path.chmod(0o440)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert FleetKey.read(path).public == REPLICA.public


def test_a_build_without_curve_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda capability: False)
    with pytest.raises(ConfigError, match="no CURVE"):
        new_fleet_keys()
