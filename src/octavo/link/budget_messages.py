"""Messages between a front end and the agent that keeps the budget of an API key's limit: see `fleet.budget`.

Each message of a front end has one reply, with the same number.
"""

from typing import Annotated

import msgspec

from octavo.fleet.budget import BudgetKeeper, BudgetUse, Grant, GrantStatus, Units

MAX_USES = 256  # in one report


class AskBudget(msgspec.Struct, frozen=True, tag="ask_budget"):
    """Asks for `units`, and for up to `extra` more if they are free."""

    number: int  # increases with each message of a front end
    use: BudgetUse
    units: Units
    extra: Units = 0


class ReportBudget(msgspec.Struct, frozen=True, tag="report_budget"):
    """Reports what was spent, returned or is still held. Without any use, it tests the connection."""

    number: int
    uses: Annotated[tuple[BudgetUse, ...], msgspec.Meta(max_length=MAX_USES)] = ()


class GrantBudget(msgspec.Struct, frozen=True, tag="grant_budget"):
    """The reply to `AskBudget`."""

    number: int
    grant: Grant


class NotedBudget(msgspec.Struct, frozen=True, tag="noted_budget"):
    """The reply to `ReportBudget`, with one status for each use: GRANTED means that it was recorded."""

    number: int
    statuses: tuple[GrantStatus, ...] = ()


BudgetMessage = AskBudget | ReportBudget
BudgetReply = GrantBudget | NotedBudget


def answer_budget(keeper: BudgetKeeper, front_end: str, message: BudgetMessage) -> BudgetReply:
    """Return the reply of an agent to a message. `front_end` is the name of the process that has sent it."""
    if isinstance(message, AskBudget):
        grant = keeper.ask(front_end, message.number, message.use, units=message.units, extra=message.extra)
        return GrantBudget(message.number, grant)
    return NotedBudget(
        message.number, tuple(keeper.report(front_end, message.number, use) for use in message.uses)
    )
