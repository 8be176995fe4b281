"""Complete every line of a file in one batch and write JSON lines.

python examples/offline_batch.py MODEL prompts.txt > answers.jsonl
"""

import json
import sys
from pathlib import Path

from octavo import LLM, SamplingParams


def main() -> None:
    model, prompts_file = sys.argv[1:]
    prompts = Path(prompts_file).read_text().splitlines()
    with LLM(model, progress=True) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24), progress=True)
    for output in outputs:
        row = {"prompt": output.prompt, "text": output.text, "finish_reason": output.finish_reason}
        print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
