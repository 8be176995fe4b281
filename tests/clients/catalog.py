"""The clients that `make clients` runs: what to install, and what to run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """A client library: a program prints what it got, for each API that it speaks, as JSON."""

    name: str
    packages: tuple[str, ...]
    program: str  # in `programs`; the suffix says whether it is for Python or Node
    calls_tools: bool = True


LIBRARIES = (
    Library("litellm", ("litellm", "mcp"), "litellm_client.py"),  # 1.106.2 imports mcp without requiring it
    Library("langchain-anthropic", ("langchain-anthropic",), "langchain_client.py"),
    Library(
        "llama-index",
        # It does not work with later versions of Anthropic's client, whatever the server.
        ("llama-index-llms-anthropic", "anthropic<1", "llama-index-llms-openai-like"),
        "llama_index_client.py",
    ),
    Library("openai-agents", ("openai-agents",), "agents_client.py"),
    # With any build of torch, which only its search in documents needs.
    Library("open-webui", ("torch==2.13.0", "open-webui"), "open_webui_client.py", calls_tools=False),
    Library("@anthropic-ai/sdk", ("@anthropic-ai/sdk",), "anthropic.mjs"),
    Library("openai (Node)", ("openai", "zod"), "responses.mjs"),
    Library("ai (Vercel)", ("ai", "@ai-sdk/anthropic", "@ai-sdk/openai", "zod"), "vercel_apis.mjs"),
)


@dataclass(frozen=True)
class Agent:
    """A coding agent: a command that is given a task in a folder with a file."""

    name: str
    package: str
    api: str


AGENTS = (
    Agent("codex", "@openai/codex", "responses"),
    Agent("opencode", "opencode-ai", "chat"),
    Agent("opencode", "opencode-ai", "messages"),
)
TASK = "Fix the bug in add.py"
