"""What an answer is made of, in the order it comes. The same pieces for a stream and for a whole answer."""

from collections.abc import Sequence

import msgspec


class Content(msgspec.Struct, frozen=True):
    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """What a model says to itself before it answers."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    index: int  # 0, 1, ... within the answer
    name: str
    id: str = ""  # the model writes none: the front end makes it


class CallArguments(msgspec.Struct, frozen=True):
    """More of the JSON text of the arguments, as the model wrote it. Joined they are whole."""

    index: int
    text: str


Other = Reasoning | CallStart | CallArguments
Piece = Content | Other


class FunctionCall(msgspec.Struct, frozen=True):
    """A call as a whole. The arguments are JSON as the model wrote it, which may be none."""

    name: str
    arguments: str
    id: str = ""  # by which a message with its result refers to it


class Message(msgspec.Struct, frozen=True):
    """An answer as a whole."""

    content: str = ""
    reasoning: str | None = None  # None: the model did not reason
    calls: tuple[FunctionCall, ...] = ()


def joined(pieces: Sequence[Piece]) -> Message:
    content: list[str] = []
    reasoning: list[str] = []
    starts: list[CallStart] = []
    arguments: list[list[str]] = []
    for piece in pieces:
        match piece:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallStart():
                starts.append(piece)
                arguments.append([])
            case CallArguments(index, text):
                arguments[index].append(text)
    calls = tuple(
        FunctionCall(start.name, "".join(texts), start.id)
        for start, texts in zip(starts, arguments, strict=True)
    )
    return Message("".join(content), "".join(reasoning) if reasoning else None, calls)


def merged(pieces: list[Piece]) -> list[Piece]:
    """Neighbours of one kind become one."""
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if isinstance(piece, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + piece.text)
        elif isinstance(piece, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + piece.text)
        elif (
            isinstance(piece, CallArguments) and isinstance(last, CallArguments) and piece.index == last.index
        ):
            result[-1] = CallArguments(last.index, last.text + piece.text)
        else:
            result.append(piece)
    return result
