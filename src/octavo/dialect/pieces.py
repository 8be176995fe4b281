"""The pieces of an answer, in order. Streams and complete answers have the same pieces."""

from collections.abc import Sequence

import msgspec


class Content(msgspec.Struct, frozen=True):
    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """The model's reasoning before its answer."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    index: int  # 0, 1, ... within the answer
    name: str
    id: str = ""  # models write no ids; the front end creates them
    offset: int = 0  # characters of content before it, which the front end counts


class CallArguments(msgspec.Struct, frozen=True):
    """A part of the JSON text of the arguments, as the model wrote it. Joined, the parts are complete."""

    index: int
    text: str


Other = Reasoning | CallStart | CallArguments
Piece = Content | Other


class ParsedCall(msgspec.Struct, frozen=True):
    """A complete call. The arguments are the text that the model wrote, which may be invalid JSON."""

    name: str
    arguments: str
    id: str = ""  # the message with the result refers to it
    offset: int = 0  # characters of content before it


class ParsedMessage(msgspec.Struct, frozen=True):
    """A complete answer."""

    content: str = ""
    reasoning: str | None = None  # None: the model did not reason
    calls: tuple[ParsedCall, ...] = ()


def joined(pieces: Sequence[Piece]) -> ParsedMessage:
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
        ParsedCall(start.name, "".join(texts), start.id, start.offset)
        for start, texts in zip(starts, arguments, strict=True)
    )
    return ParsedMessage("".join(content), "".join(reasoning) if reasoning else None, calls)


def merged(pieces: list[Piece]) -> list[Piece]:
    """Merge adjacent pieces of the same kind."""
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
