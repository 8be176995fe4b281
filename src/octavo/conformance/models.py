"""Checks of GET /models."""

from typing import Any

from octavo.conformance.check import Check, expect, expect_equal, expect_kind
from octavo.conformance.errors import NO_MODEL, check_error
from octavo.conformance.target import CheckTarget, UnexpectedStatus

GROUP = "models"


def listed_models(target: CheckTarget) -> list[str]:
    """Return the names of the models, in the server's order."""
    reply = target.get("/models")
    if reply.status != 200:
        raise UnexpectedStatus(reply)
    content = reply.json
    expect_kind("the answer", content, dict)
    expect_equal("object", content.get("object"), "list")
    expect_kind("data", content.get("data"), list)
    for model in content["data"]:
        _check_model(model)
    return [model["id"] for model in content["data"]]


def _check_model(model: Any) -> None:
    expect_kind("a model", model, dict)
    expect_equal("object", model.get("object"), "model")
    for name, kind in (("id", str), ("created", int), ("owned_by", str)):
        expect_kind(name, model.get(name), kind)


def lists(target: CheckTarget) -> None:
    expect(target.model in listed_models(target), "the model is not in the list")


def gets(target: CheckTarget) -> None:
    reply = target.get(f"/models/{target.model}")
    if reply.status != 200:
        raise UnexpectedStatus(reply)
    _check_model(reply.json)
    expect_equal("id", reply.json["id"], target.model)


def unknown(target: CheckTarget) -> None:
    check_error(target.get(f"/models/{NO_MODEL}"), 404)


CHECKS = (
    Check(GROUP, "list", lists),
    Check(GROUP, "get", gets),
    Check(GROUP, "404 for an unknown model", unknown),
)
