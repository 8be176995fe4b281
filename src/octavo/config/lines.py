"""Files that people write: words in lines, with comments."""

from collections.abc import Iterator


def numbered_words(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the words of each line that has any. `#` at the start of a word is a comment."""
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.split()
        comment = next((index for index, word in enumerate(words) if word.startswith("#")), len(words))
        if words[:comment]:
            yield number, words[:comment]
