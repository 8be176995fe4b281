"""`octavo chat`: chat with a model in the terminal."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from octavo.cli.answer import PrintedAnswer, ignore, stream_answer
from octavo.cli.flags import (
    CHAT_SAMPLING_FLAGS,
    add_option_flags,
    add_sampling_flags,
    sampling_flag,
    sampling_from,
    sampling_value,
)
from octavo.cli.invocation import Invocation
from octavo.cli.model import LanguageModel, Message, checked, require_model, with_seed
from octavo.cli.reader import MessageReader
from octavo.cli.terminal import Terminal, as_typed, table
from octavo.config import counted, nearest_name
from octavo.errors import ConfigError, OctavoError
from octavo.protocol import SamplingParams

USAGE = "chat MODEL"
DESCRIPTION = """\
Chat with a model. /help lists the commands. Ctrl-C stops an answer, Ctrl-D quits.
Also works in a pipe: one message per line on stdin, answers on stdout."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_argument", metavar="MODEL", nargs="?", help="model to run; same as --model")
    parser.add_argument("--system", metavar="TEXT", default=None, help="system message")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print only the answers: no statistics, no progress"
    )
    add_sampling_flags(parser, CHAT_SAMPLING_FLAGS)
    add_option_flags(parser)


def run(call: Invocation) -> int:
    args, terminal = call.args, call.terminal
    sampling = sampling_from(args)
    require_model(call.options, "chat")
    llm = call.open_model(call.options, progress=not args.quiet and terminal.stderr.isatty())
    reader = MessageReader(terminal, [f"/{name}" for name in COMMANDS])
    try:
        # A missing or broken template fails now rather than at the first message.
        llm.chat_template.render([{"role": "user", "content": ""}])
        params = checked(msgspec.structs.replace(llm.default_params, **sampling), llm)
        chat = Chat(llm, params, terminal, system=args.system, quiet=args.quiet)
        if terminal.is_interactive:
            terminal.note(f"{llm.name} · /help lists the commands, Ctrl-D quits")
        run_chat(chat, reader, terminal)
    finally:
        reader.close()
        llm.close()
    return 0


def run_chat(chat: "Chat", reader: MessageReader, terminal: Terminal) -> None:
    """Read and answer messages until the chat ends. An error ends one turn, not the chat."""
    while not chat.is_over:
        try:
            message = reader.read()
        except EOFError:
            if terminal.is_interactive:
                terminal.message("")
            return
        except KeyboardInterrupt:
            if not terminal.is_interactive:
                raise
            terminal.note("\n(press Ctrl-D or type /quit to quit)")
            continue
        try:
            if message.startswith("/"):
                chat.run_command(message)
            elif message:
                chat.ask(message)
        except OctavoError as error:
            terminal.error(str(error))


class Chat:
    """The state of a conversation, and the commands that change it."""

    def __init__(
        self,
        llm: LanguageModel,
        params: SamplingParams,
        terminal: Terminal,
        *,
        system: str | None = None,
        quiet: bool = False,
    ) -> None:
        self.is_over = False
        self._llm = llm
        self._params = params
        self._terminal = terminal
        self._system = system
        self._quiet = quiet
        # User and assistant messages alternate; between calls there are only complete pairs.
        self._turns: list[Message] = []
        self._answers: list[PrintedAnswer] = []

    @property
    def messages(self) -> list[Message]:
        opening = [{"role": "system", "content": self._system}] if self._system else []
        return [*opening, *self._turns]

    def ask(self, text: str) -> None:
        """Answer a message. Both enter the conversation unless that fails or is stopped before any text."""
        question = {"role": "user", "content": text}
        params = with_seed(self._params)
        messages = [*self.messages, question]
        answer = stream_answer(
            self._llm,
            lambda: self._llm.stream_chat(messages, params),
            self._terminal.write,
            params.seed,
            write_reasoning=ignore if self._quiet else self._terminal.aside,
        )
        if not answer.text.endswith("\n"):
            self._terminal.write("\n")
        if answer.text:
            # The template decides how much of its earlier reasoning the model sees.
            thoughts = {"reasoning_content": answer.reasoning} if answer.reasoning else {}
            self._turns += [question, {"role": "assistant", "content": answer.text, **thoughts}]
            self._answers.append(answer)
        if not self._quiet:
            self._terminal.note(answer.summary())

    def run_command(self, line: str) -> None:
        name, _, rest = line.removeprefix("/").partition(" ")
        if name not in COMMANDS:
            near = nearest_name(name, COMMANDS)
            raise ConfigError(f"unknown command /{name}{near or '; /help lists the commands'}")
        COMMANDS[name].action(self, rest.strip())

    def help(self, rest: str) -> None:
        rows = [(f"/{name} {command.arguments}", command.help) for name, command in COMMANDS.items()]
        self._terminal.message(
            table(
                [
                    *rows,
                    ('"""', "start or end a message of several lines; \\ at the end of a line continues it"),
                ]
            )
        )

    def reset(self, rest: str) -> None:
        self._turns.clear()
        self._terminal.note("conversation cleared")

    def set_system(self, rest: str) -> None:
        if not rest:
            self._terminal.message(self._system or "no system message; set one with /system TEXT")
            return
        self._system = None if rest.lower() == "none" else rest
        self._terminal.note("system message " + ("removed" if self._system is None else "set"))

    def set_param(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        flag = sampling_flag(name, CHAT_SAMPLING_FLAGS)
        if not value:
            raise ConfigError(f"/set {name} needs a value ({flag.help})")
        given: Any = value.strip()
        if flag.is_repeated:
            given = [] if given.lower() == "none" else given.split() if flag.metavar != "TEXT" else [given]
        changed = msgspec.structs.replace(self._params, **{name: sampling_value(name, given)})
        self._params = checked(changed, self._llm)
        self._terminal.note(f"{name} = {as_typed(getattr(self._params, name))}")

    def show_params(self, rest: str) -> None:
        rows = [
            (flag.field, as_typed(getattr(self._params, flag.field)), flag.help)
            for flag in CHAT_SAMPLING_FLAGS
        ]
        self._terminal.message(table(rows))

    def undo(self, rest: str) -> str:
        """Remove the last message and its answer, and return the message."""
        if not self._turns:
            raise ConfigError("there is nothing to undo")
        question = str(self._turns[-2]["content"])
        del self._turns[-2:]
        self._terminal.note("removed the last message and its answer")
        return question

    def regenerate(self, rest: str) -> None:
        if not self._turns:
            raise ConfigError("there is no answer to regenerate")
        kept = self._turns
        self._turns = kept[:-2]
        before = len(self._turns)
        try:
            self.ask(str(kept[-2]["content"]))
        finally:
            if len(self._turns) == before:  # no new answer: keep the old one
                self._turns = kept

    def save(self, rest: str) -> None:
        if not rest:
            raise ConfigError("/save needs a file name")
        record = {"model": self._llm.name, "messages": self.messages, "params": self._params}
        path = Path(rest).expanduser()
        try:
            with path.open("xb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
        except FileExistsError as error:
            raise ConfigError(f"{path} exists; choose another name") from error
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
        self._terminal.note(f"saved {counted(len(self.messages), 'message')} to {path}")

    def show_stats(self, rest: str) -> None:
        stats = self._llm.stats()
        hits = f"{stats.prompt_tokens_cached} of {stats.prompt_tokens} prompt tokens"
        rows = [
            ("answers", str(len(self._answers))),
            ("tokens generated", str(stats.tokens_sampled)),
            ("prefix cache hits", hits),
            (
                "KV blocks",
                f"{stats.blocks_total} ({stats.blocks_free} free, {stats.blocks_cached} in the prefix cache)",
            ),
            ("engine steps", str(stats.steps)),
        ]
        self._terminal.message(table(rows))

    def quit(self, rest: str) -> None:
        self.is_over = True


@dataclass(frozen=True)
class Command:
    arguments: str
    help: str
    action: Callable[[Chat, str], object]


COMMANDS = {
    "help": Command("", "show this list", Chat.help),
    "reset": Command("", "clear the conversation; keep the system message and parameters", Chat.reset),
    "system": Command("TEXT", "set the system message; none: remove it, no TEXT: show it", Chat.set_system),
    "set": Command("NAME VALUE", "set a sampling parameter, as in /set temperature 0.7", Chat.set_param),
    "params": Command("", "show the sampling parameters", Chat.show_params),
    "regenerate": Command("", "answer the last message again", Chat.regenerate),
    "undo": Command("", "remove the last message and its answer", Chat.undo),
    "save": Command("FILE", "write the conversation to a JSON file", Chat.save),
    "stats": Command("", "show engine statistics since it started", Chat.show_stats),
    "quit": Command("", "end the chat, as Ctrl-D does", Chat.quit),
}
