"""What the API keys of one name have used."""

from collections import Counter
from dataclasses import dataclass, field

QUEUE = "queue"


@dataclass
class KeyUsage:
    """Owned by the event loop."""

    requests: Counter[str] = field(default_factory=Counter)  # HTTP requests, by status class
    prompt_tokens: int = 0
    generation_tokens: int = 0
    rejected: Counter[str] = field(default_factory=Counter)  # HTTP requests, by limit
    num_in_flight: int = 0  # generation requests
