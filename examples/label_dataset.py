"""Label every row of a JSONL file with Ray Data. If it is interrupted, start it again: it does the rest.

python examples/label_dataset.py MODEL reviews.jsonl labelled/

Every line of the file has an `id` and a `text`. The folder gets Parquet files with these columns and more.
"""

import json
import sys
from typing import Any

import ray

from octavo import GrammarKind, GrammarSpec, SamplingParams
from octavo.ray import generate

LABELS = ["positive", "negative"]
QUESTION = "Is this review positive or negative? Answer with one word.\n\n"


def with_question(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"messages": [{"role": "user", "content": QUESTION + row["text"]}]}


def main() -> None:
    model, reviews, folder = sys.argv[1:]
    grammar = GrammarSpec(GrammarKind.CHOICE, json.dumps(LABELS))
    labelled = generate(
        ray.data.read_json(reviews).map(with_question),
        model,
        SamplingParams(temperature=0, max_tokens=16, grammar=grammar),
        messages="messages",
        key="id",
        output=folder,
        prefix="label_",
        kv_memory="256MiB",
    )
    for row in labelled.sort("id").iter_rows():
        print(json.dumps({"id": row["id"], "label": row["label_text"], "error": row["label_error"]}))


if __name__ == "__main__":
    main()
