"""Fifty conversations: the requests, and the answers of the scripted model."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from conversations.script import Script, as_call, calls, says, thinks
from data.json_types import Json, JsonObject


class Kind(StrEnum):
    PLAIN = "plain"
    TOOLS = "tools"
    NAMED_TOOL = "named tool"
    REASONING = "reasoning"
    SCHEMA = "schema"
    TWO_CHOICES = "n = 2"
    STOP_STRINGS = "stop strings"


@dataclass(frozen=True)
class Conversation:
    name: str
    messages: tuple[JsonObject, ...]
    scripts: tuple[Script, ...]  # one for each choice
    tools: tuple[JsonObject, ...] = ()
    tool_choice: str = "auto"  # or "none", "required", or the name of a function
    parallel_tool_calls: bool = True
    schema: JsonObject | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    max_tokens: int = 200
    temperature: float = 0.0
    continues: bool = False  # the answer continues the last message
    template: Mapping[str, Json] = field(default_factory=dict)  # variables of the chat template

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode())

    @property
    def kinds(self) -> set[Kind]:
        of_kind = {
            Kind.TOOLS: bool(self.tools) and self.tool_choice in ("auto", "required"),
            Kind.NAMED_TOOL: self.tool_choice not in ("auto", "none", "required"),
            Kind.REASONING: any(script.reasoning is not None for script in self.scripts),
            Kind.SCHEMA: self.schema is not None,
            Kind.TWO_CHOICES: len(self.scripts) == 2,
            Kind.STOP_STRINGS: bool(self.stop),
        }
        return {kind for kind, is_so in of_kind.items() if is_so} or {Kind.PLAIN}


def ask(name: str, question: str | list[JsonObject], *scripts: Script, **more: Json) -> Conversation:
    messages = [user(question)] if isinstance(question, str) else question
    return Conversation(name, tuple(messages), scripts, **more)


# -- messages ----------------------------------------------------------------------------------------------


def user(content: str) -> JsonObject:
    return {"role": "user", "content": content}


def system(content: str) -> JsonObject:
    return {"role": "system", "content": content}


def assistant(content: str | None, *called: JsonObject, **more: Json) -> JsonObject:
    message = {"role": "assistant", "content": content, **more}
    return message | ({"tool_calls": list(called)} if called else {})


def called(call_id: str, name: str, arguments: str | JsonObject) -> JsonObject:
    """Return a call of an earlier answer; most clients send the arguments as text."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str, content: str) -> JsonObject:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


# -- tools and schemas -------------------------------------------------------------------------------------


def an_object(**properties: Json) -> JsonObject:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def tool(name: str, description: str, **function: Json) -> JsonObject:
    return {"type": "function", "function": {"name": name, "description": description, **function}}


NUMBER, TEXT, WHOLE = {"type": "number"}, {"type": "string"}, {"type": "integer"}
ADD = tool("add", "Add two numbers", parameters=an_object(a=NUMBER, b=NUMBER))
WEATHER = tool("weather", "The weather in a city", parameters=an_object(city=TEXT))
TIME = tool("time", "What time it is")  # no parameters
BOOK = tool("book", "Book a table", parameters=an_object(people=WHOLE, at=TEXT), strict=True)
TOOLS = (ADD, WEATHER, TIME)

CITY = an_object(city=TEXT, people=WHOLE)
COLOUR = an_object(colour={"enum": ["red", "green", "blue"]})
TREE = an_object(name=TEXT, parts={"type": "array", "items": an_object(name=TEXT, size=NUMBER)})

# -- the fifty ---------------------------------------------------------------------------------------------

PLAIN = (
    ask("greeting", "Say hello.", says("Hello! How can I help you today?")),
    ask(
        "system message",
        [system("You are a pirate."), user("Who are you?")],
        says("Arr, I be the captain of this ship."),
    ),
    ask(
        "several turns",
        [user("Count to two."), assistant("One, two."), user("Further!")],
        says("Three, four, five, six."),
        temperature=0.9,
    ),
    ask(
        "characters of many bytes",
        "Write owl in some languages.",
        says("🦉 梟, сова, 올빼미, बुलबुल — naïve “hibou” 👩‍👩‍👧‍👦!"),
    ),
    ask(
        "code and space around it",
        "Write a loop in Python.",
        says("\n  ```python\n  for i in range(3):\n\tprint(i)  # 0 <= i < 3\n  ```\n\n"),
    ),
    ask(
        "cut off by max_tokens",
        "Tell me a long story.",
        Script("Once upon a time there was a dragon.", "Once upon a time", finish_reason="length"),
        max_tokens=4,
    ),
    ask(
        "cut off inside a character",
        "A hieroglyph, please.",
        Script("Yes: 𓅓𓅓", "Yes: 𓅓\N{REPLACEMENT CHARACTER}", finish_reason="length"),
        max_tokens=6,
    ),
    ask("an empty answer", "Say nothing.", says("")),
    ask(
        "continues a message",
        [user("Name a fruit."), assistant("A fruit that I like is the")],
        says(" mango, which is sweet."),
        continues=True,
    ),
)

WITH_TOOLS = (
    ask("one call", "What is 2 + 3.5?", calls(("add", {"a": 2, "b": 3.5})), tools=TOOLS),
    ask(
        "text before a call",
        "What is 7 + 8?",
        calls(("add", {"a": 7, "b": 8}), before="Let me see."),
        tools=TOOLS,
        temperature=0.7,
    ),
    ask(
        "two calls",
        "Add 1 and 2. How is the weather in Rome?",
        calls(("add", {"a": 1, "b": 2}), ("weather", {"city": "Rome"})),
        tools=TOOLS,
    ),
    ask(
        "three calls with characters of many bytes",
        "Weather in Zürich, 東京 and 🏝?",
        calls(
            ("weather", {"city": "Zürich"}),
            ("weather", {"city": "東京"}),
            ("weather", {"city": "🏝"}),
            before="Gern — 一つずつ:",
        ),
        tools=(WEATHER,),
    ),
    ask(
        "arguments cut off by max_tokens",
        "Add 123456789 and 987654321.",
        Script(
            as_call("add", '{"a": 123456789, "b": 987654321}'),
            calls=(("add", '{"a": 123'),),
            finish_reason="length",
        ),
        tools=TOOLS,
        max_tokens=18,
    ),
    ask(
        "unfinished JSON",
        "The weather in Paris?",
        Script(
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Par',
            calls=(("weather", '{"city": "Par'),),
        ),
        tools=TOOLS,
    ),
    ask(
        "a tag without a call",
        "How do you write a call?",
        says("Between <tool_call> and </tool_call> tags, or <tool_call>{}</tool_call>."),
        tools=TOOLS,
    ),
    ask(
        "a call in a fence",
        "Add 4 and 5 for me.",
        Script(
            'Sure:\n```json\n{"name": "add", "arguments": {"a": 4, "b": 5}}\n```',
            "Sure:",
            calls=(("add", '{"a": 4, "b": 5}'),),
        ),
        tools=TOOLS,
    ),
    ask(
        "bare JSON that is a call",
        "Weather in Oslo now",
        Script(
            '{"name": "weather", "arguments": {"city": "Oslo"}}', calls=(("weather", '{"city": "Oslo"}'),)
        ),
        tools=TOOLS,
    ),
    ask(
        "bare JSON that is none",
        "Describe yourself in JSON.",
        says('{"name": "Qwen", "arguments": "none"}'),
        tools=TOOLS,
    ),
    ask(
        "text after a call",
        "Weather in Lima?",
        Script(
            as_call("weather", '{"city": "Lima"}') + "\nI have asked.",
            "\nI have asked.",
            calls=(("weather", '{"city": "Lima"}'),),
        ),
        tools=TOOLS,
    ),
    ask(
        "one call where several are not allowed",
        "Weather in Rome and in Oslo?",
        Script(
            as_call("weather", '{"city": "Rome"}') + "\n" + as_call("weather", '{"city": "Oslo"}'),
            calls=(("weather", '{"city": "Rome"}'),),
        ),
        tools=TOOLS,
        parallel_tool_calls=False,
    ),
    ask(
        "calls are not wanted",
        "What is 1 + 1?",
        says("It is 2, without <tool_call>."),
        tools=TOOLS,
        tool_choice="none",
    ),
    ask(
        "a call is required",
        "Good morning!",
        calls(("weather", {"city": "here"})),
        tools=TOOLS,
        tool_choice="required",
        temperature=0.8,
    ),
    ask(
        "a required call where several are not allowed",
        "Good evening!",
        calls(("time", {})),
        tools=(TIME, WEATHER),
        tool_choice="required",
        parallel_tool_calls=False,
    ),
    ask(
        "strict arguments",
        "A table for two at eight.",
        calls(("book", {"people": 2, "at": "20:00"}), before="I book it."),
        tools=(BOOK, TIME),
    ),
    ask(
        "a result in the history",
        [
            user("What is 2 + 3?"),
            assistant(None, called("call0", "add", '{"a": 2, "b": 3}')),
            result("call0", "5"),
        ],
        says("2 + 3 is 5."),
        tools=TOOLS,
    ),
    ask(
        "several results in the history, then another call",
        [
            system("Be brief."),
            user("Is it warmer in Rome or in Öslö?"),
            assistant(
                "I ask for both.",
                called("r", "weather", '{"city": "Rome"}'),
                called("o", "weather", {"city": "Öslö"}),
            ),
            result("r", '{"celsius": 31}'),
            result("o", "unknown city"),
        ],
        calls(("weather", {"city": "Oslo"}), before="Once more."),
        tools=TOOLS,
    ),
)

WITH_A_NAMED_TOOL = (
    ask("named tool", "Hi!", calls(("add", {"a": 0.1, "b": 1e-7})), tools=TOOLS, tool_choice="add"),
    ask(
        "named tool, called twice",
        "Rome, Oslo",
        Script(
            as_call("weather", '{"city": "Rome"}') + "\n" + as_call("weather", '{"city": "Oslo"}'),
            calls=(("weather", '{"city": "Rome"}'),),
        ),
        tools=TOOLS,
        tool_choice="weather",
    ),
    ask(
        "named tool, cut off by max_tokens",
        "A city with a long name",
        Script(
            as_call("weather", '{"city": "Llanfairpwllgwyngyll"}'),
            calls=(("weather", '{"city": "Llan'),),
            finish_reason="length",
        ),
        tools=TOOLS,
        tool_choice="weather",
        max_tokens=17,
    ),
    ask(
        "named tool after a result",
        [
            user("Time, please."),
            assistant("", called("t", "time", "{}")),
            result("t", "12:00 ☀"),
            user("And the weather in München?"),
        ],
        calls(("weather", {"city": "München"})),
        tools=TOOLS,
        tool_choice="weather",
        temperature=1.0,
    ),
    ask(
        "named tool, n = 2",
        "Two numbers.",
        calls(("add", {"a": 1, "b": 2})),
        calls(("add", {"a": 3, "b": 4})),
        tools=TOOLS,
        tool_choice="add",
        temperature=1.0,
    ),
)

WITH_REASONING = (
    ask(
        "reasoning of many lines and bytes",
        "Is 51 prime?",
        thinks("51 = 3 × 17 …\n\n  also nein 🤔\nfertig", says("No: 3 · 17.")),
    ),
    ask(
        "reasoning before a call",
        "What is 12 + 30?",
        thinks("A tool can add.", calls(("add", {"a": 12, "b": 30}), before="I ask a tool.")),
        tools=TOOLS,
    ),
    ask(
        "reasoning before a required call",
        "Good night!",
        thinks("Some call is needed.", calls(("time", {}), ("weather", {"city": "Rome"}))),
        tools=TOOLS,
        tool_choice="required",
    ),
    ask(
        "reasoning cut off by max_tokens",
        "What is the meaning of life?",
        Script(
            "<think>\nThis is a hard one, I must think about it.</think>42",
            reasoning="This is a hard",
            finish_reason="length",
        ),
        max_tokens=6,
    ),
    ask(
        "a stop string in the reasoning does not stop",
        "Say stop.",
        Script(
            "<think>\nI must not say STOP.\n</think>\n\nI say: STOP and go.",
            "I say: ",
            reasoning="I must not say STOP.",
        ),
        stop=("STOP",),
    ),
    ask(
        "reasoning in the history",
        [
            user("Is 9 prime?"),
            assistant("No.", reasoning_content="9 = 3 · 3"),
            user("And 11?"),
        ],
        thinks("No divisors.", says("Yes.")),
        template={"enable_thinking": True},
    ),
    ask(
        "no reasoning wanted",
        "Is 13 prime?",
        says("Yes; <think> is not reasoning here </think>."),
        template={"enable_thinking": False},
    ),
    ask(
        "reasoning before JSON",
        "A city in Peru?",
        thinks("Lima has 10 million.", says('{"city": "Lima", "people": 10000000}')),
        schema=CITY,
    ),
)

WITH_A_SCHEMA = (
    ask("schema", "The largest city?", says('{"city": "東京 Tōkyō", "people": 37000000}'), schema=CITY),
    ask(
        "schema of a tree, cut off by max_tokens",
        "Describe an owl 🦉.",
        Script(
            '{"name": "owl", "parts": [{"name": "wing", "size": 0.5}]}',
            '{"name": "owl", "parts": [{"name":',
            finish_reason="length",
        ),
        schema=TREE,
        max_tokens=12,
    ),
    ask(
        "schema and tools, answered with JSON",
        "A colour?",
        says('{"colour": "green"}'),
        schema=COLOUR,
        tools=TOOLS,
    ),
    ask(
        "schema and tools, answered with a call",
        "Weather in Rome, please",
        calls(("weather", {"city": "Rome"})),
        schema=COLOUR,
        tools=TOOLS,
    ),
)

WITH_STOP_STRINGS_OR_TWO_CHOICES = (
    ask("n = 2", "A number?", says("Seven."), says("Eleven, or 十一?"), temperature=1.0),
    ask(
        "n = 2, one calls, the other reasons",
        "2 + 2?",
        calls(("add", {"a": 2, "b": 2})),
        thinks("Easy.", says("4")),
        tools=TOOLS,
        temperature=1.0,
    ),
    ask("stop string", "Count.", Script("1, 2, 3, 4, 5", "1, 2, "), stop=("3", "zzz")),
    ask(
        "stop string of many tokens and bytes, kept",
        "Say it.",
        Script("Well, the end — 終わり🦉 — was not the end.", "Well, the end — 終わり🦉 — was"),
        stop=("— 終わり🦉 — was",),
        include_stop=True,
    ),
    ask("stop string that does not come whole", "Go on.", says("one END two EN"), stop=("ENDE", "EN!")),
    ask(
        "stop strings, schema and n = 2",
        "Two colours?",
        Script('{"colour": "red"}', '{"colour": "'),
        says('{"colour": "blue"}'),
        stop=("red",),
        schema=COLOUR,
        temperature=1.2,
    ),
)

FIFTY = (
    PLAIN + WITH_TOOLS + WITH_A_NAMED_TOOL + WITH_REASONING + WITH_A_SCHEMA + WITH_STOP_STRINGS_OR_TWO_CHOICES
)
