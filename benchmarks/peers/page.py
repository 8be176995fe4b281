"""From results to a page."""
from pathlib import Path
from benchmarks.peers.results import Results
def write_page(results: Results, page: Path) -> None:
    pass
