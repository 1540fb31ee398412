"""What is wrong with a sweep, in a few lines however many jobs it has."""

from collections.abc import Iterable, Mapping, Sequence

LISTED = 20
"""Jobs of a sweep that are listed one by one if they are wrong; more of them are said to be so many."""


def complaints(jobs: Sequence[Sequence[str]], errors: Mapping[int, Sequence[str]]) -> list[str]:
    """What is wrong with a sweep, as lines that say which jobs they are about, by the overrides in which jobs differ.

    Args:
        jobs: the overrides of all jobs.
        errors: number of a job that is wrong -> what is wrong with it.

    What is wrong with every job is said once, and so is what is wrong with many.
    """
    shared = set.intersection(*map(set, jobs))

    def label(overrides: Iterable[str]) -> str:
        return " ".join(override for override in overrides if override not in shared)

    def of(job: str, line: str) -> str:
        return line if line.startswith(f"{job}: ") else f"{job}: {line}"

    affected: dict[str, list[int]] = {}
    for number, lines in errors.items():
        for line in dict.fromkeys(lines):
            affected.setdefault(line, []).append(number)
    everywhere = [line for line, numbers in affected.items() if len(numbers) == len(jobs)]
    said = [f"all {len(jobs)} jobs: {line}" if len(jobs) > 1 else line for line in everywhere]
    if len(errors) <= LISTED:
        for number, lines in errors.items():
            said += [of(label(jobs[number]), line) for line in dict.fromkeys(lines) if line not in everywhere]
        return said
    for line, numbers in affected.items():
        if line in everywhere:
            continue
        # Those are told apart by what they have in common, if no other job has it.
        common = set.intersection(*(set(jobs[number]) for number in numbers))
        same = label(override for override in jobs[numbers[0]] if override in common)
        if len(numbers) == 1:
            said.append(of(label(jobs[numbers[0]]), line))
        elif same and sum(common <= set(job) for job in jobs) == len(numbers):
            said.append(f"{len(numbers)} of {len(jobs)} jobs ({same}): {line}")
        else:
            said.append(f"{len(numbers)} of {len(jobs)} jobs (first: {label(jobs[numbers[0]])}): {line}")
    return said
