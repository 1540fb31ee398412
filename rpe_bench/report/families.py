"""Which encodings are of a kind, so that a figure of many shows them a kind at a time."""

from collections.abc import Iterable

from rpe_bench import catalogue
from rpe_bench.facts import facts
from rpe_bench.report.load import in_order

MOST = 8
"""Lines that a reader can tell apart in one panel."""

_WORDS = {
    "embed": "added to the embeddings",
    "rotate": "rotations of queries and keys",
    "content": "terms of position and content",
    "bias": "biases on the logits",
}
_NONE, _OTHER = "without positions", "others"


def family(label: str) -> str:
    """How an encoding brings positions in, by the first place that it changes; what is not in the catalogue is another.

    Read from the source of its class, so that a new encoding has one by itself.
    """
    name = label.partition(" (")[0]
    if name not in catalogue.choices("encoding"):
        return _OTHER
    found = facts(name)
    if found.problem:
        return _OTHER
    return next((words for place, words in _WORDS.items() if place in found.changes), _NONE)


def groups(labels: Iterable[str], most: int = MOST) -> dict[str, list[str]]:
    """Title -> labels: all of them under "" where there are no more than `most`, and else by family.

    A family with more than that is cut into numbered parts of about a size; the smallest ones share a panel.
    """
    ordered = in_order(labels)
    if len(ordered) <= most:
        return {"": ordered}
    families = {title: [label for label in ordered if family(label) == title] for title in [*_WORDS.values(), _NONE]}
    others = [label for label in ordered if family(label) == _OTHER]
    single = [title for title, members in families.items() if len(members) == 1]
    # A panel for one line would be a waste.
    for title in single:
        others += families.pop(title)
    found: dict[str, list[str]] = {}
    # Nor does a single line stand for others.
    rest = family(others[0]) if len(others) == 1 else _OTHER
    for title, members in [*families.items(), (rest, in_order(others))]:
        parts = -(-len(members) // most)
        for part in range(parts):
            start, stop = (len(members) * edge // parts for edge in (part, part + 1))
            found[title if parts == 1 else f"{title} ({part + 1} of {parts})"] = members[start:stop]
    return found
