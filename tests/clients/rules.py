"""Models for clients of every kind: what they answer depends on nothing but the prompt.

A model small enough for every machine cannot be relied on to call a tool. These always do, so what is tested
is the client, the wire format and the server.
"""

import json
from pathlib import Path

from data.json_types import Json

GREETING = "Hello from the model."
RESULT = "The result is 5."
TITLE = "Fixing add.py"
FIXED = "I fixed the sign in add.py."
BROKEN_CODE = "def add(a, b):\n    return a - b\n"
FIXED_CODE = BROKEN_CODE.replace("-", "+")
PATCH = """\
*** Begin Patch
*** Update File: add.py
@@
 def add(a, b):
-    return a - b
+    return a + b
*** End Patch"""


def call(name: str, **arguments: Json) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def calculator(prompt: str) -> str:
    """Call the tool `add` once if there is one, and then say the result."""
    if '"name": "add"' not in prompt:
        return GREETING
    return RESULT if "<tool_response>" in prompt else call("add", a=2, b=3)


class Editor:
    """Fixes `add.py` with the tools of a coding agent."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)

    def __call__(self, prompt: str) -> str:
        if '"name": "' not in prompt:
            return TITLE
        num_results = prompt.count("<tool_response>")
        if num_results == 0:
            return "I read the file first.\n" + self._read(prompt)
        return self._edit(prompt) if num_results == 1 else FIXED

    def _read(self, prompt: str) -> str:
        if '"name": "read"' in prompt:
            return call("read", filePath=self._file)
        return self._shell(prompt, f"cat {self._file}")

    def _edit(self, prompt: str) -> str:
        if '"name": "apply_patch"' in prompt:  # its input has a grammar
            return f'<tool_call>\n{{"name": "apply_patch"}}\n{PATCH}'
        if '"name": "edit"' in prompt:
            old, new = "return a - b", "return a + b"
            return call("edit", filePath=self._file, oldString=old, newString=new)
        return FIXED

    def _shell(self, prompt: str, command: str) -> str:
        if '"name": "exec_command"' in prompt:
            return call("exec_command", cmd=command)
        return call("shell", command=["bash", "-lc", command])
