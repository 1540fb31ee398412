"""Evaluation in memory that grows with the length, and not with its square."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "long_evaluation.py"
LINEAR = "nope,rope,alibi,t5,kerple"


def measured(*arguments: str) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


def test_no_table_of_length_times_length_is_held() -> None:
    """At a quarter of 32,768 tokens; one byte for each pair of them would be 64 MiB."""
    code, lines = measured("--encodings", LINEAR, "--length", "8192", "--mib", "96")
    assert code == 0, lines
    assert [line.split()[0] for line in lines[1:]] == LINEAR.split(",")


def test_what_takes_too_much_or_cannot_be_is_named() -> None:
    code, lines = measured("--encodings", "swin,cope", "--task", "markov", "--length", "1024", "--mib", "1")
    assert code == 1 and len(lines) == 6
    assert lines[-3] == "swin: encoding=swin: takes 2 axes of position, and was given 1"
    assert all("MiB, more than 1" in line for line in lines[-2:])


def test_what_takes_too_long_is_ended() -> None:
    code, lines = measured("--encodings", "nope", "--length", "8192", "--seconds", "0.01")
    assert code == 1 and lines[1:] == ["nope: takes more than 0.01 s"]


def test_what_an_encoding_refuses_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(SCRIPT))["main"]

    def refuse(*_: object) -> None:
        raise ValueError("position 9\nlies beyond")

    monkeypatch.setitem(main.__globals__, "apart", refuse)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--encodings", "nope", "--length", "64"])
    assert main() == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["nope: position 9 lies beyond"]


@pytest.mark.long
@pytest.mark.parametrize("task", ["bytes", "markov"])
def test_32768_tokens_within_512_mib(task: str) -> None:
    code, lines = measured("--encodings", LINEAR, "--task", task, "--mib", "512")
    assert code == 0, lines
